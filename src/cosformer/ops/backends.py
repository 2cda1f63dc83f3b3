"""Who can run the operator, and why not.

A backend declares what it cannot do: `not_supported_reasons` answers with sentences, none if it can
serve. "auto" takes the first that can; a named backend obeys or raises with its reasons.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.angles import length_or
from cosformer.ops.hopper import support as hopper
from cosformer.ops.reference import reference
from cosformer.ops.shortcut import Play
from cosformer.ops.state import CosformerState


@dataclass  # not frozen: that would cost more than all checks
class Request:
    """A call of `cosformer_attention` after validation. Defaults are filled in but for `horizon`, where
    None still means max(Tq, Tk)."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    horizon: float | None
    key_mask: Tensor | None
    query_offset: int
    cu_seqlens: Tensor | None
    eps: float
    state: CosformerState | None
    return_state: bool


Result = tuple[Tensor, CosformerState | None]


class NotServed(ValueError):
    """Nobody who was asked can run this call; the message says why not, each for himself."""


@dataclass(frozen=True)
class Backend:
    name: str
    summary: str
    not_available_reason: Callable[[], str | None]
    not_supported_reasons: Callable[[Request], list[str]]
    run: Callable[[Request], Result]
    devices: tuple[str, ...] | None = None  # where "auto" may choose it; None: anywhere
    again: Callable[[Request], Play | None] | None = None  # after a call: how to play it again


@dataclass(frozen=True)
class BackendStatus:
    """One line of `cosformer.backends()`."""

    name: str
    summary: str
    available: bool
    reason: str | None


def _run_reference(r: Request) -> Result:
    return reference(**(r.__dict__ | {"horizon": length_or(r.horizon, r.q, r.k)}))


def _run_op(attention: Callable[..., Any], r: Request) -> Result:
    """A call of one of the library's ops (custom_op.py)."""
    s = r.state
    positions = None if s is None else s.positions
    if r.return_state and positions is None:  # a state counts from the first key: fix the origin there
        rows = r.q.shape[0] if r.cu_seqlens is None else r.cu_seqlens.shape[0] - 1
        positions = r.q.new_zeros(rows, dtype=torch.int64)
    keep = torch.is_grad_enabled() and (
        r.q.requires_grad
        or r.k.requires_grad
        or r.v.requires_grad
        or (s is not None and (s.numerator.requires_grad or s.denominator.requires_grad))
    )
    out, _, _, numerator, denominator = attention(
        r.q, r.k, r.v, r.key_mask, r.cu_seqlens, None if s is None else s.numerator,
        None if s is None else s.denominator, positions, r.causal, r.query_offset, r.horizon, r.eps,
        r.return_state, keep,
    )  # fmt: skip
    if not r.return_state or positions is None or r.horizon is None:
        return out, None
    return out, CosformerState(numerator, denominator, *_seen_after(r, positions), r.horizon)


def _run_chunked(r: Request) -> Result:
    from cosformer.ops.chunked_op import chunked_attention

    return _run_op(chunked_attention, r)


def _run_triton(r: Request) -> Result:
    from cosformer.ops.triton.op import triton_attention

    return _run_op(triton_attention, r)


def _run_hopper(r: Request) -> Result:
    from cosformer.ops.hopper.op import hopper_attention

    return _run_op(hopper_attention, r)


def _again_triton(r: Request) -> Play | None:
    from cosformer.ops.triton.run import again

    return again(r)


def _again_hopper(r: Request) -> Play | None:
    from cosformer.ops.hopper.run import again

    return again(r)


# Triton's interpreter runs kernels on the CPU: far too slow to serve, and good enough to test.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


# GPUs that were found able, so that nobody asks again in every call.
_able: set[torch.device] = set()


def _no_triton() -> str | None:
    if _able:
        return None
    # torch.compile cannot trace the question; it needs Triton itself, wherever there is a GPU.
    if not torch.compiler.is_compiling() and not _has_triton():
        return "the package triton is not installed (pip install triton; CUDA builds of PyTorch bring it)"
    if not _INTERPRETED and not torch.cuda.is_available():
        return "there is no CUDA GPU that PyTorch can use"
    return None


