"""Heads with and without windows in one call: each goes to its own functions, as views of the same tensors;
results are written in place, without concatenation."""

from typing import Protocol

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Forward, Gradients, Saved, Shape, Upstream
from cosformer.ops.windows import Extended, extended, plain_heads, windowed_heads

Triple = tuple[Tensor, Tensor, Tensor]


class HeadKernels(Protocol):
    """What a backend has to implement; `heads_at`: the axis of query heads in its denominators."""

    heads_at: int

    def plain_forward(
        self, args: AttentionArgs, out: Tensor, den: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of heads without a window: writes `out` and `den`; returns what to keep, and the outgoing numerator
        and denominator."""
        ...

    def plain_backward(
        self, args: AttentionArgs, saved: Saved, upstream: Upstream, into: Triple
    ) -> tuple[Tensor | None, Tensor | None]:
        """Writes dq, dk, dv; returns the gradients of the incoming numerator and denominator."""
        ...

    def plain_shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]: ...

    def window_forward(self, args: AttentionArgs, out: Tensor, den: Tensor) -> None:
        """Writes those heads of `out` and `den` that have a window; `args` carries no state."""
        ...

    def window_backward(self, args: AttentionArgs, saved: Saved, grad: Tensor, into: Triple) -> None: ...


class WindowedBackend:
    """A backend (autograd.py) for both kinds of heads."""

    def __init__(self, kernels: HeadKernels):
        self.kernels = kernels

    def forward(self, args: AttentionArgs) -> Forward:
        of_den, _ = self.kernels.plain_shapes(args)
        out = args.q.new_empty((*args.q.shape[:-1], args.v.shape[-1]))
        den = args.q.new_empty(of_den, dtype=args.accum_dtype)
        if args.windows is None:
            return Forward(out, den, *self.kernels.plain_forward(args, out, den))
        groups = plain_heads(args.windows)
        kept: Tensor | None = None
        numerators, denominators = [], []
        for heads in groups:
            part = part_of(args, groups, heads)
            queries = _query_heads(args, heads)
            kept, n, d = self.kernels.plain_forward(part, out[:, :, queries], self._den(den, queries))
            if n is not None and d is not None:
                numerators.append(n)
                denominators.append(d)
        x = extended(args)
        if x.tokens is None:
            self.kernels.window_forward(x.args, out, den)
        else:
            self._with_documents(x, out, den)
        kept = kept if len(groups) == 1 else None
        if not args.return_state:
            return Forward(out, den, kept, None, None)
        return Forward(out, den, kept, *_concatenated_sums(args, numerators, denominators))

    def _with_documents(self, x: Extended, out: Tensor, den: Tensor) -> None:
        """Past keys of packed documents make the row longer: the results are scattered to their places."""
        assert x.args.windows is not None
        assert x.tokens is not None
        along = 3 - self.kernels.heads_at
        every_out, every_den = x.queries(out), x.queries(den, along)
        self.kernels.window_forward(x.args, every_out, every_den)
        for head, *_ in windowed_heads(x.args.windows):
            queries = _query_heads(x.args, slice(head, head + 1))
            out[:, :, queries] = every_out[:, x.tokens, queries]
            self._den(den, queries).copy_(self._den(every_den.index_select(along, x.tokens), queries))

    def backward(self, args: AttentionArgs, saved: Saved, upstream: Upstream) -> Gradients:
        into = (torch.empty_like(args.q), torch.empty_like(args.k), torch.empty_like(args.v))
        if args.windows is None:
            return Gradients(*into, *self.kernels.plain_backward(args, saved, upstream, into))
        groups = plain_heads(args.windows)
        numerators, denominators = [], []
        for heads in groups:
            queries, state_heads = _query_heads(args, heads), _state_heads(groups, heads)
            of_forward = Saved(
                saved.out[:, :, queries],
                self._den(saved.den, queries),
                saved.kept if len(groups) == 1 else None,
            )
            of_states = (None if g is None else g[:, state_heads] for g in upstream[1:])
            n, d = self.kernels.plain_backward(
                part_of(args, groups, heads),
                of_forward,
                Upstream(upstream.out[:, :, queries], *of_states),
                (into[0][:, :, queries], into[1][:, :, heads], into[2][:, :, heads]),
            )
            if n is not None and d is not None:
                numerators.append(n)
                denominators.append(d)
        past = self._window_backward(args, saved, upstream.out, into)
        if args.numerator is None:
            return Gradients(*into, None, None, *past)
        return Gradients(*into, *_concatenated_sums(args, numerators, denominators), *past)

    def _window_backward(
        self, args: AttentionArgs, saved: Saved, grad: Tensor, into: Triple
    ) -> tuple[Tensor | None, Tensor | None]:
        """Writes the heads with a window; returns the gradients of their past keys and values."""
        assert args.windows is not None
        x = extended(args)
        if args.past_keys is None or args.past_values is None:
            self.kernels.window_backward(x.args, saved, grad, into)
            return None, None
        along = 3 - self.kernels.heads_at
        of_forward = Saved(x.queries(saved.out), x.queries(saved.den, along), None)
        dq = into[0] if x.tokens is None else torch.empty_like(x.args.q)
        dk, dv = torch.empty_like(x.args.k), torch.empty_like(x.args.v)
        self.kernels.window_backward(x.args, of_forward, x.queries(grad), (dq, dk, dv))
        past = (torch.empty_like(args.past_keys), torch.empty_like(args.past_values))
        for head in windowed_heads(args.windows):
            for made, of_past, of_call in ((dk, past[0], into[1]), (dv, past[1], into[2])):
                of_past[:, head.rows], of_call[:, :, head.head] = x.heads_of(made, head)
            if x.tokens is not None:
                queries = _query_heads(args, slice(head.head, head.head + 1))
                into[0][:, :, queries] = dq[:, x.tokens, queries]
        return past

    def shapes(self, args: AttentionArgs) -> tuple[Shape, Shape]:
        of_den, of_kept = self.kernels.plain_shapes(args)
        if args.windows is None:
            return of_den, of_kept
        groups = plain_heads(args.windows)
        if len(groups) != 1:
            return of_den, (0,)
        return of_den, self.kernels.plain_shapes(part_of(args, groups, groups[0]))[1]

    def _den(self, den: Tensor, queries: slice) -> Tensor:
        return den.narrow(self.kernels.heads_at, queries.start, queries.stop - queries.start)


def part_of(args: AttentionArgs, groups: list[slice], heads: slice) -> AttentionArgs:
    """The call of some neighbouring heads without a window."""
    state_heads = _state_heads(groups, heads)
    return args.but(
        q=args.q[:, :, _query_heads(args, heads)], k=args.k[:, :, heads], v=args.v[:, :, heads],
        numerator=None if args.numerator is None else args.numerator[:, state_heads],
        denominator=None if args.denominator is None else args.denominator[:, state_heads],
        keep=args.keep and len(groups) == 1, past_keys=None, past_values=None, windows=None,
    )  # fmt: skip


def _query_heads(args: AttentionArgs, heads: slice) -> slice:
    return slice(heads.start * args.group, heads.stop * args.group)


def _state_heads(groups: list[slice], heads: slice) -> slice:
    """Where the sums of these heads are in a state, which holds those of heads without a window alone."""
    before = sum(g.stop - g.start for g in groups if g.start < heads.start)
    return slice(before, before + heads.stop - heads.start)


def _concatenated_sums(
    args: AttentionArgs, numerators: list[Tensor], denominators: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The sums of all groups of heads; none where every head has a window."""
    if len(numerators) == 1:
        return numerators[0], denominators[0]
    if numerators:
        return torch.cat(numerators, 1), torch.cat(denominators, 1)
    shape = (args.rows, 0, 2, args.k.shape[3])
    empty = args.q.new_zeros(shape, dtype=args.accum_dtype)
    return args.q.new_zeros((*shape, args.v.shape[3]), dtype=args.accum_dtype), empty
