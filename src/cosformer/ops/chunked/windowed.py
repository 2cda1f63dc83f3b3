"""Heads with a window in plain PyTorch, linear in the length for every window: forward and backward, each as
sums of one kind (window_sums.py). A wide window that sees all of a short text is computed as a head without
one is (attention.py), with the window for its horizon.

With x' = ReLU(x), v1 = [v, 1], g = dL/do, inv_den_i = 1 / max(d_i, eps), delta_i = -(g_i . o_i) (0 where
eps holds d_i), g1 = [g, delta] and the sum Y(a, b, c)_i = sum_j c(i - j) (a_i . b_j) c_j over the window:

    [n, d] = Y(q', k', v1)           o = inv_den n
    dq' = inv_den Y(g1, v1, k')      dk' = Y(v1, g1, inv_den q')      dv = Y(k', q', inv_den g)

the last two over the queries that see a key: the window looks the other way. Where g1 . v1 cancels, what
rounding leaves of it is taken out (residual.py).

A weight of zero times NaN is NaN. Where a result is not finite, it is computed again with all that is not
finite left out and every product beyond the window set to zero, and rows that could see such an operand
become NaN: what lies beyond the window, in another document or behind a mask has no influence, whatever it
holds.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Saved
from cosformer.ops.chunked import attention
from cosformer.ops.chunked.residual import residual, span
from cosformer.ops.chunked.window_sums import (
    KEPT,
    Reach,
    column_sum,
    form,
    parts,
    square,
    weigh,
    weights_of,
    windowed_sum,
)
from cosformer.ops.chunked.workspace import SMALL, scratch
from cosformer.ops.packing import Bundle, bundles, document_bounds
from cosformer.ops.seen import finite
from cosformer.ops.windows import NARROW

Triple = tuple[Tensor, Tensor, Tensor]
SHORT = 32  # queries or keys: fewer make no whole tile of a band
MERGED = 32  # tokens


class Group(NamedTuple):
    """Neighbouring key heads that are computed together: with the same window, or small ones with several of
    at most MERGED tokens, where a call costs more than its numbers do. `windows`: of each head, or one of
    all."""

    heads: slice
    windows: tuple[int, ...]

    def queries(self, per_key: int) -> slice:
        """The query heads that share these key heads."""
        return slice(self.heads.start * per_key, self.heads.stop * per_key)


def forward(args: AttentionArgs, out: Tensor, den: Tensor) -> None:
    """Writes the heads with a window of `out` [B, Tq, H, Dv] and `den` [B, Tq, H]."""
    if args.cu_seqlens is not None:
        for b in bundles(document_bounds(args.cu_seqlens, args.q.shape[1]), args.q.device):
            o, d = b.take(out).clone(), b.take(den).clone()
            forward(_alone(args, b), o, d)
            b.put(out, o)
            b.put(den, d)
        return
    for group in _groups(args):
        if _sees_all(args, group):
            heads = group.queries(args.group)
            attention.forward(_plain(args, group), None, out[:, :, heads], den[:, :, heads])
            continue
        x = Operands(args, group)
        for g in range(args.group):
            n, d = x.forward(x.queries(args.q, g, "q"))
            x.write(out, g, n / d.clamp_min(args.eps))
            x.write(den.unsqueeze(-1), g, d)


def backward(args: AttentionArgs, saved: Saved, grad: Tensor, into: Triple) -> None:
    """Writes the heads with a window of dq, dk, dv."""
    if args.cu_seqlens is not None:
        for b in bundles(document_bounds(args.cu_seqlens, args.q.shape[1]), args.q.device):
            of_rows = b.take(grad)
            if b.real is not None:
                of_rows = of_rows.masked_fill(~b.real[..., None, None], 0)
            dq, dk, dv = (b.take(x).clone() for x in into)
            made = (dq, dk, dv)
            backward(_alone(args, b), Saved(b.take(saved.out), b.take(saved.den), None), of_rows, made)
            for whole, part in zip(into, made, strict=True):
                b.put(whole, part)
        return
    for group in _groups(args):
        if _sees_all(args, group):
            heads, of_keys = group.queries(args.group), group.heads
            made = (into[0][:, :, heads], into[1][:, :, of_keys], into[2][:, :, of_keys])
            own = Saved(saved.out[:, :, heads], saved.den[:, :, heads], None)
            attention.backward(_plain(args, group), None, own, grad[:, :, heads], None, made)
            continue
        x = Operands(args, group)
        dk = dv = x.k
        for g in range(args.group):
            rows = {"q": args.q, "g": grad, "o": saved.out, "d": saved.den.unsqueeze(-1)}
            dq, dk_g, dv_g = x.backward(*(x.queries(y, g, name) for name, y in rows.items()))
            x.write(into[0], g, dq)
            if args.group > 1 and g == 0:
                dk_g, dv_g = dk_g.clone(), dv_g.clone()
            dk, dv = (dk_g, dv_g) if g == 0 else (dk.add_(dk_g), dv.add_(dv_g))
        x.write_keys(into[1], dk)
        x.write_keys(into[2], dv)


class Operands:
    """The keys of a group of heads, [N, T, .] with N = B times the heads, in the type of the sums. Queries
    that see no key are left out, and keys that no query sees: of a long past, a narrow window reads a few.
    `exact`: whether products beyond the window may be inf."""

    def __init__(self, args: AttentionArgs, group: Group):
        self.group, self.per_key = group, args.group
        self.eps = args.eps
        back, offset = max(group.windows) - 1, args.query_offset
        reach = Reach(group.windows, back, 0 if args.causal else back, offset)
        rows, columns = args.q.shape[1], args.k.shape[1]
        self.seeing, self.seen = _that_see(rows, columns, reach), _that_see(columns, rows, reach.transposed())
        self.reach = reach._replace(offset=offset + self.seeing.start - self.seen.start)
        self.exact = False
        self.batch, self.like = args.q.shape[0], args.q.new_empty(0, dtype=args.accum_dtype)
        self.heads = group.heads.stop - group.heads.start
        k, v = (x[:, self.seen, group.heads] for x in (args.k, args.v))
        self.k, v = self._flat(k, "k"), self._flat(v, "v")
        self.dv = v.shape[2]
        if args.key_mask is not None:
            hidden = ~args.key_mask[:, self.seen].repeat_interleave(self.heads, 0).unsqueeze(-1)
            self.k, v = self.k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
        self.v1 = _with_columns("v1", v, 1.0, 1.0)

    def queries(self, x: Tensor, g: int, name: str) -> Tensor:
        """Head g of those that share a key head, of a tensor [B, Tq, H, .]."""
        return self._flat(x[:, self.seeing, self._of(g)], name)

    def write(self, into: Tensor, g: int, x: Tensor) -> None:
        self._put(into[:, :, self._of(g)], self.seeing, x)

    def write_keys(self, into: Tensor, x: Tensor) -> None:
        self._put(into[:, :, self.group.heads], self.seen, x)

    def _put(self, into: Tensor, own: slice, x: Tensor) -> None:
        if x.shape[1] < into.shape[1]:
            into.zero_()
        into[:, own] = x.unflatten(0, (self.batch, -1)).transpose(1, 2)

    def _of(self, g: int) -> slice:
        queries = self.group.queries(self.per_key)
        return slice(queries.start + g, queries.stop, self.per_key)

    def _flat(self, x: Tensor, name: str) -> Tensor:
        """[B, T, heads, n] as [N, T, n]: a view of one row of a batch, else memory of that name."""
        b, t, h, n = x.shape
        if b == 1 and x.dtype == self.like.dtype:
            return x[0].transpose(0, 1)
        made = scratch(name, (b * h, t, n), self.like)
        made.view(b, h, t, n).copy_(x.transpose(1, 2))
        return made

    def forward(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """n [N, Tq, Dv] and d [N, Tq, 1]."""
        y = self._rows(_relu(q, "q'"), _relu(self.k, "k'"), self.v1, "y")
        if not finite(y):
            self.exact = True
            bad, bad_keys = _not_finite(q.relu()), _not_finite(self.k.relu()) | _not_finite(self.v1)
            k, v1 = (x.masked_fill(bad_keys, 0) for x in (self.k, self.v1))
            y = self._rows(q.masked_fill(bad, 0).relu(), k.relu(), v1, "y")
            y = y.masked_fill(self._sees_any(bad) | self._sees(bad_keys, q.shape[1]), torch.nan)
        return y[..., : self.dv], y[..., self.dv : self.dv + 1]

    def backward(self, q: Tensor, g: Tensor, out: Tensor, d: Tensor) -> Triple:
        """dq, dk, dv of one head of queries."""
        made = self._backward(q, g, out, d, self.k, self.v1)
        if all(map(finite, made)):
            return made
        self.exact = True
        # A row whose gradient is zero takes no part, whatever it holds.
        used = (g != 0).any(-1, keepdim=True)
        bad = used & (_not_finite(q.relu()) | _not_finite(g) | _not_finite(out) | _not_finite(d))
        bad_keys = _not_finite(self.k.relu()) | _not_finite(self.v1)
        left_out = bad | ~used
        q, g, out, d = (x.masked_fill(left_out, 0) for x in (q, g, out, d))
        k, v1 = (x.masked_fill(bad_keys, 0) for x in (self.k, self.v1))
        dq, dk, dv = self._backward(q, g, out, d, k, v1)
        lost = self._sees_any(bad) | (used & self._sees(bad_keys, q.shape[1]))
        lost_keys = self._is_seen(bad, k.shape[1]) | (bad_keys & self._is_seen(used, k.shape[1]))
        return (
            dq.masked_fill(lost, torch.nan),
            dk.masked_fill(lost_keys, torch.nan),
            dv.masked_fill(lost_keys, torch.nan),
        )

    def _backward(self, q: Tensor, g: Tensor, out: Tensor, d: Tensor, k: Tensor, v1: Tensor) -> Triple:
        inv_den = d.clamp_min(self.eps).reciprocal()
        free = (d >= self.eps).to(d.dtype).neg_()  # 0 where eps holds d, -1 elsewhere
        products = torch.mul(g, out, out=scratch("products", tuple(g.shape), g))
        delta = products.sum(-1, keepdim=True).neg_().masked_fill_(d < self.eps, 0)
        q_, k_ = _relu(q, "q'"), _relu(k, "k'")
        sums = self._square_sums if self._is_square(q.shape[1], k.shape[1]) else self._linear_sums
        dq, dk, dv = sums(q_, k_, v1, g, delta, inv_den, free)
        gate = torch.ops.aten.threshold_backward.grad_input
        return gate(dq.mul_(inv_den), q_, 0, grad_input=dq), gate(dk, k_, 0, grad_input=dk), dv

    def _linear_sums(
        self, q_: Tensor, k_: Tensor, v1: Tensor, g: Tensor, delta: Tensor, inv_den: Tensor, free: Tensor
    ) -> Triple:
        """dq' / inv_den, dk' and dv."""
        g1 = _with_columns("g1", g, delta, 0.0)
        dq = self._rows(g1, v1, k_, "dq")
        rho = residual(q_, dq, free, scratch("products", tuple(q_.shape), q_))
        if rho is not None:
            change, some = rho * inv_den, span(rho, 1)
            # What d_i is the product of q'_i with.
            own = change[:, some]
            sums = own * column_sum(k_, self.reach, q_.shape[1], some, "sums")
            dq[:, some] += sums.masked_fill_(own == 0, 0)  # a sum may be inf that this row has no part in
            # Added last, where g . v and the rest of delta have cancelled: beside delta it would be lost.
            corrected = delta + change
            g1[..., self.dv : self.dv + 1] = corrected
            g1[..., self.dv + 1 : self.dv + 2] = (delta - corrected).add_(change)
        weighted = torch.mul(inv_den, q_, out=scratch("inv_den q'", tuple(q_.shape), q_))
        dk = self._columns(v1, g1, weighted, "dk")
        # The products of q' and k' as the forward made them: inv_den undoes them exactly where there is one
        # alone.
        weighted = torch.mul(inv_den, g, out=scratch("inv_den g", tuple(g.shape), g))
        return dq, dk, self._columns(k_, q_, weighted, "dv")

    def _is_square(self, rows: int, columns: int) -> bool:
        """Whether all pairs are computed: of few queries or keys, and where the sums are squares anyway."""
        if min(rows, columns) < SHORT and rows * columns <= KEPT:
            return True
        return form(rows, columns, self.reach, self.like.device) == "square"

    def _square_sums(
        self, q_: Tensor, k_: Tensor, v1: Tensor, g: Tensor, delta: Tensor, inv_den: Tensor, free: Tensor
    ) -> Triple:
        """The same over all pairs of queries and keys, some heads at a time."""
        rows, columns = q_.shape[1], k_.shape[1]
        weights = weights_of(rows, columns, self.reach, k_)
        if len(self.reach.windows) > 1:
            weights = weights.repeat(self.batch, 1, 1)
        g1 = _with_columns("g1", g, delta, 0.0)
        dq, dk = torch.empty_like(q_), torch.empty_like(k_)
        dv = g.new_empty((*k_.shape[:2], self.dv))
        for n in parts(q_.shape[0], rows * columns, q_.device):
            of_each = weights if weights.dim() == 2 else weights[n]
            a = weigh(torch.bmm(g1[n], v1[n].mT, out=square(g1[n], v1[n])), of_each, self.exact)
            torch.bmm(a, k_[n], out=dq[n])
            rho = residual(q_[n], dq[n], free[n], scratch("products", tuple(q_[n].shape), q_))
            if rho is not None:
                change = rho.mul_(inv_den[n])
                dq[n].add_((change * torch.matmul(of_each, k_[n])).masked_fill_(change == 0, 0))
                a.addcmul_(change, of_each)
                if self.exact:
                    a.masked_fill_(of_each == 0, 0)
            torch.bmm(a.mT, inv_den[n] * q_[n], out=dk[n])
            p = weigh(torch.bmm(q_[n], k_[n].mT, out=square(q_[n], k_[n])), of_each, self.exact)
            torch.bmm(p.mT, inv_den[n] * g[n], out=dv[n])
        return dq, dk, dv

    def _rows(self, a: Tensor, b: Tensor, c: Tensor, name: str) -> Tensor:
        """Y(a, b, c) of the queries, over keys."""
        return windowed_sum(a, b, c, self.reach, name, self.exact)

    def _columns(self, a: Tensor, b: Tensor, c: Tensor, name: str) -> Tensor:
        """Y(a, b, c) of the keys, over the queries that see them."""
        return windowed_sum(a, b, c, self.reach.transposed(), name, self.exact)

    def _sees(self, marked: Tensor, length: int) -> Tensor:
        """Which of `length` queries see a marked key [N, T, 1]."""
        return _see_any(marked, length, self.reach)

    def _sees_any(self, marked: Tensor) -> Tensor:
        """Which of the marked queries see a key at all."""
        return marked & self._sees(marked.new_ones((marked.shape[0], self.k.shape[1], 1)), marked.shape[1])

    def _is_seen(self, marked: Tensor, length: int) -> Tensor:
        """Which of `length` keys are seen by a marked query."""
        return _see_any(marked, length, self.reach.transposed())


def _that_see(rows: int, columns: int, reach: Reach) -> slice:
    """The rows that see a column; else an empty slice."""
    first = max(0, -reach.ahead - reach.offset)
    last = min(rows, columns + reach.back - reach.offset)
    return slice(first, last) if columns and first < last else slice(0, 0)


def _see_any(marked: Tensor, length: int, reach: Reach) -> Tensor:
    """Which of `length` rows see a column of marked [N, T, 1] that is set."""
    total = torch.nn.functional.pad(marked.to(torch.int32).cumsum(1), (0, 0, 1, 0))
    total = total.unflatten(0, (-1, len(reach.windows)))
    at = reach.offset + torch.arange(length, device=marked.device)
    found = []
    for n, w in enumerate(reach.windows):
        first = (at - min(reach.back, w - 1)).clamp(0, marked.shape[1])
        last = (at + min(reach.ahead, w - 1) + 1).clamp(0, marked.shape[1])
        found.append(total[:, n, last] > total[:, n, first])
    return torch.stack(found, 1).flatten(0, 1)


def _not_finite(x: Tensor) -> Tensor:
    return ~x.isfinite().all(-1, keepdim=True)


def _relu(x: Tensor, name: str) -> Tensor:
    return torch.clamp_min(x, 0, out=scratch(name, tuple(x.shape), x))


def _with_columns(name: str, x: Tensor, *more: Tensor | float) -> Tensor:
    """[x, more ..., 0 ...], filled up to whole registers."""
    used = x.shape[2] + len(more)
    wider = scratch(name, (x.shape[0], x.shape[1], -(-used // 16) * 16), x)
    wider[..., : x.shape[2]] = x
    for at, column in enumerate(more, x.shape[2]):
        wider[..., at : at + 1] = column
    wider[..., used:] = 0
    return wider


def _groups(args: AttentionArgs) -> Iterator[Group]:
    windows = args.windows
    assert windows is not None
    first = 0
    for head in range(1, len(windows) + 1):
        own = windows[first:head]
        if head < len(windows) and (
            {*own, windows[head]} == {own[0]} or _go_together(args, (*own, windows[head]))
        ):
            continue
        if own[0]:
            yield Group(slice(first, head), own if len(set(own)) > 1 else own[:1])
        first = head


def _go_together(args: AttentionArgs, windows: tuple[int, ...]) -> bool:
    """Whether heads with these windows are narrow, and small all together."""
    size = len(windows) * math.prod(args.q.shape[:2]) * max(args.q.shape[3], args.v.shape[3], 64)
    return size <= SMALL and all(0 < w <= MERGED for w in windows)


def _sees_all(args: AttentionArgs, group: Group) -> bool:
    """Whether all positions of a call lie within one wide window: it ends nothing then, no angle passes pi/2,
    and what nothing sees is short. Narrow ones are squares (window_sums.py)."""
    window = group.windows[0]
    if len(group.windows) > 1 or window <= NARROW:
        return False
    offset = args.query_offset
    return max(offset + args.q.shape[1], args.k.shape[1]) - min(offset, 0) <= window


def _plain(args: AttentionArgs, group: Group) -> AttentionArgs:
    """The call of a group whose window is a horizon."""
    return args.but(
        q=args.q[:, :, group.queries(args.group)], k=args.k[:, :, group.heads], v=args.v[:, :, group.heads],
        horizon=float(group.windows[0]), keep=False, windows=None,
    )  # fmt: skip


def _alone(args: AttentionArgs, b: Bundle) -> AttentionArgs:
    """The documents of a bundle as rows of a batch."""
    return args.but(
        q=b.take(args.q), k=b.take(args.k), v=b.take(args.v), key_mask=b.real, cu_seqlens=None, query_offset=0
    )
