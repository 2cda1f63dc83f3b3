"""Narrow windows: a band.

One program takes one tile of BT own rows of one head. It meets, BS at a time, the others that the window
reaches: a square of scores, the weights written into it, times the others' rows. There is no state; the first
read of a row comes from memory, the others from the cache.

    "o":   P = c (q' k'^T)                  n = P v,  d = P 1,  o = n / max(d, eps)
    "dq":  P = c (g v^T + delta)            dq = inv_den (P k') where q > 0; in float32 once more where it
                                            cancels, with what delta lacks (`lacking`)
    keys:  P = c inv_den (k' q'^T)          dv = P g             summed over the heads of a group
           P = c inv_den (v g^T + delta)    dk = P q' where k > 0

Weights c are made of the phases of both rows relative to the tile: two multiply-adds an element. Pairs that
are not seen have P = 0 by choice, whatever their scores are. The rows that P is multiplied with may still
hold NaN where no row of the tile, or not every one, sees them: a result that is not finite is computed once
more, with zeros in the place of numbers that are not finite, and what saw one of these is NaN.

The first two are band_queries.py, the last band_keys.py; here is what they share.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.windows.rows import finite


@triton.jit
def cleared(x):
    """x with zeros for what is not finite."""
    return tl.where(finite(x), x, 0.0).to(x.dtype)


@triton.jit
def spoil(x, seen, acc, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """acc, infinite where a row sees what is not finite: by a product that no float32 can hold."""
    bad = tl.where(finite(x), 0.0, 16.0).to(DOT)
    return tl.dot(tl.where(seen, 1e38, 0.0).to(DOT), bad, acc, input_precision=PRECISION)


@triton.jit
def marked(SPOILT, pid, tiles, COUNT: tl.constexpr):
    """The first of COUNT tiles, and how many of them to look at: none where none is marked."""
    first = pid * COUNT
    at = first + tl.arange(0, COUNT)
    any_ = tl.max(tl.load(SPOILT + at, mask=at < tiles, other=0), 0)
    return first, any_ * COUNT


@triton.jit
def is_marked(SPOILT, tile, tiles):
    return tl.load(SPOILT + tile, mask=tile < tiles, other=0) != 0
