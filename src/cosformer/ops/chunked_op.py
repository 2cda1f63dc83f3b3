"""The chunked operator as an op of the library. Inside, a state is the S of chunked.py."""

import torch
from torch import Tensor

from cosformer.ops import chunked, packing
from cosformer.ops.buffers import width
from cosformer.ops.custom_op import Outputs, Shape, define
from cosformer.ops.steps import room_for_states


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
    return out, den, kept, *_split(after, v.shape[3], den)


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
    return dq, dk, dv, *_split(dstate, v.shape[3], den)


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None, causal: bool, offset: int, states: bool,
    keep: bool,
) -> tuple[Shape, Shape]:  # fmt: skip
    batch, tq, heads, _ = q.shape
    tk, kv_heads, dims = k.shape[1], k.shape[2], (k.shape[3], v.shape[3])
    if cu_seqlens is not None:
        return (batch, tq, heads), (0,)
    room = room_for_states(tq, tk, offset, causal, heads, dims, q.device) if keep else 0
    return (batch, tq, heads), (batch, kv_heads, room)


def _join(numerator: Tensor | None, denominator: Tensor | None) -> Tensor | None:
    """numerator [B, Hk, 2, D, Dv] and denominator [B, Hk, 2, D] as S [B, Hk, D, .], whose rows are
    both phases of the numerator, both of the denominator, and zeros."""
    if numerator is None or denominator is None:
        return None
    batch, heads, _, d, dv = numerator.shape
    state = numerator.new_zeros((batch, heads, d, width(dv)))
    state[..., : 2 * dv].unflatten(-1, (2, dv)).copy_(numerator.transpose(2, 3))
    state[..., 2 * dv : 2 * dv + 2] = denominator.mT
    return state


def _split(state: Tensor | None, dv: int, like: Tensor) -> tuple[Tensor, Tensor]:
    if state is None:
        return like.new_empty((0,)), like.new_empty((0,))
    numerator = state[..., : 2 * dv].unflatten(-1, (2, dv)).transpose(2, 3)
    denominator = state[..., 2 * dv : 2 * dv + 2].mT
    # Copies even where the views are contiguous: what an op returns must not share memory.
    fresh = torch.contiguous_format
    return numerator.clone(memory_format=fresh), denominator.clone(memory_format=fresh)


chunked_attention, chunked_forward, chunked_backward = define("chunked", _forward, _backward, _shapes)
