"""Wide windows: whole chunks through their summed state, the two chunks at the window's edges as squares.

One program takes one head, a segment of own rows no longer than the window, and BN columns of the result.
With n = W / CHUNK, chunk i of the segment sees the chunks of the other side strictly between i + BACK and
i + FRONT in full, and of these two what lies less than W away:

    "o", "dq", causal        BACK = -n (b > a)    FRONT = 0 (b <= a)
    "dk", "dv", causal       BACK = 0 (b >= a)    FRONT = n (b < a)
    bidirectional            BACK = -n (b > a)    FRONT = n (b < a)

for row a of the chunk and row b of the edge. Nothing is ever subtracted (van Herk, Gil and Werman): with m
chunks in the segment, chunks before BACK + m are summed up from there backwards, while the program goes
through its own rows backwards, and those from there on forwards, in a second pass. Each pass meets one edge,
which then joins the state; the first leaves its sums in memory, fp32, for the second. What a row does not see
is in no state that it meets, and roundings end with the segment. At the edges themselves zero is multiplied
with what is not seen: NaN may reach the rows of the chunk that meets its own, 63 tokens too far.

    "o", "dv":   S = sum_j phi(b_j) c_j^T [2, D, BN]     y = phi(a) S + P c
                 P = w(i - j) (a b^T)
    "dq", "dk":  S = sum_j b_j phi(c_j)^T [2, Dv, BN]    y = phi(1)^T (a S + delta z) + P c
                 P = w(i - j) (a b^T + delta)

Phases are relative to the first own row. They change their sign there, so ReLU comes before them, and what
is rounded is the product: cos(theta_i - theta_j) is a difference of large numbers where it is small, and
errors that differ from feature to feature do not add up.

Packed documents: a program works on the part of each document that lies in its segment, one after the other.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    as_columns,
    dot_add,
    dot_over_features,
    dot_over_features_add,
    load_rows,
    partial_sums,
    plus,
    store_rows,
    to_dot_dtype,
)
from cosformer.ops.gpu.windows.rows import gated, phased, rectified, rounded, turn, weights


@triton.jit
def take(
    b,
    x,
    delta,
    phase,
    S,
    z,
    OUTPUT: tl.constexpr,
    PARTS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The state of one phase with a chunk of others added."""
    if OUTPUT == "o" or OUTPUT == "dv":
        b = phased(b, phase, DOT, PRECISION)
        S = dot_add(tl.trans(b), to_dot_dtype(x, DOT, PRECISION), S, PRECISION)
        if OUTPUT == "o":
            z += partial_sums(b.to(tl.float32), PARTS)
    else:
        x = phased(x, phase, DOT, PRECISION)
        S = dot_add(tl.trans(to_dot_dtype(b, DOT, PRECISION)), x, S, PRECISION)
        if OUTPUT == "dq":
            z += partial_sums(x.to(tl.float32), PARTS)
        else:
            z += partial_sums(x.to(tl.float32) * delta[:, None], PARTS)
    return S, z


