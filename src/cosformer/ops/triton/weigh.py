"""What the backward needs of every row of queries (rows.py): r_i = 1 / max(d_i, eps) and e_i = -(g_i . o_i).

One program takes ROWS tokens of one head. It reads g and o, 2 tensors, and writes two numbers a row: a
kernel of its own, because sums along rows are what a walk has no time for. Bidirectional attention, which
does not walk, computes them beside dq where one program has all columns (apply.py).
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import read


@triton.jit
def weighed(g, o, d, eps):
    """r and e; e is zero where eps holds d, and both are zero where g is."""
    g = g.to(tl.float32)
    used = tl.sum(tl.abs(g), 1) != 0.0
    r = tl.where(used, 1.0 / tl.maximum(d, eps, propagate_nan=tl.PropagateNan.ALL), 0.0)
    e = tl.where(used & (d >= eps), -tl.sum(g * o.to(tl.float32), 1), 0.0)
    return r, e


@triton.jit(do_not_specialize=["length", "row_b", "row_h"])
def weigh(
    G, O, DENOMINATOR, INVERSE, E, length, eps, g_b, g_t, g_h, o_b, o_t, o_h, row_b, row_h,
    HEADS: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    head = (pid % HEADS).to(tl.int64)
    blocks = tl.cdiv(length, ROWS)
    row = (pid // HEADS // blocks).to(tl.int64)
    first = (pid // HEADS % blocks).to(tl.int64) * ROWS
    rows = tl.arange(0, ROWS)
    features = tl.arange(0, BF)
    inside = first + rows < length
    PADDED: tl.constexpr = DV != BF
    g = read(G + row * g_b + first * g_t + head * g_h, g_t, rows, inside, features, DV, PADDED)
    o = read(O + row * o_b + first * o_t + head * o_h, o_t, rows, inside, features, DV, PADDED)
    vector = row * row_b + head * row_h + first + rows
    d = tl.load(DENOMINATOR + vector, mask=inside, other=1.0)
    r, e = weighed(g, o, d, eps)
    tl.store(INVERSE + vector, r, mask=inside)
    tl.store(E + vector, e, mask=inside)
