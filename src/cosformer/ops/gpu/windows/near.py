"""Windows of a few tokens: a tile of rows and HALO rows on each side of it, without a loop.

Where no window reaches further than HALO tokens, queries and keys stand at the same places, and each key head
has one query head, one program computes a tile of o, or of dq, dk and dv together: all that it reads is asked
for at once, and the backward reads q, k, v, g and o once instead of twice. Weights, and what is done about
numbers that are not finite, as in band.py, whose kernels compute the marked tiles again.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    dot_add,
    dot_over_features,
    inv_den_and_delta,
    load_rows,
    store_rows,
    to_dot_dtype,
)
from cosformer.ops.gpu.windows.rows import gated, reach, rectified, rounded, spoilt, turn, weights


@triton.jit
def key_rows(
    K, V, MASK, first, length, k_t: tl.constexpr, v_t: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    HAS_MASK: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Which of ROWS keys there are, k and v."""
    rows = tl.arange(0, ROWS)
    j = first + rows
    here = (j >= 0) & (j < length)
    if HAS_MASK:
        here = tl.load(MASK + j, mask=here, other=0) != 0
    first64 = first.to(tl.int64)
    k = load_rows(K + first64 * k_t, k_t, rows, here, tl.arange(0, BD), D, D != BD)
    v = load_rows(V + first64 * v_t, v_t, rows, here, tl.arange(0, BV), DV, DV != BV)
    return here, k, v


@triton.jit
def values_of(
    acc, total, q, k, v, here, first, origin, low, high, c, s, window, ROWS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The sums of a tile of queries over ROWS keys."""
    j = first + tl.arange(0, ROWS)
    cj, sj = turn(j - origin, window, DOT)
    seen = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None]) & here[None, :]
    p = dot_over_features(q, tl.trans(rectified(k, DOT, PRECISION)), PRECISION)
    p = tl.where(seen, p * weights(c, s, cj, sj), 0.0)
    acc = dot_add(rounded(p, DOT, PRECISION), to_dot_dtype(v, DOT, PRECISION), acc, PRECISION)
    return acc, total + tl.sum(p, 1)


@triton.jit(do_not_specialize=["heads", "length", "row_b", "row_h", "mask_stride"])
def near_forward(
    SPOILT, Q, K, V, OUT, DEN, MASK, BOUNDS, TABLE, heads, length, eps,
    q_b, q_t: tl.constexpr, q_h, k_b, k_t: tl.constexpr, k_h, v_b, v_t: tl.constexpr, v_h,
    o_b, o_t: tl.constexpr, o_h, row_b, row_h, mask_stride,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, IS_VARLEN: tl.constexpr,
    HAS_MASK: tl.constexpr, BT: tl.constexpr, HALO: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    entry = pid % heads
    tile = pid // heads
    tiles = tl.cdiv(length, BT)
    batch = (tile // tiles).to(tl.int64)
    first = tile % tiles * BT
    head = tl.load(TABLE + 3 * entry).to(tl.int64)
    window = tl.load(TABLE + 3 * entry + 1)
    rows = tl.arange(0, BT)
    inside = first + rows < length
    first64 = first.to(tl.int64)
    q = load_rows(
        Q + batch * q_b + head * q_h + first64 * q_t, q_t, rows, inside, tl.arange(0, BD), D, D != BD
    )
    K += batch * k_b + head * k_h
    V += batch * v_b + head * v_h
    if HAS_MASK:
        MASK += batch * mask_stride
    here, k, v = key_rows(K, V, MASK, first, length, k_t, v_t, D, DV, HAS_MASK, BT, BD, BV)
    here_0, k_0, v_0 = key_rows(K, V, MASK, first - HALO, length, k_t, v_t, D, DV, HAS_MASK, HALO, BD, BV)
    if not CAUSAL:
        here_1, k_1, v_1 = key_rows(K, V, MASK, first + BT, length, k_t, v_t, D, DV, HAS_MASK, HALO, BD, BV)
    low, high = reach(first + rows, inside, 0, window, length, BOUNDS, False, CAUSAL, IS_VARLEN)
    c, s = turn(rows, window, DOT)
    q = rectified(q, DOT, PRECISION)
    acc = tl.zeros((BT, BV), tl.float32)
    total = tl.zeros((BT,), tl.float32)
    acc, total = values_of(
        acc, total, q, k, v, here, first, first, low, high, c, s, window, BT, DOT, PRECISION
    )
    acc, total = values_of(
        acc, total, q, k_0, v_0, here_0, first - HALO, first, low, high, c, s, window, HALO, DOT, PRECISION
    )
    if not CAUSAL:
        acc, total = values_of(
            acc, total, q, k_1, v_1, here_1, first + BT, first, low, high, c, s, window, HALO, DOT, PRECISION
        )
    bad = spoilt(acc)
    tl.store(DEN + batch * row_b + head * row_h + first + rows, total, mask=inside)
    acc *= (1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
    store_rows(
        OUT + batch * o_b + head * o_h + first64 * o_t, o_t, rows, inside, tl.arange(0, BV), acc, DV, DV != BV
    )
    tl.store(SPOILT + pid, bad.to(tl.int32))


@triton.jit
def query_rows(
    Q, G, O, DEN, first, window, length, eps, BOUNDS, q_t: tl.constexpr, g_t: tl.constexpr,
    o_t: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, IS_VARLEN: tl.constexpr,
    ROWS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """q, g, inv_den and delta of ROWS queries, and the keys [low, high) that each of them sees: none where
    its g is zero."""
    rows = tl.arange(0, ROWS)
    i = first + rows
    here = (i >= 0) & (i < length)
    first64 = first.to(tl.int64)
    q = load_rows(Q + first64 * q_t, q_t, rows, here, tl.arange(0, BD), D, D != BD)
    g = load_rows(G + first64 * g_t, g_t, rows, here, tl.arange(0, BV), DV, DV != BV)
    o = load_rows(O + first64 * o_t, o_t, rows, here, tl.arange(0, BV), DV, DV != BV)
    inv_den, delta = inv_den_and_delta(g, o, tl.load(DEN + i, mask=here, other=1.0), eps)
    low, high = reach(i, here, 0, window, length, BOUNDS, False, CAUSAL, IS_VARLEN)
    return q, g, inv_den, delta, low, tl.where(inv_den != 0.0, high, 0)


@triton.jit
def pair_weights(
    first_key, here, first_query, low, high, inv_den, origin, window, KEYS: tl.constexpr,
    QUERIES: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """c(i - j) inv_den_i of KEYS keys, as rows, and QUERIES queries that see them; zero for other pairs. No
    weight that is seen is zero."""
    j = first_key + tl.arange(0, KEYS)
    i = first_query + tl.arange(0, QUERIES)
    cj, sj = turn(j - origin, window, DOT)
    ci, si = turn(i - origin, window, DOT)
    seen = (j[:, None] >= low[None, :]) & (j[:, None] < high[None, :]) & here[:, None]
    return tl.where(seen, weights(cj, sj, ci * inv_den, si * inv_den), 0.0)


@triton.jit
def scores(a, b, delta, weight, PRECISION: tl.constexpr):
    """(a b^T + delta) weight, zero where the weight is."""
    p = dot_over_features(a, tl.trans(b), PRECISION) + delta
    return tl.where(weight != 0.0, p * weight, 0.0)


@triton.jit
def keys_beside(
    dq, g, k, v, here, beside, first, low, high, inv_den, delta, window, BT: tl.constexpr,
    HALO: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of a tile with what HALO keys beside it add."""
    j = beside + tl.arange(0, HALO)
    cj, sj = turn(j - first, window, DOT)
    c, s = turn(tl.arange(0, BT), window, DOT)
    seen = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None]) & here[None, :]
    weight = tl.where(seen, weights(c * inv_den, s * inv_den, cj, sj), 0.0)
    a = scores(g, to_dot_dtype(v, DOT, PRECISION), delta[:, None], weight, PRECISION)
    return dot_add(rounded(a, DOT, PRECISION), rectified(k, DOT, PRECISION), dq, PRECISION)


