"""Which calls, GPUs and versions of Triton the Hopper kernels serve.

Gluon is marked experimental: what compiles well with one version of Triton may spill, or fail, with the next.
This file does not import Triton.
"""

import importlib.metadata
from functools import cache
from typing import Any

import torch

from cosformer.ops.args import AttentionArgs

# Run and measured on an H200 with 3.6; compiled for it, not run, with 3.7.
VERSIONS = ("3.6", "3.7")
WIDEST = 128


def _installed() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


_TRITON = _installed()


def not_available_reason() -> str | None:
    # torch.compile cannot trace the query of all GPUs; the tensors' own GPU is checked for every call.
    return _wrong_triton(_TRITON) if torch.compiler.is_compiling() else _reason()


@cache
def _reason() -> str | None:
    wrong = _wrong_triton(_TRITON)
    if wrong is not None:
        return wrong
    if not torch.cuda.is_available():
        return "there is no CUDA GPU that PyTorch can use"
    if not any(torch.cuda.get_device_capability(i) == (9, 0) for i in range(torch.cuda.device_count())):
        return "no GPU here has compute capability 9.0 (H100, H200)"
    return None


@cache
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


def _wrong_triton(version: str | None) -> str | None:
    if version is None:
        return "the package triton is not installed (pip install triton; CUDA builds of PyTorch bring it)"
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        return f"it was tried with Triton {' and '.join(VERSIONS)}, and {version} is installed"
    return None


def not_supported_reasons(args: AttentionArgs, seen: int | None) -> list[str]:
    """`seen`: an upper bound on the positions a carried state has seen, None without one."""
    q, k, causal, horizon, offset = args.q, args.k, args.causal, args.horizon, args.query_offset
    reasons = []
    if q.device.type != "cuda":
        reasons.append(f"the tensors are on {q.device.type}, and it runs on Hopper GPUs")
    else:
        gpu = (
            _properties(q.device)
            if not torch.compiler.is_compiling()
            else (torch.cuda.get_device_properties(q.device))
        )
        if (gpu.major, gpu.minor) != (9, 0):
            reasons.append(f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}, and 9.0 is needed")
    if q.dtype == torch.float16:
        reasons.append("its sums would overflow in torch.float16, which the backend triton widens to tf32")
    elif q.dtype != torch.bfloat16:
        reasons.append(f"it computes in torch.bfloat16, not in {q.dtype}")
    for name, x in (("D", k), ("Dv", args.v)):
        if x.shape[3] % 8 != 0 or x.shape[3] > WIDEST:
            reasons.append(f"{name} must be a multiple of 8 up to {WIDEST}, and is {x.shape[3]}")
    tq, tk = q.shape[1], k.shape[1]
    if tk == 0:
        reasons.append("there are no keys")
    if causal and (tq != tk or offset != 0):
        reasons.append("causal queries must begin and end with the keys")
    if seen is not None and causal and tq == 1:
        reasons.append("one token after a state is a step of decoding, which the backend triton is made for")
    # Documents are as long as the horizon at most; where every head has a window, there is no horizon.
    packed, bounded = args.cu_seqlens is not None, args.windows is None or 0 in args.windows
    if (bounded and not packed) and (
        seen is not None or offset != 0 or (horizon is not None and not causal)
    ):  # fmt: skip
        # Only where phases are not negative can they be applied before the ReLU.
        first = 0 if seen is not None else max(0, -offset)
        last = (seen or 0) + first + max(offset + tq, tk) - 1
        if first + offset < 0 or last > (max(tq, tk) if horizon is None else horizon):
            reasons.append("every position must lie between the first one and the horizon")
    return reasons
