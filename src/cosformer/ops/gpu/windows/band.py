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
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    dot_add,
    dot_over_features,
    inv_den_and_delta,
    load_key_mask,
    load_rows,
    store_rows,
    to_dot_dtype,
)
from cosformer.ops.gpu.windows.rows import (
    finite,
    gated,
    reach,
    rectified,
    rounded,
    span,
    spoilt,
    turn,
    weights,
    within,
)

# Whether a tile of which every pair is seen goes without a mask, and the phases of the own rows are turned
# from tile to tile, not those of the others, of which a thread has eight times as many: to be switched on
# once a GPU has run it.
LEAN_TILES = tl.constexpr(False)


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


@triton.jit
def sees(j, low, high, here, HAS_MASK: tl.constexpr):
    """Which of the keys j, those that are not masked, each row sees."""
    seen = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
    return seen & here[None, :] if HAS_MASK else seen


@triton.jit
def aligned(begin, end, first, BS: tl.constexpr):
    """`begin`, or up to BS - 1 rows before it, where a tile then begins at the own one's first row, if no
    tile more is met for it: a window that is a multiple of BS has as few tiles with a mask as can be."""
    if LEAN_TILES:
        before = (begin - first) & (BS - 1)
        spare = (begin - end) & (BS - 1)
        begin = tl.where((before <= spare) & (before <= begin), begin - before, begin)
    return begin


