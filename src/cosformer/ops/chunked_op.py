"""The chunked operator as an op of the library. Inside, a state is one matrix [numerator, denominator]."""

import torch
from torch import Tensor

from cosformer.ops import chunked, packing
from cosformer.ops.custom_op import Outputs, Shape, define
from cosformer.ops.steps import room_for_states, tiling


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
) -> Outputs:
    state = _join(numerator, denominator)
    if cu_seqlens is None:
        out, den, kept, after = chunked.forward(
            q, k, v, key_mask, state, positions, causal, offset, horizon, eps, need_state, keep
        )
    else:
        out, den, after = packing.forward(
            q, k, v, cu_seqlens, state, positions, causal, horizon, eps, need_state
        )
        kept = den.new_empty((0,))
    return out, den, kept, *_split(after, den)


def _backward(
    grad: Tensor,
    grad_numerator: Tensor | None,
    grad_denominator: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    den: Tensor,
    kept: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    positions: Tensor | None,
    causal: bool,
    offset: int,
    horizon: float,
    eps: float,
) -> Outputs:
    state, grad_state = _join(numerator, denominator), _join(grad_numerator, grad_denominator)
    if cu_seqlens is None:
        dq, dk, dv, dstate = chunked.backward(
            grad,
            grad_state,
            q,
            k,
            v,
            out,
            den,
            kept,
            key_mask,
            state,
            positions,
            causal,
            offset,
            horizon,
            eps,
        )
    else:
        dq, dk, dv, dstate = packing.backward(
            grad, grad_state, q, k, v, out, den, cu_seqlens, state, positions, causal, horizon, eps
        )
    return dq, dk, dv, *_split(dstate, den)


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, causal: bool, keep: bool
) -> tuple[Shape, Shape]:
    batch, tq, heads, _ = q.shape
    tk, kv_heads, dims = k.shape[1], k.shape[2], (k.shape[3], v.shape[3])
    if cu_seqlens is not None:
        return (batch, tq, heads), (0,)
    fill = tiling(batch, heads, dims).chunks
    return (batch, tq, heads), (
        batch, kv_heads, room_for_states(tq, tk, causal, dims, fill) if keep else 0
    )  # fmt: skip


def _join(numerator: Tensor | None, denominator: Tensor | None) -> Tensor | None:
    """numerator [B, Hk, 2, D, Dv] and denominator [B, Hk, 2, D] as S [B, Hk, 2D, Dv+1]."""
    if numerator is None or denominator is None:
        return None
    return torch.cat((numerator, denominator.unsqueeze(-1)), -1).flatten(2, 3)


def _split(state: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    if state is None:
        return like.new_empty((0,)), like.new_empty((0,))
    state = state.unflatten(2, (2, -1))
    return state[..., :-1].contiguous(), state[..., -1].contiguous()


chunked_attention, chunked_forward, chunked_backward = define("chunked", _forward, _backward, _shapes)
