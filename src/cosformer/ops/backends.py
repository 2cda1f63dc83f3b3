"""Which backends can run a call of the operator, and why others cannot.

A backend declares what it cannot do: `not_supported_reasons` answers with sentences, none if it can
serve. "auto" takes the first that can; a named backend obeys or raises with its reasons.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.angles import length_or
from cosformer.ops.args import AttentionArgs
from cosformer.ops.gpu.launch_cache import Replay
from cosformer.ops.hopper import support as hopper
from cosformer.ops.reference import reference


class Result(NamedTuple):
    """out, and the outgoing sums of the heads without a window where they were asked for."""

    out: Tensor
    numerator: Tensor | None
    denominator: Tensor | None


class NotServed(ValueError):
    """No backend that was asked can run this call; the message has the reasons of each."""


@dataclass(frozen=True)
class Backend:
    """`not_supported_reasons` and `run` take validated calls; `seen` is an upper bound of the positions
    that a carried state has seen, None without a state."""

    name: str
    summary: str
    not_available_reason: Callable[[], str | None]
    not_supported_reasons: Callable[[AttentionArgs, int | None], list[str]]
    run: Callable[[AttentionArgs], Result]
    devices: tuple[str, ...] | None = None  # where "auto" may choose it; None: anywhere
    replay: Callable[[AttentionArgs], Replay | None] | None = None  # of a call that was served


@dataclass(frozen=True)
class BackendStatus:
    """One line of `cosformer.backends()`."""

    name: str
    summary: str
    available: bool
    reason: str | None


def _run_reference(args: AttentionArgs) -> Result:
    return Result(*reference(args.but(horizon=length_or(args.horizon, args.q, args.k))))


def _run_op(attention: Callable[[AttentionArgs], Any], args: AttentionArgs) -> Result:
    """A call of one of the library's ops (autograd.py)."""
    out, _, _, numerator, denominator = attention(args)
    return Result(out, numerator, denominator) if args.return_state else Result(out, None, None)


def _run_chunked(args: AttentionArgs) -> Result:
    from cosformer.ops.chunked.op import chunked_attention

    return _run_op(chunked_attention, args)


def _run_triton(args: AttentionArgs) -> Result:
    from cosformer.ops.triton.op import triton_attention

    return _run_op(triton_attention, args)


def _run_hopper(args: AttentionArgs) -> Result:
    from cosformer.ops.hopper.op import hopper_attention

    return _run_op(hopper_attention, args)


def _replay_triton(args: AttentionArgs) -> Replay | None:
    from cosformer.ops.triton.op import backend

    return backend.replay(args)


def _replay_hopper(args: AttentionArgs) -> Replay | None:
    from cosformer.ops.hopper.op import backend

    return backend.replay(args)


# Triton's interpreter runs kernels on the CPU: far too slow to serve, and good enough to test.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


# GPUs that were found able, so that it is not checked in every call. A graph that read this set would be
# compiled again after the first call outside of it.
_able: set[torch.device] = set()


def _no_triton() -> str | None:
    # torch.compile cannot trace this check; it needs Triton itself wherever there is a GPU.
    traced = torch.compiler.is_compiling()
    if not traced and _able:
        return None
    if not traced and not _has_triton():
        return "the package triton is not installed (pip install triton; CUDA builds of PyTorch bring it)"
    if not _INTERPRETED and not torch.cuda.is_available():
        return "there is no CUDA GPU that PyTorch can use"
    return None


def runs_triton(device: torch.device) -> bool:
    """Whether kernels of Triton can run there, outside of a call of the operator."""
    if device in _able:
        return True
    return device.type == "cuda" and _has_triton() and torch.cuda.get_device_properties(device).major >= 8


_WIDEST = 256  # features, the largest size in ops/triton/configs.py


def _not_for_triton(args: AttentionArgs, seen: int | None) -> list[str]:
    reasons = []
    device = args.q.device
    traced = torch.compiler.is_compiling()
    if device.type == "cuda" and (traced or device not in _able):
        gpu = torch.cuda.get_device_properties(device)
        if gpu.major < 8:
            reasons.append(f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}, and 8.0 is needed")
        elif not traced:
            _able.add(device)
    elif device.type != "cuda" and not _INTERPRETED:
        reasons.append(f"the tensors are on {device.type}, and it runs on CUDA GPUs")
    if args.q.dtype == torch.float64:
        reasons.append("it does not compute in torch.float64")
    for name, x in (("D", args.k), ("Dv", args.v)):
        if x.shape[3] > _WIDEST:
            reasons.append(f"{name} must be at most {_WIDEST}, and is {x.shape[3]}")
    return reasons


# Fastest first; "auto" takes the first that is meant for the device, available, and supports the request.
_BACKENDS = (
    Backend(
        "hopper",
        "fused kernels for bfloat16 on Hopper GPUs (H100, H200)",
        hopper.not_available_reason,
        hopper.not_supported_reasons,
        _run_hopper,
        devices=("cuda",),
        replay=_replay_hopper,
    ),
    Backend(
        "triton",
        "fused kernels, linear time, memory close to the tensors' own; CUDA GPUs",
        _no_triton,
        _not_for_triton,
        _run_triton,
        devices=("cuda",),
        replay=_replay_triton,
    ),
    Backend(
        "chunked",
        "linear time and memory in plain PyTorch, any device",
        lambda: None,
        lambda args, seen: [],
        _run_chunked,
    ),
    Backend(
        "reference",
        "the paper's equation, quadratic, any device",
        lambda: None,
        lambda args, seen: [],
        _run_reference,
    ),
)

NAMES = ("auto", *(b.name for b in _BACKENDS))


def backends() -> list[BackendStatus]:
    """Every backend, whether it can be used on this machine, and if not, why."""
    reasons = [(b, b.not_available_reason()) for b in _BACKENDS]
    return [BackendStatus(b.name, b.summary, reason is None, reason) for b, reason in reasons]


def can_serve(name: str, args: AttentionArgs, seen: int | None) -> bool:
    backend = next(b for b in _BACKENDS if b.name == name)
    return backend.not_available_reason() is None and not backend.not_supported_reasons(args, seen)


def choose(name: str, args: AttentionArgs, seen: int | None) -> Backend:
    refusals = []
    for backend in _BACKENDS:
        if name not in ("auto", backend.name):
            continue
        if name == "auto" and backend.devices is not None and args.q.device.type not in backend.devices:
            continue
        unavailable = backend.not_available_reason()
        reasons = backend.not_supported_reasons(args, seen) if unavailable is None else [unavailable]
        if not reasons:
            return backend
        refusals.append(f"{backend.name}: {'; '.join(reasons)}")
    raise NotServed(f"no backend can serve this call of cosformer_attention ({' | '.join(refusals)}).")