@triton.jit
def queries_beside(
    dk, dv, k, v, here, q, g, beside, first, low, high, inv_den, delta, window, BT: tl.constexpr,
    HALO: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile with what HALO queries beside it add."""
    weight = pair_weights(first, here, beside, low, high, inv_den, first, window, BT, HALO, DOT)
    q = rectified(q, DOT, PRECISION)
    g = to_dot_dtype(g, DOT, PRECISION)
    p = scores(k, q, 0.0, weight, PRECISION)
    dv = dot_add(rounded(p, DOT, PRECISION), g, dv, PRECISION)
    a = scores(v, g, delta[None, :], weight, PRECISION)
    return dot_add(rounded(a, DOT, PRECISION), q, dk, PRECISION), dv


@triton.jit(do_not_specialize=["heads", "length", "row_b", "row_h", "mask_stride"])
def near_backward(
    SPOILT, Q, K, V, G, O, DQ, DK, DV_, DEN, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, eps,
    q_b, q_t: tl.constexpr, q_h, k_b, k_t: tl.constexpr, k_h, v_b, v_t: tl.constexpr, v_h,
    g_b, g_t: tl.constexpr, g_h, o_b, o_t: tl.constexpr, o_h, dq_b, dq_t: tl.constexpr, dq_h,
    dk_b, dk_t: tl.constexpr, dk_h, dv_b, dv_t: tl.constexpr, dv_h, row_b, row_h, mask_stride,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, IS_VARLEN: tl.constexpr,
    HAS_MASK: tl.constexpr, BT: tl.constexpr, HALO: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """inv_den and delta are written for the tiles that are computed again."""
    pid = tl.program_id(0)
    entry = pid % heads
    tile = pid // heads
    tiles = tl.cdiv(length, BT)
    batch = (tile // tiles).to(tl.int64)
    first = tile % tiles * BT
    head = tl.load(TABLE + 3 * entry).to(tl.int64)
    window = tl.load(TABLE + 3 * entry + 1)
    rows = tl.arange(0, BT)
    inside = first + rows < length
    first64 = first.to(tl.int64)
    Q += batch * q_b + head * q_h
    K += batch * k_b + head * k_h
    V += batch * v_b + head * v_h
    G += batch * g_b + head * g_h
    O += batch * o_b + head * o_h
    vectors = batch * row_b + head * row_h
    DEN += vectors
    if HAS_MASK:
        MASK += batch * mask_stride
    here, gate_k, v = key_rows(K, V, MASK, first, length, k_t, v_t, D, DV, HAS_MASK, BT, BD, BV)
    gate_q, g, inv_den, delta, low, high = query_rows(
        Q, G, O, DEN, first, window, length, eps, BOUNDS, q_t, g_t, o_t, D, DV, CAUSAL, IS_VARLEN, BT, BD, BV
    )
    before, after = first - HALO, first + BT
    here_0, k_0, v_0 = key_rows(K, V, MASK, before, length, k_t, v_t, D, DV, HAS_MASK, HALO, BD, BV)
    q_1, g_1, inv_den_1, delta_1, low_1, high_1 = query_rows(
        Q, G, O, DEN, after, window, length, eps, BOUNDS, q_t, g_t, o_t, D, DV, CAUSAL, IS_VARLEN, HALO, BD,
        BV,
    )  # fmt: skip
    if not CAUSAL:
        here_1, k_1, v_1 = key_rows(K, V, MASK, after, length, k_t, v_t, D, DV, HAS_MASK, HALO, BD, BV)
        q_0, g_0, inv_den_0, delta_0, low_0, high_0 = query_rows(
            Q, G, O, DEN, before, window, length, eps, BOUNDS, q_t, g_t, o_t, D, DV, CAUSAL, IS_VARLEN, HALO,
            BD, BV,
        )  # fmt: skip
    tl.store(INV_DEN + vectors + first + rows, inv_den, mask=inside)
    tl.store(DELTA + vectors + first + rows, delta, mask=inside)
    q = rectified(gate_q, DOT, PRECISION)
    k = rectified(gate_k, DOT, PRECISION)
    v = to_dot_dtype(v, DOT, PRECISION)
    g = to_dot_dtype(g, DOT, PRECISION)

    weight = pair_weights(first, here, first, low, high, inv_den, first, window, BT, BT, DOT)
    p = rounded(scores(k, q, 0.0, weight, PRECISION), DOT, PRECISION)
    dv = dot_over_features(p, g, PRECISION)
    a = rounded(scores(v, g, delta[None, :], weight, PRECISION), DOT, PRECISION)
    dk = dot_over_features(a, q, PRECISION)
    dq = dot_over_features(tl.trans(a), k, PRECISION)
    dq = keys_beside(
        dq, g, k_0, v_0, here_0, before, first, low, high, inv_den, delta, window, BT, HALO, DOT, PRECISION
    )
    dk, dv = queries_beside(
        dk, dv, k, v, here, q_1, g_1, after, first, low_1, high_1, inv_den_1, delta_1, window, BT, HALO, DOT,
        PRECISION,
    )  # fmt: skip
    if not CAUSAL:
        dq = keys_beside(
            dq, g, k_1, v_1, here_1, after, first, low, high, inv_den, delta, window, BT, HALO, DOT, PRECISION
        )
        dk, dv = queries_beside(
            dk, dv, k, v, here, q_0, g_0, before, first, low_0, high_0, inv_den_0, delta_0, window, BT, HALO,
            DOT, PRECISION,
        )  # fmt: skip
    bad = spoilt(dq) | spoilt(dk) | spoilt(dv)
    of_d, of_v = tl.arange(0, BD), tl.arange(0, BV)
    to_q = DQ + batch * dq_b + head * dq_h + first64 * dq_t
    to_k = DK + batch * dk_b + head * dk_h + first64 * dk_t
    to_v = DV_ + batch * dv_b + head * dv_h + first64 * dv_t
    store_rows(to_q, dq_t, rows, inside, of_d, gated(dq, gate_q), D, D != BD)
    store_rows(to_k, dk_t, rows, inside, of_d, gated(dk, gate_k), D, D != BD)
    store_rows(to_v, dv_t, rows, inside, of_v, dv, DV, DV != BV)
    tl.store(SPOILT + pid, bad.to(tl.int32))
