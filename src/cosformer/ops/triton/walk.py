"""Causal attention and its three gradients (the table in rows.py): a walk along the sequence.

One program takes one head of one piece of a row, and BN columns of the result. It goes through the
piece in chunks of CHUNK tokens, forwards for "o" and "dq", backwards for "dk" and "dv", with the
state of all chunks behind it in registers, fp32: S = sum_j phi(b_j) c_j^T [2, features, BN] and, for the
column of ones or of e, z [2, D]. With phi(x)_i = [x_i cos theta_i, x_i sin theta_i],

    "o", "dv":   P = phi(a) phi(b)^T            y = phi(a) S + P c           S += phi(b)^T c
    "dq", "dk":  P = a b^T + e                  y = phi(1)^T (a S + e z + P phi(c))     S += b^T phi(c)

inside the chunk without the future: the phases go where q and k are, and g and v are multiplied as
they lie in memory. The 2D-wide features and the square exist in registers and shared memory alone.

z is kept as PARTS partial sums, because a sum over all rows would make the warps wait for each other
in every chunk; a matrix product adds them up where they are used.

Bytes moved, in tensors the size of q, where one program holds all columns: "o" reads q, k, v and
writes o (4: the floor); "dq" reads g, v, k, q and writes dq (5), "dk" reads v, g, q, k and writes dk (5),
"dv" reads k, q, g and writes dv (4).
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import (
    along,
    at,
    feature,
    further,
    inner,
    locate,
    narrow,
    partial,
    phases,
    quotient,
    read,
    repeated,
    visible,
    write,
)


@triton.jit
def past(p, rows, ON_Q: tl.constexpr):
    """The scores of a chunk with itself, the future left out."""
    if ON_Q:
        return tl.where(rows[:, None] >= rows[None, :], p, 0.0)
    return tl.where(rows[:, None] <= rows[None, :], p, 0.0)


@triton.jit
def straight(
    ac, as_, b, x, bc, bs, acc, sc, ss, rows, ON_Q: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ "o" and "dv": a chunk of phi(a) meets the chunk of b and c, which then belongs to the state."""
    bc, bs = feature(b, bc, DOT, PRECISION), feature(b, bs, DOT, PRECISION)
    p = tl.dot(ac, tl.trans(bc), input_precision=PRECISION)
    p = past(inner(as_, tl.trans(bs), p, PRECISION), rows, ON_Q)
    acc = inner(narrow(p, DOT, PRECISION), x, acc, PRECISION)
    sc = inner(tl.trans(bc), x, sc, PRECISION)
    ss = inner(tl.trans(bs), x, ss, PRECISION)
    return acc, sc, ss


@triton.jit
def with_ones(
    a, b, x, phase, acc, p, total, S, z, PARTS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr
):
    """ "o" with its denominators, for one of the two phases after the other: fewer registers are needed
    at a time. `total` gathers the denominators."""
    a = feature(a, phase, DOT, PRECISION)
    acc = inner(a, narrow(S, DOT, PRECISION), acc, PRECISION)
    total += tl.sum(tl.dot(a, tl.trans(narrow(z, DOT, PRECISION)), input_precision=PRECISION), 1)
    b = feature(b, phase, DOT, PRECISION)
    p = inner(a, tl.trans(b), p, PRECISION)
    S = inner(tl.trans(b), x, S, PRECISION)
    z += partial(b.to(tl.float32), PARTS)
    return acc, p, total, S, z


