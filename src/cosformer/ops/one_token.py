"""One token per row after a state: on CUDA devices a kernel, else a few operations of PyTorch, whose number
does not depend on the past.

With x' = ReLU(x) and phi(x) = [x' cos theta, x' sin theta] at the position of the token:

    S += phi(k) v^T,   z += phi(k),   o = phi(q) S / max(phi(q) . z, eps)

for heads without a window; for those with a window W, over the last W keys at distances d_j,

    o = sum_j w_j v_j / max(sum_j w_j, eps),   w_j = (q' . k'_j) cos((pi/2) d_j/W)

On a CPU the past keys of all heads with a window are computed together: each head by itself would be few
numbers and many operations.

Nothing is validated here: the caller has done so once for all layers of a model.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.angles import angle
from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import is_traced
from cosformer.ops.backends import can_serve
from cosformer.ops.state import CosformerState
from cosformer.ops.windows import fits_step, rows_of_state

USE_KERNEL = True  # on CUDA devices; a compiler may fuse the plain operations instead
MOST_TOGETHER = 2**17  # heads times past keys of a row that are computed together


class StepWeights:
    """Shared by all layers of a call: the cosines of tokens at positions [B], computed once, and, for static
    states that grow, the column [1] that the token is written to."""

    def __init__(self, positions: Tensor, column: Tensor | None = None):
        self.positions, self.column = positions, column
        self._phases: dict[tuple[float, torch.dtype], Tensor] = {}
        self._windows: dict[tuple[int, torch.dtype], Tensor] = {}
        self._places: dict[tuple[tuple[int | None, ...], torch.dtype], tuple[Tensor, Tensor]] = {}

    def phases(self, horizon: float, dtype: torch.dtype) -> Tensor:
        """[cos, sin] of (pi/2) i / M: [B, 1, 2, 1]."""
        found = self._phases.get((horizon, dtype))
        if found is None:
            theta = angle(self.positions, horizon)
            found = torch.stack((theta.cos(), theta.sin()), -1).to(dtype)[:, None, :, None]
            self._phases[horizon, dtype] = found
        return found

    def window(self, window: int, dtype: torch.dtype) -> Tensor:
        """cos((pi/2) d/W) of the last W - 1 keys, in the order of a state: [B, W - 1]."""
        found = self._windows.get((window, dtype))
        if found is None:
            row = torch.arange(window - 1, device=self.positions.device)
            distance = (self.positions[:, None] - row - 1).remainder(window - 1) + 1
            found = angle(distance, window).cos().to(dtype)
            self._windows[window, dtype] = found
        return found

    def places(self, windows: tuple[int | None, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """On the CPU: the cosine of each of the P past keys that all heads carry, [B, P], and the row that
        each head with more than one token of sight writes its new key to."""
        found = self._places.get((windows, dtype))
        if found is None:
            of = past_of(windows, dtype)
            nearer = (self.positions[:, None] - of.row - 1).remainder_(of.size)  # the distance less one
            to = self.positions[:, None].remainder(of.size[of.first]).add_(of.first)
            found = of.cosine[nearer.add_(of.first_of)], to
            self._places[windows, dtype] = found
        return found


def one_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: CosformerState,
    into: CosformerState,
    weights: StepWeights,
    eps: float,
) -> Tensor:
    """o [B, 1, H, Dv] for q [B, 1, H, D], k [B, 1, Hk, D], v [B, 1, Hk, Dv]. The sums, keys and values after
    the token are written to `into`, which may be `state` itself; positions are left alone."""
    if q.is_cuda and USE_KERNEL:
        args = _args(q, k, v, into, weights.positions, eps)
        if has_kernel(args, state.seen):
            return _by_kernel(args, state, into)
    batch, _, heads, dim = q.shape
    kv_heads, dtype = k.shape[2], state.numerator.dtype
    of_q = q.to(dtype).relu().reshape(batch, kv_heads, heads // kv_heads, dim)
    if state.windows is None:
        assert state.horizon is not None
        out = _sums(of_q, k[:, 0].to(dtype), v[:, 0].to(dtype), state, into, slice(None),
                    weights.phases(state.horizon, dtype), eps)  # fmt: skip
        return out.to(q.dtype).view(batch, 1, heads, -1)
    assert state.keys is not None
    assert state.values is not None
    assert into.keys is not None
    assert into.values is not None
    if q.device.type == "cpu" and not is_traced(q, k, v):
        together = _in_one_product(of_q, k[:, 0], v[:, 0], state, into, weights, eps)
        if together is not None:
            return together.to(q.dtype).view(batch, 1, heads, -1)
    if into is not state:
        into.keys.copy_(state.keys)
        into.values.copy_(state.values)
    parts: list[Tensor] = []
    plain = row = 0
    for first, last, window in _neighbours(state.windows):
        heads_of, count = slice(first, last), last - first
        if window is None:
            assert state.horizon is not None
            sums = slice(plain, plain + count)
            out = _sums(of_q[:, heads_of], k[:, 0, heads_of].to(dtype), v[:, 0, heads_of].to(dtype), state,
                        into, sums, weights.phases(state.horizon, dtype), eps)  # fmt: skip
            plain += count
        else:
            rows = slice(row, row + count * (window - 1))
            new_k, new_v = k[:, 0, heads_of], v[:, 0, heads_of]
            past_k, past_v = (_by_head(x[:, rows], count) for x in (state.keys, state.values))
            w = of_q[:, heads_of] @ past_k.to(dtype).relu().mT * weights.window(window, dtype)[:, None, None]
            own = (of_q[:, heads_of] * new_k.to(dtype).relu().unsqueeze(2)).sum(-1, keepdim=True)
            out = w @ past_v.to(dtype) + own * new_v.to(dtype).unsqueeze(2)
            out = out / (w.sum(-1, keepdim=True) + own).clamp_min(eps)
            if window > 1:
                at = weights.positions.remainder(window - 1)[:, None, None, None]
                for x, new in ((into.keys, new_k), (into.values, new_v)):
                    new = new.unsqueeze(2).to(x.dtype)
                    _by_head(x[:, rows], count).scatter_(2, at.expand_as(new), new)
            row = rows.stop
        parts.append(out)
    return torch.cat(parts, 1).to(q.dtype).view(batch, 1, heads, -1)


def has_kernel(args: AttentionArgs, seen: int) -> bool:
    """Whether `step` (ops/triton/stepping.py) serves a call on a CUDA device."""
    return can_serve("triton", args, seen) and (args.windows is None or fits_step(args.windows))


def _args(
    q: Tensor, k: Tensor, v: Tensor, state: CosformerState, positions: Tensor, eps: float
) -> AttentionArgs:
    windows = None if state.windows is None else tuple(w or 0 for w in state.windows)
    return AttentionArgs.of_token(
        q, k, v, state.numerator, state.denominator, positions, state.horizon, eps, state.keys, state.values,
        windows,
    )  # fmt: skip


def _by_kernel(args: AttentionArgs, state: CosformerState, into: CosformerState) -> Tensor:
    """The kernel works in place: where the result goes to other tensors, the state is copied there first."""
    from cosformer.ops.triton.token_op import step_token

    if into is not state:
        for name in ("numerator", "denominator", "keys", "values"):
            old, new = getattr(state, name), getattr(into, name)
            if new is not None:
                new.copy_(old)
    return step_token(args)


def _sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: CosformerState,
    into: CosformerState,
    heads: slice,
    phases: Tensor,
    eps: float,
) -> Tensor:
    """o [B, Hn, G, Dv] of heads without a window: q [B, Hn, G, D], k [B, Hn, D], v [B, Hn, Dv]."""
    numerator, denominator = into.numerator[:, heads], into.denominator[:, heads]
    phi = k.relu().unsqueeze(2) * phases  # (B, Hn, 2, D)
    outer = (phi.unsqueeze(-1), v[:, :, None, None])
    if into is state:
        denominator.add_(phi)
        numerator.addcmul_(*outer)
    else:
        torch.add(state.denominator[:, heads], phi, out=denominator)
        torch.addcmul(state.numerator[:, heads], *outer, out=numerator)
    of_q = (q.unsqueeze(3) * phases.unsqueeze(2)).flatten(3)  # (B, Hn, G, 2D)
    d = of_q @ denominator.flatten(2).unsqueeze(-1)
    return of_q @ numerator.flatten(2, 3) / d.clamp_min(eps)


class Past(NamedTuple):
    """Of n heads with a window and the P past keys that their state holds: which of the n heads each belongs
    to, which row of that head it is, how many rows and which first row that head has, [P]; the cosines of the
    distances 1 ... W - 1, head by head, [P]; the first row of each head that has any, and which of the n
    those are; the heads with a window and those without, among all."""

    head: Tensor
    row: Tensor
    size: Tensor
    first_of: Tensor
    cosine: Tensor
    first: Tensor
    holding: Tensor
    windowed: Tensor
    plain: Tensor


@cache
def past_of(windows: tuple[int | None, ...], dtype: torch.dtype) -> Past:
    """On the CPU, whatever the default device is when they are first asked for."""
    sizes = [window for window in windows if window is not None]
    with torch.inference_mode(False), torch.device("cpu"):
        past = torch.tensor([size - 1 for size in sizes], dtype=torch.long)
        first = past.cumsum(0) - past
        rows = rows_of_state(tuple(window or 0 for window in windows), torch.device("cpu"))
        cosines = [angle(torch.arange(1, size), size).cos().to(dtype) for size in sizes]
        holding = past.nonzero().flatten()
        heads = torch.tensor([window is not None for window in windows])
        return Past(
            torch.arange(len(sizes)).repeat_interleave(past), *rows, torch.cat(cosines), first[holding],
            holding, heads.nonzero().flatten(), heads.logical_not().nonzero().flatten(),
        )  # fmt: skip


def _in_one_product(
    q: Tensor, k: Tensor, v: Tensor, state: CosformerState, into: CosformerState, weights: StepWeights,
    eps: float,
) -> Tensor | None:  # fmt: skip
    """o [B, Hk, G, Dv] of q [B, Hk, G, D], k [B, Hk, D] and v [B, Hk, Dv]. The weights of all past keys are
    one matrix, a row a head, with zeros for the keys of the other heads. None, and nothing is written, where
    that matrix would be large, or a number is not finite: zero times NaN would be NaN in every head."""
    assert state.windows is not None
    assert state.keys is not None
    assert state.values is not None
    dtype, (batch, kv_heads, group, _) = state.numerator.dtype, q.shape
    where = past_of(state.windows, dtype)
    n, past = len(where.windowed), len(where.head)
    if n * past > MOST_TOGETHER:
        return None
    mixed = n < kv_heads
    all_q, all_k, all_v = q, k, v
    if mixed:
        q, k, v = (x.index_select(1, where.windowed) for x in (q, k, v))
    new_k, new_v = k.to(dtype), v.to(dtype)
    cosine, to = weights.places(state.windows, dtype)
    scores = (state.keys.to(dtype).relu().unsqueeze(2) * q.index_select(1, where.head)).sum(-1)
    scores = (scores * cosine[..., None]).mT.unsqueeze(1)  # (B, 1, G, P)
    row_of = where.head.expand(batch, 1, group, past)
    matrix = scores.new_zeros(batch, n, group, past).scatter_(1, row_of, scores)
    own = (q * new_k.relu().unsqueeze(2)).sum(-1, keepdim=True)  # (B, n, G, 1)
    total = matrix.sum(-1, keepdim=True) + own
    out = (matrix.view(batch, n * group, past) @ state.values.to(dtype)).view(batch, n, group, -1)
    out = (out + own * new_v.unsqueeze(2)) / total.clamp_min(eps)
    if not out.isfinite().all():
        return None
    assert into.keys is not None
    assert into.values is not None
    for old, after, new in ((state.keys, into.keys, k), (state.values, into.values, v)):
        if after is not old:
            after.copy_(old)
        new = new.index_select(1, where.holding).to(after.dtype)
        after.scatter_(1, to[..., None].expand_as(new), new)
    if not mixed:
        return out
    assert state.horizon is not None
    of_plain = [x.index_select(1, where.plain) for x in (all_q, all_k.to(dtype), all_v.to(dtype))]
    phases = weights.phases(state.horizon, dtype)
    sums = _sums(of_plain[0], of_plain[1], of_plain[2], state, into, slice(None), phases, eps)
    whole = out.new_empty(batch, kv_heads, group, out.shape[-1])
    return whole.index_copy_(1, where.windowed, out).index_copy_(1, where.plain, sums)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Rows [B, n (W - 1), .] of n heads as [B, n, W - 1, .], a view."""
    return x.view(x.shape[0], heads, x.shape[1] // heads, x.shape[2])


def _neighbours(windows: tuple[int | None, ...]) -> list[tuple[int, int, int | None]]:
    """Runs of neighbouring heads with the same window: first head, one behind the last, window."""
    found: list[tuple[int, int, int | None]] = []
    for head, window in enumerate(windows):
        if found and found[-1][2] == window:
            found[-1] = (found[-1][0], head + 1, window)
        else:
            found.append((head, head + 1, window))
    return found