@triton.jit
def apply(
    a, raw, w, phase, S, z, acc, total, OUTPUT: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Own rows and the state of one phase."""
    if OUTPUT == "dq" or OUTPUT == "dk":
        y = dot_over_features(raw, to_dot_dtype(S, DOT, PRECISION), PRECISION)
        y = dot_add(
            to_dot_dtype(as_columns(w, PARTS), DOT, PRECISION), to_dot_dtype(z, DOT, PRECISION), y, PRECISION
        )
        return acc + y * phase[:, None], total
    a = phased(a, phase, DOT, PRECISION)
    if OUTPUT == "o":
        total += tl.sum(dot_over_features(a, tl.trans(to_dot_dtype(z, DOT, PRECISION)), PRECISION), 1)
    return dot_over_features_add(a, to_dot_dtype(S, DOT, PRECISION), acc, PRECISION), total


@triton.jit
def square(
    a, b, x, delta, inv_den, c, s, cj, sj, seen, acc, total, OUTPUT: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Own rows and a chunk at the edge of their window; delta is of own rows for "dq", of others for "dk"."""
    if OUTPUT == "o" or OUTPUT == "dv":
        b = rectified(b, DOT, PRECISION)
        x = to_dot_dtype(x, DOT, PRECISION)
    else:
        b = to_dot_dtype(b, DOT, PRECISION)
        x = rectified(x, DOT, PRECISION)
    p = dot_over_features(a, tl.trans(b), PRECISION)
    if OUTPUT == "dq":
        p = plus(p, delta[:, None], PRECISION)
    if OUTPUT == "dk":
        p = plus(p, delta[None, :], PRECISION)
    if OUTPUT == "dk" or OUTPUT == "dv":
        cj, sj = cj * inv_den, sj * inv_den
    p = tl.where(seen, p * weights(c, s, cj, sj), 0.0)
    if OUTPUT == "o":
        total += tl.sum(p, 1)
    return dot_add(rounded(p, DOT, PRECISION), x, acc, PRECISION), total


@triton.jit
def chunk_of(
    B, X, INV_DEN, DELTA, MASK, first, low, high, columns, b_t: tl.constexpr, x_t: tl.constexpr,
    F: tl.constexpr, N: tl.constexpr, OUTPUT: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr,
    BF: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A chunk of others: which of them there are, b, c, inv_den and delta; zeros elsewhere."""
    rows = tl.arange(0, CHUNK)
    j = first + rows
    here = (j >= low) & (j < high)
    inv_den = tl.full((CHUNK,), 1.0, tl.float32)
    delta = tl.zeros((CHUNK,), tl.float32)
    if OUTPUT == "o" or OUTPUT == "dq":
        if HAS_MASK:
            here = tl.load(MASK + j, mask=here, other=0) != 0
    else:
        inv_den = tl.load(INV_DEN + j, mask=here, other=0.0)
        if OUTPUT == "dk":
            delta = tl.load(DELTA + j, mask=here, other=0.0)
    first64 = first.to(tl.int64)
    b = load_rows(B + first64 * b_t, b_t, rows, here, tl.arange(0, BF), F, F != BF)
    x = load_rows(X + first64 * x_t, x_t, rows, here, columns, N, N % BN != 0)
    # Of queries whose g is zero q may be anything.
    if OUTPUT == "dv":
        b = tl.where((inv_den != 0.0)[:, None], b, 0.0)
    if OUTPUT == "dk":
        x = tl.where((inv_den != 0.0)[:, None], x, 0.0)
    return here, b, x, inv_den, delta


@triton.jit(
    do_not_specialize=["heads", "length", "others", "shift", "segment", "row_b", "row_h", "mask_stride"]
)
def wide(
    A, B, X, Y, GATE, DEN, INV_DEN, DELTA, PARTIAL, TOTAL, MASK, BOUNDS, TABLE, heads, length,
    others, shift, segment, eps,
    a_b, a_t: tl.constexpr, a_h, b_b, b_t: tl.constexpr, b_h, x_b, x_t: tl.constexpr, x_h,
    y_b, y_t: tl.constexpr, y_h, gate_b, gate_t: tl.constexpr, gate_h,
    row_b, row_h, mask_stride,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, OUTPUT: tl.constexpr, CAUSAL: tl.constexpr,
    IS_VARLEN: tl.constexpr, HAS_MASK: tl.constexpr, CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A, B, X, Y and GATE: a, b, c, y and x of roles.py; DEN, which "o" writes, INV_DEN and DELTA are
    [B, H, Tq]. PARTIAL [B, own heads, T, N] and TOTAL [BLOCKS, B, own heads, T] are scratch memory."""
    ON_Q: tl.constexpr = (OUTPUT == "o") or (OUTPUT == "dq")
    TRANSPOSED: tl.constexpr = (OUTPUT == "dq") or (OUTPUT == "dk")
    F: tl.constexpr = DV if TRANSPOSED else D
    N: tl.constexpr = D if TRANSPOSED else DV
    BZ: tl.constexpr = BN if TRANSPOSED else BF
    BLOCKS: tl.constexpr = (N + BN - 1) // BN
    MEMBERS: tl.constexpr = 1 if ON_Q else GROUP  # heads of the other side
    OWN: tl.constexpr = GROUP if ON_Q else 1  # heads of this side for each in the table

    pid = tl.program_id(0)
    block = pid % BLOCKS
    entry = pid // BLOCKS % (heads * OWN)
    part = pid // BLOCKS // (heads * OWN)
    parts = tl.cdiv(length, segment)
    batch = (part // parts).to(tl.int64)
    begin = part % parts * segment
    stop = tl.minimum(begin + segment, length)
    key_head = tl.load(TABLE + 3 * (entry // OWN)).to(tl.int64)
    window = tl.load(TABLE + 3 * (entry // OWN) + 1)
    head = key_head * OWN + entry % OWN
    other = key_head * MEMBERS

    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    columns = block * BN + tl.arange(0, BN)
    chunks = window // CHUNK
    back = 0 if CAUSAL and not ON_Q else -chunks
    front = 0 if CAUSAL and ON_Q else chunks
    # Where its rows begin in PARTIAL and in TOTAL.
    mine = (batch * (heads * OWN) + entry) * length
    totals = mine + block * (tl.num_programs(0) // BLOCKS // parts) * length.to(tl.int64)

    A += batch * a_b + head * a_h
    B += batch * b_b + other * b_h
    X += batch * x_b + other * x_h
    Y += batch * y_b + head * y_h
    if TRANSPOSED:
        GATE += batch * gate_b + head * gate_h
    vectors = batch * row_b + (head if ON_Q else other) * row_h
    if HAS_MASK:
        MASK += batch * mask_stride

    while begin < stop:
        low = 0
        high = others
        end = stop
        if IS_VARLEN:
            low = tl.load(BOUNDS + begin)
            high = tl.load(BOUNDS + length + begin)
            end = tl.minimum(high, stop)
        origin = begin + shift  # of the other side
        count = tl.cdiv(end - begin, CHUNK)
        middle = back + count
        # Whether there is anything for the first pass.
        before = origin + middle * CHUNK > low
        for SECOND in tl.static_range(2):
            sc = tl.zeros((BF, BN), tl.float32)
            ss = tl.zeros((BF, BN), tl.float32)
            zc = tl.zeros((PARTS, BZ), tl.float32)
            zs = tl.zeros((PARTS, BZ), tl.float32)
            steps = count
            edge = front
            if SECOND:
                tl.debug_barrier()  # what the first pass has written is read
                # Chunks with no row in [low, high) are left out; a quotient may be rounded either way.
                since = tl.maximum(middle, (low - origin) // CHUNK - 1)
                until = tl.minimum(front, (high - origin) // CHUNK + 2)
                for n in range(tl.maximum(until - since, 0) * MEMBERS):
                    m = (since + n // MEMBERS) * CHUNK
                    member = (m * 0 + n % MEMBERS).to(tl.int64)
                    here, b, x, inv_den, delta = chunk_of(
                        B + member * b_h, X + member * x_h, INV_DEN + vectors + member * row_h,
                        DELTA + vectors + member * row_h, MASK, origin + m, low, high, columns, b_t, x_t, F,
                        N,
                        OUTPUT, HAS_MASK, CHUNK, BF, BN,
                    )  # fmt: skip
                    cj, sj = turn(m + rows, window, DOT)
                    sc, zc = take(b, x, delta, cj * inv_den, sc, zc, OUTPUT, PARTS, DOT, PRECISION)
                    ss, zs = take(b, x, delta, sj * inv_den, ss, zs, OUTPUT, PARTS, DOT, PRECISION)
            else:
                steps = tl.where(before, count, 0)
                edge = back
            for n in range(steps):
                first = begin + (n if SECOND else count - 1 - n) * CHUNK
                first64 = first.to(tl.int64)
                inside = first + rows < end
                own = inside
                if HAS_MASK and not ON_Q:
                    own = tl.load(MASK + first + rows, mask=inside, other=0) != 0
                c, s = turn(first - begin + rows, window, DOT)
                a = load_rows(A + first64 * a_t, a_t, rows, own, features, F, F != BF)
                vector = vectors + first + rows
                kept = PARTIAL + (mine + first + rows)[:, None] * N + columns[None, :]
                real = inside[:, None] & (columns < N)[None, :]
                acc = tl.zeros((CHUNK, BN), tl.float32)
                total = tl.zeros((CHUNK,), tl.float32)
                w = tl.full((CHUNK,), 1.0, tl.float32)
                if SECOND:
                    acc = tl.load(kept, mask=real & before, other=0.0)
                    if OUTPUT == "o":
                        total = tl.load(TOTAL + totals + first + rows, mask=inside & before, other=0.0)
                if OUTPUT == "dq":
                    w = tl.load(DELTA + vector, mask=inside, other=0.0)
                raw = to_dot_dtype(a, DOT, PRECISION) if TRANSPOSED else rectified(a, DOT, PRECISION)
                if MEMBERS > 1:
                    acc, total = apply(a, raw, w, c, sc, zc, acc, total, OUTPUT, PARTS, DOT, PRECISION)
                    acc, total = apply(a, raw, w, s, ss, zs, acc, total, OUTPUT, PARTS, DOT, PRECISION)
                for g in range(MEMBERS):
                    m = first - begin + edge * CHUNK
                    member = (m * 0 + g).to(tl.int64)
                    here, b, x, inv_den, delta = chunk_of(
                        B + member * b_h, X + member * x_h, INV_DEN + vectors + member * row_h,
                        DELTA + vectors + member * row_h, MASK, origin + m, low, high, columns, b_t, x_t, F,
                        N,
                        OUTPUT, HAS_MASK, CHUNK, BF, BN,
                    )  # fmt: skip
                    cj, sj = turn(m + rows, window, DOT)
                    # Row a of the chunk and row b of the edge.
                    if SECOND and CAUSAL and ON_Q:
                        seen = rows[None, :] <= rows[:, None]
                    elif SECOND:
                        seen = rows[None, :] < rows[:, None]
                    elif CAUSAL and not ON_Q:
                        seen = rows[None, :] >= rows[:, None]
                    else:
                        seen = rows[None, :] > rows[:, None]
                    acc, total = square(
                        raw, b, x, w if OUTPUT == "dq" else delta, inv_den, c, s, cj, sj, seen & here[None,
                        :], acc,
                        total, OUTPUT, DOT, PRECISION,
                    )  # fmt: skip
                    # One phase after the other: fewer registers are needed at a time.
                    if MEMBERS == 1:
                        acc, total = apply(a, raw, w, c, sc, zc, acc, total, OUTPUT, PARTS, DOT, PRECISION)
                    sc, zc = take(b, x, delta, cj * inv_den, sc, zc, OUTPUT, PARTS, DOT, PRECISION)
                    if MEMBERS == 1:
                        acc, total = apply(a, raw, w, s, ss, zs, acc, total, OUTPUT, PARTS, DOT, PRECISION)
                    ss, zs = take(b, x, delta, sj * inv_den, ss, zs, OUTPUT, PARTS, DOT, PRECISION)
                if SECOND:
                    if OUTPUT == "o":
                        if block == 0:
                            tl.store(DEN + vector, total, mask=inside)
                        acc *= (1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
                    if OUTPUT == "dq":
                        inverse = tl.load(INV_DEN + vector, mask=inside, other=0.0)
                        acc = tl.where((inverse != 0.0)[:, None], acc * inverse[:, None], 0.0)
                    if TRANSPOSED:
                        gate = load_rows(GATE + first64 * gate_t, gate_t, rows, own, columns, N, N % BN != 0)
                        acc = gated(acc, gate)
                    if OUTPUT == "dv":
                        acc = tl.where(own[:, None], acc, 0.0)
                    store_rows(Y + first64 * y_t, y_t, rows, inside, columns, acc, N, N % BN != 0)
                else:
                    tl.store(kept, acc, mask=real)
                    if OUTPUT == "o":
                        tl.store(TOTAL + totals + first + rows, total, mask=inside)
        begin = end
