"""Causal attention and its three gradients (the table in rows.py): a walk along the sequence.

One program takes one head of one piece of a row, and BN columns of the result. It goes through the
piece in chunks of CHUNK tokens, forwards for "o" and "dq", backwards for "dk" and "dv", with the
state of all chunks behind it in registers, fp32: S = sum_j phi(b_j) c_j^T, transposed, and, for the column
of ones or of e, z. With phi(x)_i = [x_i cos theta_i, x_i sin theta_i], side by side (`phi`, rows.py),

    "o", "dv":   P = phi(a) phi(b)^T            y = phi(a) S + P c           S^T += c^T phi(b)
    "dq", "dk":  P = a b^T + e                  y = phi(1)^T (a S + e z + P phi(c))     S += b^T phi(c)

inside the chunk without the future: the phases go where q and k are, and g and v are multiplied as
they lie in memory. The 2D-wide features and the square exist in registers and shared memory alone. The first
factor of what is added to S is always a tensor as it was read: one that was computed would go through shared
memory twice, in two layouts.

z is kept as PARTS partial sums, because a sum over all rows would make the warps wait for each other
in every chunk; a matrix product adds them up where they are used.

A row in two pieces is walked by one launch: the second piece sums up the keys of the first itself, while that
one walks (CATCHES_UP; pieces.py). Rows in more pieces get the states they start from first (states.py).

Bytes moved, in tensors the size of q, where one program holds all columns: "o" reads q, k, v and
writes o (4: the floor); "dq" reads g, v, k, q and writes dq (5), "dk" reads v, g, q, k and writes dk (5),
"dv" reads k, q, g and writes dv (4).
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import (
    along,
    at,
    folded,
    inner,
    locate,
    narrow,
    of_phi,
    partial,
    phases,
    phi,
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
def caught_up(
    B, C, MASK, row, head, begin, end, origin, horizon, features, columns, state, z, b_b, b_t: tl.constexpr,
    b_h, c_b, c_t: tl.constexpr, c_h, mask_stride, F: tl.constexpr, N: tl.constexpr, MASKED: tl.constexpr,
    CHUNK: tl.constexpr, PAD_F: tl.constexpr, PAD_N: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A state of keys with those of [begin, end), whole chunks."""
    rows = tl.arange(0, CHUNK)
    for i in range(tl.cdiv(end - begin, CHUNK)):
        first = begin + i * CHUNK
        seen = visible(MASK, mask_stride, row, first + rows, rows >= 0, MASKED)
        b = read(at(B, row, first, head, b_b, b_t, b_h, False), b_t, rows, seen, features, F, PAD_F)
        x = read(at(C, row, first, head, c_b, c_t, c_h, False), c_t, rows, seen, columns, N, PAD_N)
        c, s = phases(origin + first + rows, horizon, DOT)
        b = phi(b, c, s, DOT, PRECISION)
        z += partial(b.to(tl.float32), PARTS)
        state = inner(tl.trans(narrow(x, DOT, PRECISION)), b, state, PRECISION)
    return state, z