@triton.jit
def meet(
    acc, a, B, X, MASK, delta, change, c, s, low, high, begin, end, origin, window, b_t: tl.constexpr,
    x_t: tl.constexpr,
    F: tl.constexpr, N: tl.constexpr, OUTPUT: tl.constexpr, HAS_MASK: tl.constexpr, MODE: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of queries and the keys [begin, end): the sums, and their denominators for "o". MODE: "sum", or
    "spoil" and then "clear" if that was not finite; "correct" with a change of delta (`lacking`)."""
    others = tl.arange(0, BS)
    features = tl.arange(0, BF)
    columns = tl.arange(0, BN)
    total = tl.zeros((BT,), tl.float32)
    rows = tl.arange(0, BT)
    if LEAN_TILES:
        cj, sj = turn(others, window, DOT)
    all_low = tl.max(low, 0)
    all_high = tl.min(high, 0)
    for n in range(tl.cdiv(tl.maximum(end - begin, 0), BS)):
        first = begin + n * BS
        j = first + others
        here = j < end
        if HAS_MASK:
            here = tl.load(MASK + j, mask=here, other=0) != 0
        first64 = first.to(tl.int64)
        x = load_rows(X + first64 * x_t, x_t, others, here, columns, N, N != BN)
        x = to_dot_dtype(x, DOT, PRECISION) if OUTPUT == "o" else rectified(x, DOT, PRECISION)
        if MODE == "spoil":
            acc = spoil(x, sees(j, low, high, here, HAS_MASK), acc, DOT, PRECISION)
        else:
            b = load_rows(B + first64 * b_t, b_t, others, here, features, F, F != BF)
            b = rectified(b, DOT, PRECISION) if OUTPUT == "o" else to_dot_dtype(b, DOT, PRECISION)
            p = dot_over_features(a, tl.trans(b), PRECISION)
            if OUTPUT == "dq":
                p += delta[:, None]
            if MODE == "correct" or MODE == "correct and clear":
                p += change[:, None]  # after the sum above has cancelled: delta has no digits for it
            if LEAN_TILES:
                c, s = turn(rows + (origin - first), window, DOT)
                p *= weights(c, s, cj, sj)
            else:
                cj, sj = turn(j - origin, window, DOT)
                p *= weights(c, s, cj, sj)
            if (not LEAN_TILES) or HAS_MASK or MODE == "clear" or (first < all_low) | (first + BS > all_high):
                p = tl.where(sees(j, low, high, here, HAS_MASK), p, 0.0)
            if OUTPUT == "o":
                total += tl.sum(p, 1)
            if MODE == "clear" or MODE == "correct and clear":
                x = cleared(x)
            acc = dot_add(rounded(p, DOT, PRECISION), x, acc, PRECISION)
    if MODE == "clear":
        acc = tl.where(finite(acc), acc, float("nan"))
    return acc, total


@triton.jit
def lacking(q, dq, inv_den, den, eps):
    """What delta lacks of the g . v that it is added to, by q' . dq' = 0 (ops/chunked/residual.py); zero
    where that is rounding alone, or not finite. Only for products in float32, whose rounding it takes out."""
    products = tl.maximum(q.to(tl.float32), 0.0) * dq
    rho = tl.sum(products, 1)
    size = tl.sqrt(tl.sum(products * products, 1))
    large = (tl.abs(rho) > 64 * 2**-23 * size) & (tl.abs(rho) < float("inf")) & (den >= eps)
    return tl.where(large, -rho * inv_den, 0.0)


@triton.jit
def tile_of_queries(
    pid, A, B, X, Y, GATE, OUT, DEN, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, others, shift,
    eps,
    a_b, a_t: tl.constexpr, a_h, b_b, b_t: tl.constexpr, b_h, x_b, x_t: tl.constexpr, x_h,
    y_b, y_t: tl.constexpr, y_h, gate_b, gate_t: tl.constexpr, gate_h, o_b, o_t: tl.constexpr, o_h,
    row_b, row_h, mask_stride,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, OUTPUT: tl.constexpr, CAUSAL: tl.constexpr,
    IS_VARLEN: tl.constexpr, HAS_MASK: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, MEND: tl.constexpr,
):  # fmt: skip
    """ "o": A, B, X are q, k, v, and Y is o; the denominators are written. "dq": A, B, X are g, v, k, and Y
    is dq; GATE is q; inv_den and delta are made from g, OUT and the denominators, and written. TABLE [n, 3]:
    key head and window of each of n = `heads` key heads. Returns whether the tile is not finite, and so is to
    be computed again with MEND."""
    F: tl.constexpr = D if OUTPUT == "o" else DV
    N: tl.constexpr = DV if OUTPUT == "o" else D
    BF: tl.constexpr = BD if OUTPUT == "o" else BV
    BN: tl.constexpr = BV if OUTPUT == "o" else BD
    entry = pid % (heads * GROUP)
    tile = pid // (heads * GROUP)
    tiles = tl.cdiv(length, BT)
    batch = (tile // tiles).to(tl.int64)
    first = tile % tiles * BT
    key_head = tl.load(TABLE + 3 * (entry // GROUP)).to(tl.int64)
    window = tl.load(TABLE + 3 * (entry // GROUP) + 1)
    head = key_head * GROUP + entry % GROUP

    rows = tl.arange(0, BT)
    inside = first + rows < length
    low, high = reach(first + rows, inside, shift, window, others, BOUNDS, False, CAUSAL, IS_VARLEN)
    if IS_VARLEN:
        begin, end = span(low, high, others)
    else:
        begin = tl.maximum(first + shift - window + 1, 0)
        end = tl.minimum(first + shift + BT + (0 if CAUSAL else window), others)
        begin = aligned(begin, end, first + shift, BS)
    features = tl.arange(0, BF)
    columns = tl.arange(0, BN)
    first64 = first.to(tl.int64)
    vector = batch * row_b + head * row_h + first + rows
    a = load_rows(A + batch * a_b + head * a_h + first64 * a_t, a_t, rows, inside, features, F, F != BF)
    delta = tl.zeros((BT,), tl.float32)
    inv_den = tl.zeros((BT,), tl.float32)
    if OUTPUT == "o":
        a = rectified(a, DOT, PRECISION)
    else:
        o = load_rows(OUT + batch * o_b + head * o_h + first64 * o_t, o_t, rows, inside, features, F, F != BF)
        inv_den, delta = inv_den_and_delta(a, o, tl.load(DEN + vector, mask=inside, other=1.0), eps)
        tl.store(INV_DEN + vector, inv_den, mask=inside)
        a = to_dot_dtype(a, DOT, PRECISION)
    c, s = turn(rows, window, DOT)
    B += batch * b_b + key_head * b_h
    X += batch * x_b + key_head * x_h
    if HAS_MASK:
        MASK += batch * mask_stride
    acc = tl.zeros((BT, BN), tl.float32)
    if MEND:
        acc, _ = meet(
            acc, a, B, X, MASK, delta, delta, c, s, low, high, begin, end, first + shift, window, b_t, x_t, F,
            N, OUTPUT, HAS_MASK, "spoil", BT, BS, BF, BN, DOT, PRECISION,
        )  # fmt: skip
        acc, total = meet(
            acc, a, B, X, MASK, delta, delta, c, s, low, high, begin, end, first + shift, window, b_t, x_t, F,
            N, OUTPUT, HAS_MASK, "clear", BT, BS, BF, BN, DOT, PRECISION,
        )  # fmt: skip
    else:
        acc, total = meet(
            acc, a, B, X, MASK, delta, delta, c, s, low, high, begin, end, first + shift, window, b_t, x_t, F,
            N, OUTPUT, HAS_MASK, "sum", BT, BS, BF, BN, DOT, PRECISION,
        )  # fmt: skip
    bad = spoilt(acc)
    if OUTPUT == "o":
        tl.store(DEN + vector, total, mask=inside)
        acc *= (1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
    else:
        GATE += batch * gate_b + head * gate_h + first64 * gate_t
        gate = load_rows(GATE, gate_t, rows, inside, columns, N, N != BN)
        if (PRECISION == "ieee") and (BN <= 64):  # wider rows would spill registers
            change = lacking(gate, acc, inv_den, tl.load(DEN + vector, mask=inside, other=1.0), eps)
            if tl.max(tl.abs(change), 0) > 0.0:
                corrected, _ = meet(
                    tl.zeros((BT, BN), tl.float32), a, B, X, MASK, delta, change, c, s, low, high, begin, end,
                    first + shift, window, b_t, x_t, F, N, OUTPUT, HAS_MASK,
                    "correct and clear" if MEND else "correct", BT, BS, BF, BN, DOT, PRECISION,
                )  # fmt: skip
                acc = tl.where((change != 0.0)[:, None], corrected, acc)
            delta += change
        tl.store(DELTA + vector, delta, mask=inside)
        acc = tl.where((inv_den != 0.0)[:, None], acc * inv_den[:, None], 0.0)
        acc = gated(acc, gate)
    store_rows(Y + batch * y_b + head * y_h + first64 * y_t, y_t, rows, inside, columns, acc, N, N != BN)
    return bad


@triton.jit(
    do_not_specialize=["tiles", "heads", "length", "others", "shift", "row_b", "row_h", "mask_stride"]
)
def band_queries(
    SPOILT, tiles, A, B, X, Y, GATE, OUT, DEN, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, others,
    shift, eps,
    a_b, a_t: tl.constexpr, a_h, b_b, b_t: tl.constexpr, b_h, x_b, x_t: tl.constexpr, x_h,
    y_b, y_t: tl.constexpr, y_h, gate_b, gate_t: tl.constexpr, gate_h, o_b, o_t: tl.constexpr, o_h,
    row_b, row_h, mask_stride,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, OUTPUT: tl.constexpr, CAUSAL: tl.constexpr,
    IS_VARLEN: tl.constexpr, HAS_MASK: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, MEND: tl.constexpr,
):  # fmt: skip
    """A tile each; with MEND, those of MEND tiles each that are marked in SPOILT."""
    pid = tl.program_id(0)
    if MEND:
        first, count = marked(SPOILT, pid, tiles, MEND)
        for n in range(count):
            if is_marked(SPOILT, first + n, tiles):
                tile_of_queries(
                    first + n, A, B, X, Y, GATE, OUT, DEN, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads,
                    length, others, shift, eps, a_b, a_t, a_h, b_b, b_t, b_h, x_b, x_t, x_h, y_b, y_t, y_h,
                    gate_b, gate_t, gate_h, o_b, o_t, o_h, row_b, row_h, mask_stride, GROUP, D, DV, OUTPUT,
                    CAUSAL, IS_VARLEN, HAS_MASK, BT, BS, BD, BV, DOT, PRECISION, True,
                )  # fmt: skip
    else:
        bad = tile_of_queries(
            pid, A, B, X, Y, GATE, OUT, DEN, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, others,
            shift, eps, a_b, a_t, a_h, b_b, b_t, b_h, x_b, x_t, x_h, y_b, y_t, y_h, gate_b, gate_t, gate_h,
            o_b, o_t, o_h, row_b, row_h, mask_stride, GROUP, D, DV, OUTPUT, CAUSAL, IS_VARLEN, HAS_MASK, BT,
            BS,
            BD, BV, DOT, PRECISION, False,
        )  # fmt: skip
        tl.store(SPOILT + pid, bad.to(tl.int32))


@triton.jit
def meet_queries(
    dk, dv, k, v, Q, G, INV_DEN, DELTA, c, s, low, high, begin, end, origin, window, q_h, g_h, row_h,
    q_t: tl.constexpr, g_t: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    MODE: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of keys and the queries [begin, end) of all heads of its group: dk and dv. MODE as in
    `meet`."""
    others = tl.arange(0, BS)
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    tiles = tl.cdiv(tl.maximum(end - begin, 0), BS)
    rows = tl.arange(0, BT)
    if LEAN_TILES:
        ci, si = turn(others, window, DOT)
    all_low = tl.max(low, 0)
    all_high = tl.min(high, 0)
    for n in range(tiles * GROUP):
        group = (n // tiles if GROUP > 1 else tiles * 0).to(tl.int64)
        first = begin + (n % tiles if GROUP > 1 else n) * BS
        first64 = first.to(tl.int64)
        i = first + others
        here = i < end
        q = load_rows(Q + group * q_h + first64 * q_t, q_t, others, here, of_d, D, D != BD)
        g = load_rows(G + group * g_h + first64 * g_t, g_t, others, here, of_v, DV, DV != BV)
        inv_den = tl.load(INV_DEN + group * row_h + i, mask=here, other=0.0)
        q = rectified(q, DOT, PRECISION)
        g = to_dot_dtype(g, DOT, PRECISION)
        of_none = tl.where(inv_den != 0.0, i, -1)  # which no key sees
        if MODE == "spoil":
            seen = within(of_none, low, high)
            dk = spoil(q, seen, dk, DOT, PRECISION)
            dv = spoil(g, seen, dv, DOT, PRECISION)
        else:
            delta = tl.load(DELTA + group * row_h + i, mask=here, other=0.0)
            if LEAN_TILES:
                c, s = turn(rows + (origin - first), window, DOT)
            else:
                ci, si = turn(first - origin + others, window, DOT)
            weight = weights(c, s, ci * inv_den, si * inv_den)
            # A query that takes no part has the weight zero. If it holds NaN, the tile is computed again.
            masked = (not LEAN_TILES) or MODE != "sum" or (first < all_low) | (first + BS > all_high)
            # No weight that is seen is zero: the two choices below need no other mask.
            if masked:
                weight = tl.where(within(of_none, low, high), weight, 0.0)
            p = dot_over_features(k, tl.trans(q), PRECISION) * weight
            if masked:
                p = tl.where(weight != 0.0, p, 0.0)
            dv = dot_add(rounded(p, DOT, PRECISION), cleared(g) if MODE == "clear" else g, dv, PRECISION)
            p = (dot_over_features(v, tl.trans(g), PRECISION) + delta[None, :]) * weight
            if masked:
                p = tl.where(weight != 0.0, p, 0.0)
            dk = dot_add(rounded(p, DOT, PRECISION), cleared(q) if MODE == "clear" else q, dk, PRECISION)
    if MODE == "clear":
        dk = tl.where(finite(dk), dk, float("nan"))
        dv = tl.where(finite(dv), dv, float("nan"))
    return dk, dv


@triton.jit
def tile_of_keys(
    pid, K, V, Q, G, DK, DV_, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, others, shift,
    k_b, k_t: tl.constexpr, k_h, v_b, v_t: tl.constexpr, v_h, q_b, q_t: tl.constexpr, q_h,
    g_b, g_t: tl.constexpr, g_h, dk_b, dk_t: tl.constexpr, dk_h, dv_b, dv_t: tl.constexpr, dv_h,
    row_b, row_h, mask_stride,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, IS_VARLEN: tl.constexpr,
    HAS_MASK: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, MEND: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys, from what band_queries has written; returns and MEND as there."""
    entry = pid % heads
    tile = pid // heads
    tiles = tl.cdiv(length, BT)
    batch = (tile // tiles).to(tl.int64)
    first = tile % tiles * BT
    head = tl.load(TABLE + 3 * entry).to(tl.int64)
    window = tl.load(TABLE + 3 * entry + 1)

    rows = tl.arange(0, BT)
    inside = first + rows < length
    here = load_key_mask(MASK, mask_stride, batch, first + rows, inside, HAS_MASK)
    low, high = reach(first + rows, here, shift, window, others, BOUNDS, True, CAUSAL, IS_VARLEN)
    if IS_VARLEN:
        begin, end = span(low, high, others)
    else:
        begin = tl.maximum(first + shift - (0 if CAUSAL else window - 1), 0)
        end = tl.minimum(first + shift + BT - 1 + window, others)
        begin = aligned(begin, end, first + shift, BS)
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    first64 = first.to(tl.int64)
    gate = load_rows(K + batch * k_b + head * k_h + first64 * k_t, k_t, rows, here, of_d, D, D != BD)
    k = rectified(gate, DOT, PRECISION)
    v = load_rows(V + batch * v_b + head * v_h + first64 * v_t, v_t, rows, here, of_v, DV, DV != BV)
    v = to_dot_dtype(v, DOT, PRECISION)
    c, s = turn(rows, window, DOT)
    Q += batch * q_b + head * GROUP * q_h
    G += batch * g_b + head * GROUP * g_h
    INV_DEN += batch * row_b + head * GROUP * row_h
    DELTA += batch * row_b + head * GROUP * row_h
    dk = tl.zeros((BT, BD), tl.float32)
    dv = tl.zeros((BT, BV), tl.float32)
    if MEND:
        dk, dv = meet_queries(
            dk, dv, k, v, Q, G, INV_DEN, DELTA, c, s, low, high, begin, end, first + shift, window, q_h, g_h,
            row_h, q_t, g_t, GROUP, D, DV, "spoil", BT, BS, BD, BV, DOT, PRECISION,
        )  # fmt: skip
        dk, dv = meet_queries(
            dk, dv, k, v, Q, G, INV_DEN, DELTA, c, s, low, high, begin, end, first + shift, window, q_h, g_h,
            row_h, q_t, g_t, GROUP, D, DV, "clear", BT, BS, BD, BV, DOT, PRECISION,
        )  # fmt: skip
    else:
        dk, dv = meet_queries(
            dk, dv, k, v, Q, G, INV_DEN, DELTA, c, s, low, high, begin, end, first + shift, window, q_h, g_h,
            row_h, q_t, g_t, GROUP, D, DV, "sum", BT, BS, BD, BV, DOT, PRECISION,
        )  # fmt: skip
    bad = spoilt(dk) | spoilt(dv)
    dk = gated(dk, gate)
    store_rows(DK + batch * dk_b + head * dk_h + first64 * dk_t, dk_t, rows, inside, of_d, dk, D, D != BD)
    store_rows(DV_ + batch * dv_b + head * dv_h + first64 * dv_t, dv_t, rows, inside, of_v, dv, DV, DV != BV)
    return bad


@triton.jit(
    do_not_specialize=["tiles", "heads", "length", "others", "shift", "row_b", "row_h", "mask_stride"]
)
def band_keys(
    SPOILT, tiles, K, V, Q, G, DK, DV_, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, others, shift,
    k_b, k_t: tl.constexpr, k_h, v_b, v_t: tl.constexpr, v_h, q_b, q_t: tl.constexpr, q_h,
    g_b, g_t: tl.constexpr, g_h, dk_b, dk_t: tl.constexpr, dk_h, dv_b, dv_t: tl.constexpr, dv_h,
    row_b, row_h, mask_stride,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, IS_VARLEN: tl.constexpr,
    HAS_MASK: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, MEND: tl.constexpr,
):  # fmt: skip
    """As `band_queries`."""
    pid = tl.program_id(0)
    if MEND:
        first, count = marked(SPOILT, pid, tiles, MEND)
        for n in range(count):
            if is_marked(SPOILT, first + n, tiles):
                tile_of_keys(
                    first + n, K, V, Q, G, DK, DV_, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length,
                    others,
                    shift, k_b, k_t, k_h, v_b, v_t, v_h, q_b, q_t, q_h, g_b, g_t, g_h, dk_b, dk_t, dk_h, dv_b,
                    dv_t, dv_h, row_b, row_h, mask_stride, GROUP, D, DV, CAUSAL, IS_VARLEN, HAS_MASK, BT, BS,
                    BD, BV, DOT, PRECISION, True,
                )  # fmt: skip
    else:
        bad = tile_of_keys(
            pid, K, V, Q, G, DK, DV_, INV_DEN, DELTA, MASK, BOUNDS, TABLE, heads, length, others, shift, k_b,
            k_t,
            k_h, v_b, v_t, v_h, q_b, q_t, q_h, g_b, g_t, g_h, dk_b, dk_t, dk_h, dv_b, dv_t, dv_h, row_b,
            row_h, mask_stride, GROUP, D, DV, CAUSAL, IS_VARLEN, HAS_MASK, BT, BS, BD, BV, DOT, PRECISION,
            False,
        )  # fmt: skip
        tl.store(SPOILT + pid, bad.to(tl.int32))