@triton.jit
def turned(
    a, b, x, of_x, e, low, w, acc, S, z, WHAT: tl.constexpr, STATE: tl.constexpr, MEETING: tl.constexpr,
    PARTS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ "dq" and "dk", for one of the two phases: a meets what was there before (STATE), and the chunk of b
    and phi(c) through the scores `low` (MEETING)."""
    if STATE:
        acc = further(a, narrow(S, DOT, PRECISION), acc, PRECISION)
        acc = inner(w, narrow(z, DOT, PRECISION), acc, PRECISION)
    if MEETING:
        x = feature(x, of_x, DOT, PRECISION)
        acc = inner(low, x, acc, PRECISION)
        S = inner(tl.trans(b), x, S, PRECISION)
        if WHAT == "dq":
            z += partial(x.to(tl.float32), PARTS)
        else:
            z += partial(x.to(tl.float32) * e[:, None], PARTS)
    return acc, S, z


@triton.jit(do_not_specialize=["origin", "length", "pieces", "size", "row_b", "row_h", "mask_stride"])
def walk(
    A, B, C, Y, X, DENOMINATOR, INVERSE, E, MASK, POSITIONS, S, Z, S_OUT, Z_OUT, CU, DOCUMENT, FIRST, SLOT,
    origin, length, pieces, size, horizon, eps,
    a_b, a_t: tl.constexpr, a_h, b_b, b_t: tl.constexpr, b_h, c_b, c_t: tl.constexpr, c_h,
    y_b, y_t: tl.constexpr, y_h, x_b, x_t: tl.constexpr, x_h,
    row_b, row_h, mask_stride, s_stride, z_stride, s_out_stride, z_out_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    WHAT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, CARRIED: tl.constexpr,
    STARTED: tl.constexpr, STORED: tl.constexpr, ONES: tl.constexpr,
    CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`X` is what the ReLU behind the result saw (q for "dq", k for "dk"); the vectors DENOMINATOR,
    INVERSE (r) and E are [B, H, T]. ONES: "o" computes denominators too; otherwise it finds them.
    STARTED: S and Z hold what came before; STORED: what comes after goes to S_OUT and Z_OUT; CARRIED:
    rows begin at POSITIONS."""
    # Of queries or of keys: "o" and "dq" give rows to query heads, and several share a key head.
    ON_Q: tl.constexpr = (WHAT == "o") or (WHAT == "dq")
    # The state of "dq" and "dk" is the transposed one of "o" and "dv".
    TURNED: tl.constexpr = (WHAT == "dq") or (WHAT == "dk")
    F: tl.constexpr = DV if TURNED else D
    N: tl.constexpr = D if TURNED else DV
    BLOCKS: tl.constexpr = (N + BN - 1) // BN
    PAD_F: tl.constexpr = F != BF
    PAD_N: tl.constexpr = N % BN != 0
    BZ: tl.constexpr = BN if TURNED else BF
    KEY_HEADS: tl.constexpr = HEADS // GROUP if ON_Q else HEADS
    LONE: tl.constexpr = ON_Q or GROUP == 1

    pid = tl.program_id(0)
    block = pid % BLOCKS
    head = pid // BLOCKS % HEADS
    row, start, begin, end, slot = locate(
        pid // (BLOCKS * HEADS), CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED
    )
    key_head = head // GROUP if ON_Q else head
    other = key_head if ON_Q else head * GROUP
    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    columns = block * BN + tl.arange(0, BN)
    of_z = columns if TURNED else features

    sc = tl.zeros((BF, BN), tl.float32)
    ss = tl.zeros((BF, BN), tl.float32)
    zc = tl.zeros((PARTS, BZ), tl.float32)
    zs = tl.zeros((PARTS, BZ), tl.float32)
    tile = features[:, None] * (1 if TURNED else DV) + columns[None, :] * (DV if TURNED else 1)
    whole = (features < F)[:, None] & (columns < N)[None, :]
    index = (slot * KEY_HEADS + key_head).to(tl.int64)
    if STARTED:
        there = whole & (slot >= 0)
        sc = tl.load(S + index * s_stride + tile, mask=there, other=0.0)
        ss = tl.load(S + index * s_stride + D * DV + tile, mask=there, other=0.0)
        if ONES or TURNED:
            first_part = (of_z < D)[None, :] & (tl.arange(0, PARTS) == 0)[:, None] & (slot >= 0)
            at_z = Z + index * z_stride + of_z[None, :] + tl.zeros((PARTS, 1), tl.int32)
            zc = tl.load(at_z, mask=first_part, other=0.0)
            zs = tl.load(at_z + D, mask=first_part, other=0.0)
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)

    chunks = tl.cdiv(end - begin, CHUNK)
    for i in range(chunks):
        first = begin + (i if ON_Q else chunks - 1 - i) * CHUNK
        token = start + first
        inside = first + rows < end
        c, s = phases(origin + first + rows, horizon, DOT)
        vector = (0 if PACKED else row.to(tl.int64) * row_b) + token
        vector += (head if ON_Q else other).to(tl.int64) * row_h
        seen = visible(MASK, mask_stride, row, first + rows, inside, MASKED)
        of_a = inside if ON_Q else seen
        of_b = seen if ON_Q else inside
        a_rows = at(A, row, token, head, a_b, a_t, a_h, PACKED)
        b_rows = at(B, row, token, other, b_b, b_t, b_h, PACKED)
        c_rows = at(C, row, token, other, c_b, c_t, c_h, PACKED)
        y_rows = at(Y, row, token, head, y_b, y_t, y_h, PACKED)
        a = read(a_rows, a_t, rows, of_a, features, F, PAD_F)
        acc = tl.zeros((CHUNK, BN), tl.float32)
        total = tl.zeros((CHUNK,), tl.float32)
        r = tl.zeros((CHUNK,), tl.float32)
        e = tl.zeros((CHUNK,), tl.float32)
        if TURNED:
            x = read(at(X, row, token, head, x_b, x_t, x_h, PACKED), x_t, rows, of_a, columns, N, PAD_N)
            a = narrow(a, DOT, PRECISION)
            w = tl.full((CHUNK,), 1.0, tl.float32)
            if WHAT == "dq":
                w = tl.load(E + vector + rows, mask=inside, other=0.0)
            w = narrow(repeated(w, PARTS), DOT, PRECISION)
            ratio, sine = quotient(c, s)
        elif not ONES:
            ac, as_ = feature(a, c, DOT, PRECISION), feature(a, s, DOT, PRECISION)
            acc = tl.dot(ac, narrow(sc, DOT, PRECISION), input_precision=PRECISION)
            acc = inner(as_, narrow(ss, DOT, PRECISION), acc, PRECISION)
        if TURNED and not LONE:
            # The state first, then one head of queries after the other.
            acc, sc, zc = turned(a, a, a, c, e, a, w, acc, sc, zc, WHAT, True, False, PARTS, DOT, PRECISION)
            acc *= ratio[:, None]
            acc, ss, zs = turned(a, a, a, s, e, a, w, acc, ss, zs, WHAT, True, False, PARTS, DOT, PRECISION)
        for _ in range(1 if LONE else GROUP):
            b = read(b_rows, b_t, rows, of_b, features, F, PAD_F)
            y = read(c_rows, c_t, rows, of_b, columns, N, PAD_N)
            bc, bs = c, s
            if WHAT != "o":
                r = tl.load(INVERSE + vector + rows, mask=inside, other=0.0)
            if not ON_Q:
                bc, bs = c * r, s * r
            if TURNED:
                e = tl.load(E + vector + rows, mask=inside, other=0.0)
                b = narrow(b, DOT, PRECISION)
                p = along(a, tl.trans(b), PRECISION)
                if WHAT == "dq":
                    p += e[:, None]
                else:
                    p += e[None, :]
                    y = tl.where((r != 0.0)[:, None], y, 0.0)
                low = narrow(past(p, rows, ON_Q), DOT, PRECISION)
                if LONE:
                    acc, sc, zc = turned(
                        a, b, y, bc, e, low, w, acc, sc, zc, WHAT, True, True, PARTS, DOT, PRECISION
                    )
                    acc *= ratio[:, None]
                else:
                    part, sc, zc = turned(
                        a, b, y, bc, e, low, w, tl.zeros((CHUNK, BN), tl.float32), sc, zc, WHAT, False, True,
                        PARTS, DOT, PRECISION,
                    )  # fmt: skip
                    acc += part * ratio[:, None]
                acc, ss, zs = turned(
                    a, b, y, bs, e, low, w, acc, ss, zs, WHAT, LONE, True, PARTS, DOT, PRECISION
                )
            else:
                if WHAT == "dv":
                    b = tl.where((r != 0.0)[:, None], b, 0.0)
                y = narrow(y, DOT, PRECISION)
                if ONES:
                    p = tl.zeros((CHUNK, CHUNK), tl.float32)
                    acc, p, total, sc, zc = with_ones(
                        a, b, y, c, acc, p, total, sc, zc, PARTS, DOT, PRECISION
                    )
                    acc, p, total, ss, zs = with_ones(
                        a, b, y, s, acc, p, total, ss, zs, PARTS, DOT, PRECISION
                    )
                    p = past(p, rows, ON_Q)
                    total += tl.sum(p, 1)
                    acc = inner(narrow(p, DOT, PRECISION), y, acc, PRECISION)
                else:
                    acc, sc, ss = straight(ac, as_, b, y, bc, bs, acc, sc, ss, rows, ON_Q, DOT, PRECISION)
            b_rows += b_h
            c_rows += c_h
            vector += row_h
        if WHAT == "o":
            vector -= row_h
            if ONES:
                if block == 0:
                    tl.store(DENOMINATOR + vector + rows, total, mask=inside)
            else:
                total = tl.load(DENOMINATOR + vector + rows, mask=inside, other=1.0)
            acc *= (1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
        if TURNED:
            acc *= sine[:, None]
            if WHAT == "dq":
                acc = tl.where((r != 0.0)[:, None], acc * r[:, None], 0.0)
            acc = tl.where(x > 0, acc, 0.0)
        write(y_rows, y_t, rows, inside, columns, acc, N, PAD_N)

    if STORED:
        tl.store(S_OUT + index * s_out_stride + tile, sc, mask=whole)
        tl.store(S_OUT + index * s_out_stride + D * DV + tile, ss, mask=whole)
        if TURNED or (ONES and block == 0):
            tl.store(Z_OUT + index * z_out_stride + of_z, tl.sum(zc, 0), mask=of_z < D)
            tl.store(Z_OUT + index * z_out_stride + D + of_z, tl.sum(zs, 0), mask=of_z < D)
