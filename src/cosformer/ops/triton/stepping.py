"""One token a row after a state that is overwritten: heads without a window by their sums, heads with one by
their last keys and values."""

from contextlib import nullcontext

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.side_stream import side_stream
from cosformer.ops.gpu.windows import launch
from cosformer.ops.gpu.windows.heads import on_device, table_of
from cosformer.ops.triton import run
from cosformer.ops.windowed import part_of
from cosformer.ops.windows import plain_heads


def step(args: AttentionArgs, *, advance: bool = False) -> Tensor:
    """o [B, 1, H, Dv]; numerator, denominator, past keys and past values of `args` are overwritten, and
    positions `advance` by one. In a CUDA graph the two kinds of heads are computed beside each other; outside
    of one, a second stream would cost more than it saves."""
    carried = (args.numerator, args.denominator, args.past_keys, args.past_values)
    if not all(x is None or x.is_contiguous() for x in carried):
        raise ValueError("a state that is updated in place must be contiguous; call state.clone() first.")
    with on_device(args.q):
        if args.windows is None:
            out = _plain_step(args)
            _advance(args, advance)
            return out
        assert args.past_keys is not None
        assert args.past_values is not None
        out = args.q.new_empty((*args.q.shape[:3], args.v.shape[3]))
        side = None
        if args.q.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
            side = side_stream(args.q.device)
            side.fork()
        with nullcontext() if side is None else torch.cuda.stream(side.stream):
            groups = plain_heads(args.windows)
            for heads in groups:
                queries = slice(heads.start * args.group, heads.stop * args.group)
                _plain_step(part_of(args, groups, heads), out[:, :, queries])
            _advance(args, advance)
        launch.decode(
            args.q, args.k, args.v, out, args.past_keys, args.past_values, table_of(args), args.key_mask,
            args.eps,
        )  # fmt: skip
        if side is not None:
            side.join()
        return out


def _advance(args: AttentionArgs, advance: bool) -> None:
    if advance:
        assert args.positions is not None
        args.positions.add_(1)


def _plain_step(args: AttentionArgs, into: Tensor | None = None) -> Tensor:
    numerator, denominator, positions = args.numerator, args.denominator, args.positions
    assert numerator is not None
    assert denominator is not None
    assert positions is not None
    # The sums of some heads among others are a copy, which is copied back.
    state = State.of(numerator, denominator)
    out = run.step(args.q, args.k, args.v, args.key_mask, state, positions, into, args.m, args.eps)
    if state.s is not numerator:
        numerator.copy_(state.s)
    if state.z is not denominator:
        denominator.copy_(state.z)
    return out
