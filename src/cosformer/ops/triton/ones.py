"""What the column of ones, or of e, adds to causal attention (the table in rows.py).

    h_i = sum_j cos(theta_i - theta_j) w_j x_j

    "o"    x = k', w = 1, j <= i        d_i = q'_i . h_i, the denominator
    "dq"   x = k', w = 1, j <= i        the first part of dq_i: r_i e_i h_i; r and e go out as well
    "dk"   x = r q', w = e, j >= i      the first part of dk_i: h_i

The same walk as in walk.py with a state of one column: z = sum_j w_j phi(x_j) [2, D]. Inside a chunk
the cosines depend on the distance alone: they are one matrix for all chunks. z is kept as PARTS partial
sums, because a sum over all rows would make the warps wait for each other in every chunk; a matrix
product adds them up where they are used.

Bytes moved, in tensors the size of q: "o" reads q and k (2), "dq" reads g, o, k and writes (4), "dk"
reads q and writes (2).
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import (
    at,
    gradients_of_rows,
    inner,
    locate,
    narrow,
    partial,
    phases,
    read,
    relu,
    repeated,
    visible,
    write,
)


@triton.jit(do_not_specialize=["origin", "length", "pieces", "size", "row_b", "row_h", "mask_stride"])
def ones(
    A, X, Y, O, DENOMINATOR, INVERSE, E, MASK, POSITIONS, Z, Z_OUT, CU, DOCUMENT, FIRST, SLOT,
    origin, length, pieces, size, horizon, eps, a_b, a_t, a_h, x_b, x_t, x_h, y_b, y_t, y_h, o_b, o_t, o_h,
    row_b, row_h, mask_stride, z_stride, z_out_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    WHAT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, CARRIED: tl.constexpr,
    STARTED: tl.constexpr, STORED: tl.constexpr,
    CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`A` is q for "o", g for "dq"; `X` is k, or q for "dk". BF pads Dv, BN pads D."""
    ON_Q: tl.constexpr = (WHAT == "o") or (WHAT == "dq")
    PAD_F: tl.constexpr = DV != BF
    PAD_N: tl.constexpr = D != BN
    KEY_HEADS: tl.constexpr = HEADS // GROUP if ON_Q else HEADS
    TIMES: tl.constexpr = 1 if ON_Q else GROUP

    pid = tl.program_id(0)
    head = pid % HEADS
    row, start, begin, end, slot = locate(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED
    )
    key_head = head // GROUP if ON_Q else head
    other = key_head if ON_Q else head * GROUP
    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    columns = tl.arange(0, BN)
    index = (slot * KEY_HEADS + key_head).to(tl.int64)
    zc = tl.zeros((PARTS, BN), tl.float32)
    zs = tl.zeros((PARTS, BN), tl.float32)
    if STARTED:
        there = (columns < D)[None, :] & (tl.arange(0, PARTS) == 0)[:, None] & (slot >= 0)
        at_z = Z + index * z_stride + columns[None, :] + tl.zeros((PARTS, 1), tl.int32)
        zc = tl.load(at_z, mask=there, other=0.0)
        zs = tl.load(at_z + D, mask=there, other=0.0)
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)
    near, _ = phases(rows[:, None] - rows[None, :], horizon)
    near = tl.where((rows[:, None] >= rows[None, :]) if ON_Q else (rows[:, None] <= rows[None, :]), near, 0.0)
    near = narrow(near, DOT, PRECISION)

    chunks = tl.cdiv(end - begin, CHUNK)
    for i in range(chunks):
        first = begin + (i if ON_Q else chunks - 1 - i) * CHUNK
        token = start + first
        inside = first + rows < end
        c, s = phases(origin + first + rows, horizon)
        vector = (0 if PACKED else row.to(tl.int64) * row_b) + token
        h = tl.dot(
            narrow(repeated(c, PARTS), DOT, PRECISION), narrow(zc, DOT, PRECISION), input_precision=PRECISION
        )
        h = inner(narrow(repeated(s, PARTS), DOT, PRECISION), narrow(zs, DOT, PRECISION), h, PRECISION)
        for g in tl.static_range(TIMES):
            seen = inside
            if ON_Q:
                seen = visible(MASK, mask_stride, row, first + rows, inside, MASKED)
            x_rows = at(X, row, token, other + g, x_b, x_t, x_h, PACKED)
            x = relu(read(x_rows, x_t, rows, seen, columns, D, PAD_N))
            if WHAT == "dk":
                of_head = vector + (other + g).to(tl.int64) * row_h
                r = tl.load(INVERSE + of_head + rows, mask=inside, other=0.0)
                e = tl.load(E + of_head + rows, mask=inside, other=0.0)
                x = tl.where((r != 0.0)[:, None], x, 0.0) * (r * e)[:, None]
            zc += partial(x * c[:, None], PARTS)
            zs += partial(x * s[:, None], PARTS)
            h = inner(near, narrow(x, DOT, PRECISION), h, PRECISION)
        if ON_Q:
            vector += head.to(tl.int64) * row_h
            a_rows = at(A, row, token, head, a_b, a_t, a_h, PACKED)
        if WHAT == "o":
            q = relu(read(a_rows, a_t, rows, inside, columns, D, PAD_N))
            tl.store(DENOMINATOR + vector + rows, tl.sum(q * h, 1), mask=inside)
        else:
            if WHAT == "dq":
                g = read(a_rows, a_t, rows, inside, features, DV, PAD_F)
                o = read(
                    at(O, row, token, head, o_b, o_t, o_h, PACKED), o_t, rows, inside, features, DV, PAD_F
                )
                d = tl.load(DENOMINATOR + vector + rows, mask=inside, other=1.0)
                r, e = gradients_of_rows(g, o, d, eps)
                tl.store(INVERSE + vector + rows, r, mask=inside)
                tl.store(E + vector + rows, e, mask=inside)
                h = tl.where((r != 0.0)[:, None], h * (r * e)[:, None], 0.0)
            y_rows = at(Y, row, token, head, y_b, y_t, y_h, PACKED)
            write(y_rows, y_t, rows, inside, columns, h, D, PAD_N)

    if STORED:
        tl.store(Z_OUT + index * z_out_stride + columns, tl.sum(zc, 0), mask=columns < D)
        tl.store(Z_OUT + index * z_out_stride + D + columns, tl.sum(zs, 0), mask=columns < D)
