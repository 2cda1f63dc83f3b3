"""dk and dv of tiles of keys with a narrow window (band.py)."""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    dot_add,
    dot_over_features,
    load_key_mask,
    load_rows,
    plus,
    store_rows,
    to_dot_dtype,
)
from cosformer.ops.gpu.windows.band import (
    cleared,
    is_marked,
    marked,
    spoil,
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


@triton.jit
def meet_queries(
    dk, dv, k, v, Q, G, INV_DEN, DELTA, c, s, low, high, begin, end, origin, window, q_h, g_h, row_h,
    q_t: tl.constexpr, g_t: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    MODE: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of keys and the queries [begin, end) of all heads of its group: dk and dv. MODE as in
    `meet` of band_queries.py."""
    others = tl.arange(0, BS)
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    tiles = tl.cdiv(tl.maximum(end - begin, 0), BS)
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
        seen = within(tl.where(inv_den != 0.0, i, -1), low, high)  # no key sees -1
        if MODE == "spoil":
            dk = spoil(q, seen, dk, DOT, PRECISION)
            dv = spoil(g, seen, dv, DOT, PRECISION)
        else:
            delta = tl.load(DELTA + group * row_h + i, mask=here, other=0.0)
            # No weight that is seen is zero: the choices behind the products need no other mask.
            ci, si = turn(first - origin + others, window, DOT)
            weight = tl.where(seen, weights(c, s, ci * inv_den, si * inv_den), 0.0)
            p = tl.where(weight != 0.0, dot_over_features(k, tl.trans(q), PRECISION) * weight, 0.0)
            dv = dot_add(rounded(p, DOT, PRECISION), cleared(g) if MODE == "clear" else g, dv, PRECISION)
            p = plus(dot_over_features(v, tl.trans(g), PRECISION), delta[None, :], PRECISION)
            p = tl.where(weight != 0.0, p * weight, 0.0)
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
    """dk and dv of a tile of keys, from the inv_den and delta that came with dq; returns and MEND as in
    band_queries.py."""
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
