"""The kernels for Hopper as an op of the library."""

from contextlib import nullcontext

import torch
from torch import Tensor

from cosformer.ops.custom_op import Results, Shape, define
from cosformer.ops.hopper import run
from cosformer.ops.hopper.cutting import of_full_list, states_to_keep, width_of
from cosformer.ops.hopper.tape import Tape
from cosformer.ops.triton.tape import call


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
    need_state: bool,
    keep: bool,
) -> Results:
    states = need_state or numerator is not None
    again = cu_seqlens is None or run.is_joined(cu_seqlens, states)
    with _device(q):
        out, d, kept, state, z = call(
            run.forward, (q, k, v, key_mask, cu_seqlens, numerator, denominator, positions),
            (causal, offset, horizon, eps, need_state, keep), again=again, kind=Tape,
        )  # fmt: skip
        if not keep or not run.is_kept(cu_seqlens, causal, states):
            kept = None
        if not need_state:
            return out, d, kept, None, None
        return out, d, kept, *run.public(state, z, k.shape[3], v.shape[3])


def _backward(
    grad: Tensor,
    grad_numerator: Tensor | None,
    grad_denominator: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    den: Tensor,
    kept: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
) -> Results:
    joined = run.is_joined(cu_seqlens, grad_numerator is not None or numerator is not None)
    with _device(q):
        dq, dk, dv, state, z = call(
            run.backward,
            (
                grad, grad_numerator, grad_denominator, q, k, v, out, den,
                None if kept is None or kept.numel() == 0 else kept, key_mask, cu_seqlens, numerator,
                denominator, positions,
            ),
            (causal, offset, horizon, eps), again=cu_seqlens is None or joined, kind=Tape,
        )  # fmt: skip
        if numerator is None:
            return dq, dk, dv, None, None
        return dq, dk, dv, *run.public(state, z, k.shape[3], v.shape[3])


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, causal: bool, offset: int, states: bool,
    keep: bool,
) -> tuple[Shape, Shape]:  # fmt: skip
    (batch, tq, heads, d), dv = q.shape, v.shape[3]
    of_d = (batch, heads, tq)
    if not keep or not run.is_kept(cu_seqlens, causal, states):
        return of_d, (0,)
    if cu_seqlens is not None:
        return of_d, (of_full_list(tq, cu_seqlens.shape[0] - 1), 4)
    kept = states_to_keep(batch, heads, tq, q.device, width_of(d, dv)) if causal else batch
    return of_d, (kept, k.shape[2], 2 * d * (dv + 1)) if kept else (0,)


def _device(x: Tensor) -> torch.cuda.device | nullcontext[None]:
    """Kernels start on the current device: make that the tensors' own."""
    if x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


hopper_attention, hopper_forward, hopper_backward = define("hopper", _forward, _backward, _shapes)
