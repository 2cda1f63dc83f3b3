"""Several documents in one row (`cu_seqlens`): each is computed as if it were alone (ops/packing.py says how
they are put together). States and positions have one row a document."""

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Saved
from cosformer.ops.chunked import attention
from cosformer.ops.chunked.workspace import width
from cosformer.ops.packing import Bundle, bundles, check_documents, document_bounds


def forward(args: AttentionArgs, state: Tensor | None, out: Tensor, den: Tensor) -> Tensor | None:
    """As attention.forward; nothing is kept."""
    assert args.cu_seqlens is not None
    bounds = check_documents(args.cu_seqlens, args.q.shape[1], args.positions, args.m)
    after = None
    if args.return_state:
        shape = (args.rows, args.k.shape[2], args.k.shape[3], width(args.v.shape[3]))
        dtype, device = args.accum_dtype, args.q.device
        after = torch.zeros(shape, dtype=dtype, device=device) if state is None else state.clone()
    for b in bundles(bounds, args.q.device):
        alone, initial_state = _alone(args, b), _at(state, b)
        o = alone.q.new_empty((*alone.q.shape[:-1], args.v.shape[-1]))
        d = alone.q.new_empty(alone.q.shape[:-1], dtype=args.accum_dtype)
        _, s = attention.forward(alone, initial_state, o, d)
        b.put(out, o)
        b.put(den, d)
        if after is not None and s is not None:
            after[b.documents] = s
    return after


def backward(
    args: AttentionArgs, state: Tensor | None, saved: Saved, grad: Tensor, grad_state: Tensor | None,
    into: tuple[Tensor, Tensor, Tensor],
) -> Tensor | None:  # fmt: skip
    """As attention.backward, document by document."""
    assert args.cu_seqlens is not None
    dstate = None if state is None else torch.zeros_like(state)
    if dstate is not None and grad_state is not None:
        dstate.copy_(grad_state)  # what an empty document passes on
    for b in bundles(document_bounds(args.cu_seqlens, args.q.shape[1]), args.q.device):
        alone, g = _alone(args, b), b.take(grad)
        if b.real is not None:
            g = g.masked_fill(~b.real[..., None, None], 0)
        made = (torch.empty_like(alone.q), torch.empty_like(alone.k), torch.empty_like(alone.v))
        of_forward = Saved(b.take(saved.out), b.take(saved.den), None)
        ds = attention.backward(alone, _at(state, b), of_forward, g, _at(grad_state, b), made)
        for whole, part in zip(into, made, strict=True):
            b.put(whole, part)
        if dstate is not None and ds is not None:
            dstate[b.documents] = ds
    return dstate


def _alone(args: AttentionArgs, b: Bundle) -> AttentionArgs:
    """The documents of a bundle as rows of a batch."""
    return args.but(
        q=b.take(args.q), k=b.take(args.k), v=b.take(args.v), key_mask=b.real, cu_seqlens=None,
        positions=_at(args.positions, b), query_offset=0, keep=False,
    )  # fmt: skip


def _at(x: Tensor | None, b: Bundle) -> Tensor | None:
    return None if x is None else x[b.documents]
