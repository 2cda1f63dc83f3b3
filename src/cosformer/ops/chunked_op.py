"""The chunked operator as `torch.library` ops: opaque to torch.compile and torch.export, with fake
implementations for their shapes, and gradients and vmap registered.

A state travels as the two tensors of CosformerState; inside, as the S of chunked.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cosformer.ops import chunked, packing
from cosformer.ops.angles import length_or
from cosformer.ops.buffers import width
from cosformer.ops.steps import room_for_states

_Forward = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("cosformer::chunked_forward", mutates_args=())
def chunked_forward(
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
    horizon: float | None,
    eps: float,
    need_state: bool,
    keep: bool,
) -> _Forward:
    """out, d, states kept for the backward (none unless asked), and the outgoing numerator and
    denominator (empty unless needed)."""
    with torch.autocast(q.device.type, enabled=False):
        horizon = length_or(horizon, q, k)
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


@chunked_forward.register_fake
def _(
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
    horizon: float | None,
    eps: float,
    need_state: bool,
    keep: bool,
) -> _Forward:
    batch, tq, heads, _ = q.shape
    tk, kv_heads, d, dv = *k.shape[1:], v.shape[3]
    den = q.new_empty((batch, tq, heads), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    if cu_seqlens is None:
        rows = batch
        room = room_for_states(tq, tk, offset, causal, heads, (d, dv)) if keep else 0
        kept = den.new_empty((batch, kv_heads, room))
    else:
        rows = cu_seqlens.shape[0] - 1
        kept = den.new_empty((0,))
    out = q.new_empty((batch, tq, heads, dv))
    if not need_state:
        return out, den, kept, den.new_empty((0,)), den.new_empty((0,))
    shape = (rows, kv_heads, 2, d)
    return out, den, kept, den.new_empty((*shape, dv)), den.new_empty(shape)


@torch.library.custom_op("cosformer::chunked_backward", mutates_args=())
def chunked_backward(
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
    horizon: float | None,
    eps: float,
) -> _Forward:
    """The gradients of q, k, v and of the incoming numerator and denominator (empty without them)."""
    with torch.autocast(q.device.type, enabled=False):
        horizon = length_or(horizon, q, k)
        state, grad_state = _join(numerator, denominator), _join(grad_numerator, grad_denominator)
        if cu_seqlens is None:
            *grads, dstate = chunked.backward(
                grad, grad_state, q, k, v, out, den, kept, key_mask, state, positions, causal, offset,
                horizon, eps,
            )  # fmt: skip
        else:
            *grads, dstate = packing.backward(
                grad, grad_state, q, k, v, out, den, cu_seqlens, state, positions, causal, horizon, eps
            )
        dq, dk, dv = grads
        return dq, dk, dv, *_split(dstate, v.shape[3], den)


@chunked_backward.register_fake
def _(
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
    horizon: float | None,
    eps: float,
) -> _Forward:
    dn, dd = (den.new_empty((0,) if x is None else x.shape) for x in (numerator, denominator))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dn, dd


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Forward) -> None:
    *tensors, causal, offset, horizon, eps, need_state, _ = inputs
    out, den, kept, _, _ = output
    ctx.save_for_backward(*tensors, out, den, kept)
    ctx.settings = (causal, offset, horizon, eps)
    ctx.need_state = need_state
    ctx.set_materialize_grads(False)  # the kept states have none, and they are large


def _gradient(
    ctx: Any, grad: Tensor | None, _den: Any, _kept: Any, gn: Tensor | None, gd: Tensor | None
) -> tuple[Any, ...]:
    q, k, v, key_mask, cu_seqlens, numerator, denominator, positions, out, den, kept = ctx.saved_tensors
    grad = torch.zeros_like(out) if grad is None else grad
    if gn is None and gd is not None:
        gn = gd.new_zeros((*gd.shape, v.shape[3]))
    if gd is None and gn is not None:
        gd = gn.new_zeros(gn.shape[:-1])
    transformed = torch._C._are_functorch_transforms_active()
    backward = _TransformableBackward.apply if transformed else chunked_backward
    dq, dk, dv, dn, dd = backward(
        grad, gn if ctx.need_state else None, gd if ctx.need_state else None, q, k, v, out, den, kept,
        key_mask, cu_seqlens, numerator, denominator, positions, *ctx.settings,
    )  # fmt: skip
    if numerator is None:
        dn = dd = None
    return dq, dk, dv, None, None, dn, dd, *[None] * 7


chunked_forward.register_autograd(_gradient, setup_context=_setup_context)


class _TransformableBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> _Forward:
        return chunked_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Forward) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        raise NotImplementedError("cosformer_attention has no second derivatives (chunked_backward).")


class _Transformable(torch.autograd.Function):
    """The same op for torch.func: its transforms do not see gradients registered with an op."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> _Forward:
        return chunked_forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: _Forward) -> None:
        _setup_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return _gradient(ctx, *grads)


def chunked_attention(*inputs: Any) -> _Forward:
    """`chunked_forward`, differentiable wherever it is called from."""
    if torch._C._are_functorch_transforms_active():
        return _Transformable.apply(*inputs)
    return chunked_forward(*inputs)


def _vmap(op: Any, tensors: int, cu_seqlens: int) -> Any:
    """vmap adds rows to the batch, calls the op once, and takes them apart again.

    `tensors`: how many leading arguments are tensors; `cu_seqlens`: which of them is that one.
    """

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Sequence[int]]:
        if args[cu_seqlens] is not None:
            raise NotImplementedError(
                "cosformer_attention: vmap does not go together with cu_seqlens; pack all documents "
                "into one row instead of mapping over rows."
            )
        n = info.batch_size

        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        folded = [fold(x, d) for x, d in zip(args[:tensors], in_dims, strict=False)]
        results = op(*folded, *args[tensors:])
        # One-dimensional outputs are empty: there was no state.
        unfolded = [y.unflatten(0, (n, -1)) if y.dim() > 1 else y.expand(n, *y.shape) for y in results]
        return tuple(unfolded), (0,) * len(unfolded)

    return rule


chunked_forward.register_vmap(_vmap(chunked_forward, tensors=8, cu_seqlens=4))
chunked_backward.register_vmap(_vmap(chunked_backward, tensors=14, cu_seqlens=10))


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
