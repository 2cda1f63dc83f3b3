"""o, or dq, of tiles of queries with a narrow window (band.py)."""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    dot_add,
    dot_over_features,
    inv_den_and_delta,
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
)


@triton.jit
def sees(j, low, high, here, HAS_MASK: tl.constexpr):
    """Which of the keys j, those that are not masked, each row sees."""
    seen = (j[None, :] >= low[:, None]) & (j[None, :] < high[:, None])
    return seen & here[None, :] if HAS_MASK else seen


@triton.jit
def meet(
    acc, a, B, X, MASK, delta, change, c, s, low, high, begin, end, origin, window, b_t: tl.constexpr,
    x_t: tl.constexpr,
    F: tl.constexpr, N: tl.constexpr, OUTPUT: tl.constexpr, HAS_MASK: tl.constexpr, MODE: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of queries and the keys [begin, end): the sums, and their denominators for "o". MODE: "sum", or
    "spoil" and then "clear" if that was not finite; "correct", or "correct and clear", with a change of delta
    (`lacking`)."""
    others = tl.arange(0, BS)
    features = tl.arange(0, BF)
    columns = tl.arange(0, BN)
    total = tl.zeros((BT,), tl.float32)
    for n in range(tl.cdiv(tl.maximum(end - begin, 0), BS)):
        first = begin + n * BS
        j = first + others
        here = j < end
        if HAS_MASK:
            here = tl.load(MASK + j, mask=here, other=0) != 0
        first64 = first.to(tl.int64)
        x = load_rows(X + first64 * x_t, x_t, others, here, columns, N, N != BN)
        x = to_dot_dtype(x, DOT, PRECISION) if OUTPUT == "o" else rectified(x, DOT, PRECISION)
        seen = sees(j, low, high, here, HAS_MASK)
        if MODE == "spoil":
            acc = spoil(x, seen, acc, DOT, PRECISION)
        else:
            b = load_rows(B + first64 * b_t, b_t, others, here, features, F, F != BF)
            b = rectified(b, DOT, PRECISION) if OUTPUT == "o" else to_dot_dtype(b, DOT, PRECISION)
            p = dot_over_features(a, tl.trans(b), PRECISION)
            if OUTPUT == "dq":
                p = plus(p, delta[:, None], PRECISION)
            if MODE == "correct" or MODE == "correct and clear":
                p += change[:, None]  # after the sum above has cancelled: delta has no digits for it
            cj, sj = turn(j - origin, window, DOT)
            p = tl.where(seen, p * weights(c, s, cj, sj), 0.0)
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
    CORRECTS: tl.constexpr = (PRECISION == "ieee") and (BN <= 64)  # wider rows would spill registers
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
        if not CORRECTS:
            tl.store(DELTA + vector, delta, mask=inside)
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
        if not CORRECTS:
            acc = tl.where((inv_den != 0.0)[:, None], acc * inv_den[:, None], 0.0)
        GATE += batch * gate_b + head * gate_h + first64 * gate_t
        gate = load_rows(GATE, gate_t, rows, inside, columns, N, N != BN)
        if CORRECTS:
            change = lacking(gate, acc, inv_den, tl.load(DEN + vector, mask=inside, other=1.0), eps)
            if tl.max(tl.abs(change), 0) > 0.0:
                corrected, _ = meet(
                    tl.zeros((BT, BN), tl.float32), a, B, X, MASK, delta, change, c, s, low, high, begin, end,
                    first + shift, window, b_t, x_t, F, N, OUTPUT, HAS_MASK,
                    "correct and clear" if MEND else "correct", BT, BS, BF, BN, DOT, PRECISION,
                )  # fmt: skip
                acc = tl.where((change != 0.0)[:, None], corrected, acc)
            tl.store(DELTA + vector, delta + change, mask=inside)
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