@triton.jit(do_not_specialize=["origin", "length", "pieces", "size", "half", "row_b", "row_h", "mask_stride"])
def walk(
    A, B, C, Y, X, DENOMINATOR, INVERSE, E, MASK, POSITIONS, S, Z, S_OUT, Z_OUT, KEPT, CU, DOCUMENT, FIRST,
    SLOT, origin, length, pieces, size, half, horizon, eps,
    a_b, a_t: tl.constexpr, a_h, b_b, b_t: tl.constexpr, b_h, c_b, c_t: tl.constexpr, c_h,
    y_b, y_t: tl.constexpr, y_h, x_b, x_t: tl.constexpr, x_h,
    row_b, row_h, mask_stride, s_stride, z_stride, s_out_stride, z_out_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    WHAT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, CARRIED: tl.constexpr,
    STARTED: tl.constexpr, STORED: tl.constexpr, ONES: tl.constexpr, CATCHES_UP: tl.constexpr,
    CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`X` is what the ReLU behind the result saw (q for "dq", k for "dk"); the vectors DENOMINATOR,
    INVERSE (r) and E are [B, H, T]. ONES: "o" computes denominators too; otherwise it finds them.
    STARTED: S and Z hold what came before; STORED: what comes after goes to S_OUT and Z_OUT; CARRIED:
    rows begin at POSITIONS. CATCHES_UP ("o", two pieces a row): S, Z, S_OUT and Z_OUT are of rows; the second
    piece sums up the keys of the first itself, and what there is before the row and before its token `half`
    goes to KEPT, if that is there."""
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
    piece = pid // (BLOCKS * HEADS)
    if CATCHES_UP:  # all first pieces, then all second ones: a multiprocessor is to have one of each
        count = tl.num_programs(0) // (2 * BLOCKS * HEADS)
        piece = piece % count * 2 + piece // count
    row, start, begin, end, slot = locate(piece, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED)
    key_head = head // GROUP if ON_Q else head
    other = key_head if ON_Q else head * GROUP
    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    columns = block * BN + tl.arange(0, BN)

    # The state as it lies in memory, [2, D, Dv], and in registers, [Dv, 2 D].
    of_v = features if TURNED else columns
    of_z, sine = of_phi(BZ)
    if TURNED:
        of_z += block * BN
    tile = of_v[:, None] + (of_z * DV + sine * (D * DV))[None, :]
    whole = (of_v < DV)[:, None] & (of_z < D)[None, :]
    line = sine * D + of_z
    state = tl.zeros((BF if TURNED else BN, 2 * BZ), tl.float32)
    z = tl.zeros((PARTS, 2 * BZ), tl.float32)
    if CATCHES_UP:
        slot = row
    index = (slot * KEY_HEADS + key_head).to(tl.int64)
    if STARTED:
        state = tl.load(S + index * s_stride + tile, mask=whole & (slot >= 0), other=0.0)
        if ONES or TURNED:
            z_before = tl.load(Z + index * z_stride + line, mask=(of_z < D) & (slot >= 0), other=0.0)
            z = partial(tl.where((rows == 0)[:, None], z_before[None, :], 0.0), PARTS)
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)

    if CATCHES_UP:
        caught = begin * 0
        for part in range(1 if KEPT is None else 2):
            until = begin
            if KEPT is not None:
                until = tl.minimum(begin, half + part * begin)
            state, z = caught_up(
                B, C, MASK, row, key_head, caught, until, origin, horizon, features, columns, state, z, b_b,
                b_t, b_h, c_b, c_t, c_h, mask_stride, F, N, MASKED, CHUNK, PAD_F, PAD_N, PARTS, DOT,
                PRECISION,
            )  # fmt: skip
            caught = until
            if KEPT is not None:
                kept = ((2 * row + (begin > 0)) * KEY_HEADS + key_head).to(tl.int64) * (2 * D * (DV + 1))
                tl.store(KEPT + kept + tile, state, mask=whole & (part == 0))
                mine = (of_z < D) & (block == 0) & (part == 0)
                tl.store(KEPT + kept + 2 * D * DV + line, tl.sum(z, 0), mask=mine)

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
            acc = along(a, narrow(state, DOT, PRECISION), PRECISION)
            acc = inner(w, narrow(z, DOT, PRECISION), acc, PRECISION)
        else:
            a = phi(a, c, s, DOT, PRECISION)
            acc = tl.zeros((CHUNK, BN), tl.float32)
            if not LONE:
                acc = tl.dot(a, tl.trans(narrow(state, DOT, PRECISION)), input_precision=PRECISION)
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
                y = phi(y, bc, bs, DOT, PRECISION)
                if WHAT == "dq":
                    z += partial(y.to(tl.float32), PARTS)
                else:
                    z += partial(y.to(tl.float32) * e[:, None], PARTS)
                acc = inner(narrow(past(p, rows, ON_Q), DOT, PRECISION), y, acc, PRECISION)
                state = inner(tl.trans(b), y, state, PRECISION)
            else:
                if WHAT == "dv":
                    b = tl.where((r != 0.0)[:, None], b, 0.0)
                y = narrow(y, DOT, PRECISION)
                b = phi(b, bc, bs, DOT, PRECISION)
                if ONES:
                    parts = tl.dot(a, tl.trans(narrow(z, DOT, PRECISION)), input_precision=PRECISION)
                    total = tl.sum(parts, 1)
                    z += partial(b.to(tl.float32), PARTS)
                p = past(tl.dot(a, tl.trans(b), input_precision=PRECISION), rows, ON_Q)
                if ONES:
                    total += tl.sum(p, 1)
                if LONE:
                    acc = tl.dot(a, tl.trans(narrow(state, DOT, PRECISION)), input_precision=PRECISION)
                acc = inner(narrow(p, DOT, PRECISION), y, acc, PRECISION)
                state = inner(tl.trans(y), b, state, PRECISION)
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
            acc = folded(acc, c, s)
            if WHAT == "dq":
                acc = tl.where((r != 0.0)[:, None], acc * r[:, None], 0.0)
            acc = tl.where(x > 0, acc, 0.0)
        write(y_rows, y_t, rows, inside, columns, acc, N, PAD_N)

    if STORED:
        last = (not CATCHES_UP) or end == length
        tl.store(S_OUT + index * s_out_stride + tile, state, mask=whole & last)
        if TURNED or ONES:
            mine = (of_z < D) & last & (TURNED or block == 0)
            tl.store(Z_OUT + index * z_out_stride + line, tl.sum(z, 0), mask=mine)