_WIDEST = 256  # features: where the tables of ops/triton/configs.py end


def _not_for_triton(r: Request) -> list[str]:
    reasons = []
    device = r.q.device
    if device.type == "cuda" and device not in _able:
        gpu = torch.cuda.get_device_properties(device)
        if gpu.major < 8:
            reasons.append(f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}, and 8.0 is needed")
        elif not torch.compiler.is_compiling():
            _able.add(device)
    elif device.type != "cuda" and not _INTERPRETED:
        reasons.append(f"the tensors are on {device.type}, and it runs on CUDA GPUs")
    if r.q.dtype == torch.float64:
        reasons.append("it does not compute in torch.float64")
    for name, x in (("D", r.k), ("Dv", r.v)):
        if x.shape[3] > _WIDEST:
            reasons.append(f"{name} must be at most {_WIDEST}, and is {x.shape[3]}")
    return reasons


def _not_for_hopper(r: Request) -> list[str]:
    # A state counts from the first key: that it is asked for fixes the origin there.
    seen = r.state.seen if r.state is not None else 0 if r.return_state else None
    packed = r.cu_seqlens is not None
    return hopper.not_supported_reasons(r.q, r.k, r.v, r.causal, r.horizon, r.query_offset, packed, seen)


def _seen_after(r: Request, before: Tensor) -> tuple[Tensor, int]:
    """How many positions each row has seen after this call, and a bound on it that needs no look."""
    bound = r.k.shape[1] + (0 if r.state is None else r.state.seen)
    if r.cu_seqlens is None:
        return before + r.k.shape[1], bound
    after = before + r.cu_seqlens.diff()
    known = after.device.type == "cpu" and not torch.compiler.is_compiling()
    return after, int(after.max()) if known else bound


# Fastest first; "auto" takes the first that is meant for the device, available, and supports the request.
_BACKENDS = (
    Backend(
        "hopper",
        "fused kernels for bfloat16 on Hopper GPUs (H100, H200)",
        hopper.not_available_reason,
        _not_for_hopper,
        _run_hopper,
        devices=("cuda",),
        again=_again_hopper,
    ),
    Backend(
        "triton",
        "fused kernels, linear time, memory close to the tensors' own; CUDA GPUs",
        _no_triton,
        _not_for_triton,
        _run_triton,
        devices=("cuda",),
        again=_again_triton,
    ),
    Backend(
        "chunked",
        "linear time and memory in plain PyTorch, any device",
        lambda: None,
        lambda request: [],
        _run_chunked,
    ),
    Backend(
        "reference",
        "the paper's equation, quadratic, any device",
        lambda: None,
        lambda request: [],
        _run_reference,
    ),
)

NAMES = ("auto", *(b.name for b in _BACKENDS))


def backends() -> list[BackendStatus]:
    """Every backend, whether it can be used on this machine, and if not, why."""
    reasons = [(b, b.not_available_reason()) for b in _BACKENDS]
    return [BackendStatus(b.name, b.summary, reason is None, reason) for b, reason in reasons]


def can_serve(name: str, request: Request) -> bool:
    backend = next(b for b in _BACKENDS if b.name == name)
    return backend.not_available_reason() is None and not backend.not_supported_reasons(request)


def choose(name: str, request: Request) -> Backend:
    refusals = []
    for backend in _BACKENDS:
        if name not in ("auto", backend.name):
            continue
        if name == "auto" and backend.devices is not None and request.q.device.type not in backend.devices:
            continue
        unavailable = backend.not_available_reason()
        reasons = backend.not_supported_reasons(request) if unavailable is None else [unavailable]
        if not reasons:
            return backend
        refusals.append(f"{backend.name}: {'; '.join(reasons)}")
    raise NotServed(f"no backend can serve this call of cosformer_attention ({' | '.join(refusals)}).")
