"""The chunked backend as an op of the library. Inside, a state is the S of attention.py."""

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Saved, Shape, Upstream, define
from cosformer.ops.chunked import attention, documents, windowed
from cosformer.ops.chunked.plan import kept_size
from cosformer.ops.chunked.workspace import width
from cosformer.ops.seen import finite
from cosformer.ops.windowed import WindowedBackend


class Chunked:
    """The functions of this backend for both kinds of heads; denominators are [B, Tq, H]."""

    heads_at = 2

    def plain_forward(
        self, args: AttentionArgs, out: Tensor, den: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        state, kept = _join(args.numerator, args.denominator), None
        if args.cu_seqlens is None:
            kept, after = attention.forward(args, state, out, den)
        else:
            after = documents.forward(args, state, out, den)
        return kept, *_split(after, args.v.shape[3])

    def plain_backward(
        self, args: AttentionArgs, saved: Saved, upstream: Upstream, into: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor | None, Tensor | None]:
        state = _join(args.numerator, args.denominator)
        grad_state = _join(upstream.numerator, upstream.denominator)
        run = attention.backward if args.cu_seqlens is None else documents.backward
        made = _split(run(args, state, saved, upstream.out, grad_state, into), args.v.shape[3])
        _masked_take_no_part(args, into)
        return made

    def plain_shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        (batch, tq, heads, d), tk, kv_heads = args.q.shape, args.k.shape[1], args.k.shape[2]
        if args.cu_seqlens is not None:
            return (batch, tq, heads), (0,)
        dims = (d, args.v.shape[3])
        size = (
            kept_size(tq, tk, args.query_offset, args.causal, heads, dims, args.q.device) if args.keep else 0
        )
        return (batch, tq, heads), (batch, kv_heads, size)

    def window_forward(self, args: AttentionArgs, out: Tensor, den: Tensor) -> None:
        windowed.forward(args, out, den)

    def window_backward(
        self, args: AttentionArgs, saved: Saved, grad: Tensor, into: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        windowed.backward(args, saved, grad, into)
        _masked_take_no_part(args, into)


def _masked_take_no_part(args: AttentionArgs, into: tuple[Tensor, Tensor, Tensor]) -> None:
    """Masked keys have no gradient, not even where a query is NaN: zero times NaN is NaN."""
    if args.key_mask is not None and not (finite(into[1]) and finite(into[2])):
        for x in into[1:]:
            x.masked_fill_(~args.key_mask[..., None, None], 0)


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


def _split(state: Tensor | None, dv: int) -> tuple[Tensor | None, Tensor | None]:
    if state is None:
        return None, None
    numerator = state[..., : 2 * dv].unflatten(-1, (2, dv)).transpose(2, 3)
    denominator = state[..., 2 * dv : 2 * dv + 2].mT
    # Copies even where the views are contiguous: what an op returns must not share memory.
    fresh = torch.contiguous_format
    return numerator.clone(memory_format=fresh), denominator.clone(memory_format=fresh)


chunked_attention, chunked_forward, chunked_backward = define("chunked", WindowedBackend(Chunked()))
