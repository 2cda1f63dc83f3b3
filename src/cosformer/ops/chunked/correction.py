"""Residuals of heads without a window (residual.py) taken out of A, M and dQ' (attention.py).

No row's bits depend on which others have a residual. The last few rows of a product may be rounded otherwise
than those before, and one matrix alone otherwise than beside others: so of a chunk a multiple of TOKENS rows
is taken, from its first on, and two chunks at least (PyTorch on a CPU, tests/ops/test_bits.py).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.chunked.plan import ChunkPlan, PlanStep
from cosformer.ops.chunked.residual import span
from cosformer.ops.chunked.workspace import Buffer

TOKENS = 64


class Rows(NamedTuple):
    """All queries of a step that have a residual, and more: which chunks, and where in a chunk."""

    chunks: slice
    tokens: slice

    def of(self, x: Tensor) -> Tensor:
        """Of x [chunks, B, Hk, group, chunk, .]."""
        return x[self.chunks, ..., self.tokens, :]


def correction(step: PlanStep, rho: Tensor, m: Buffer) -> tuple[Rows, Buffer]:
    """What delta lacks by its residuals, divided by d, with both phases; added to m."""
    chunks, tokens = span(rho, 0), span(rho, 4)
    first = min(chunks.start, max(0, len(rho) - 2))
    rows = Rows(slice(first, max(chunks.stop, first + 2)), slice(-(-tokens.stop // TOKENS) * TOKENS))
    rest = rows.of(rho)
    change = rest * rows.of(step.of("tail_q"))[..., :2] * rows.of(step.of("inverse"))
    change.masked_fill_(rest == 0, 0)  # rows that take no part may hold NaN
    rows.of(m.parts[2])[..., :2] += change
    return rows, Buffer(change)


def correct_square(
    x: ChunkPlan, step: PlanStep, at: Rows, change: Buffer, k1: Buffer, vv: Buffer, a: Buffer, g: Buffer
) -> None:
    """Of keys in the chunk of the query: A, and dQ' = A K'."""
    of_keys = Buffer(vv.parts[2][at.chunks, ..., :2])
    # Not in the workspace, which would keep it: in float32 few rows are corrected.
    more = Buffer(torch.bmm(change.rows, of_keys.rows.mT).view(*change.whole.shape[:-1], step.size[1]))
    if x.causal:
        more.whole.tril_(x.diagonal)
    at.of(a.whole).add_(more.whole)
    made = Buffer(g.whole.new_empty((*change.whole.shape[:-1], x.d)))
    x.seen_product(step, more.rows, Buffer(k1.whole[at.chunks]).rows, made.rows, tokens=at.tokens)
    at.of(g.whole).add_(made.whole)


def correct_past(
    s: Tensor | None, at: Rows, change: Buffer, keys: tuple[Buffer, Buffer] | None, dv: int, g: Buffer
) -> None:
    """Of keys before the chunk: dQ' = M S^T, with the tail of S as every chunk finds it."""
    tails = None if s is None else s[None, ..., 2 * dv : 2 * dv + 2]  # [chunks, B Hk, D, 2]
    if keys is not None:
        k1, vv = keys
        sums = torch.bmm(k1.columns, Buffer(vv.parts[2][..., :2]).rows)
        sums = sums.unflatten(0, (len(k1.chunks), -1)).cumsum(0).roll(1, 0)
        sums[0] = 0
        tails = sums if tails is None else sums.add_(tails)
    if tails is not None:
        made = torch.bmm(change.rows, tails[at.chunks].flatten(0, 1).mT)
        into = at.of(g.whole)
        into.add_(made.view(into.shape))
