"""Causal attention and its three gradients (the table in rows.py): a walk along the sequence.

One program takes one head of one piece of a row, and BN columns of the result. It goes through the
piece in chunks of CHUNK tokens, forwards for "o" and "dq", backwards for "dk" and "dv", with the
state S = sum_j phi(b_j) c_j^T of all chunks behind it in registers, fp32 [2, features, BN]:

    P = phi(a) phi(b)^T inside the chunk, the future left out
    y = phi(a) S + P c,     S += phi(b)^T c,     phi(x)_i = [x_i cos theta_i, x_i sin theta_i]

The 2D-wide features and the square exist in registers and shared memory alone. What the column of
ones (or of e) adds was computed by ones.py: kept here, its sums cost more registers than there are.

Bytes moved, in tensors the size of q, where one program holds all columns: "o" reads q, k, v and
writes o (4: the floor); "dq" reads g, v, k, q and its own first part and writes dq (6), "dk" likewise
(6), "dv" reads k, q, g and writes dv (4).
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import at, inner, locate, narrow, phases, read, relu, visible, write


@triton.jit
def meet(
    ac, as_, B, C, MASK, INVERSE, mask_stride, stride_b, stride_c, row, token, inside, rows, features,
    columns, c, s, acc, sc, ss, WHAT: tl.constexpr, F: tl.constexpr, N: tl.constexpr, PAD_F: tl.constexpr,
    PAD_N: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk of a meets one chunk of b and c: adds to the result and to the state."""
    seen = inside
    if (WHAT == "o") or (WHAT == "dq"):
        seen = visible(MASK, mask_stride, row, token, inside, MASKED)
    b = read(B, stride_b, rows, seen, features, F, PAD_F)
    x = read(C, stride_c, rows, seen, columns, N, PAD_N)
    if WHAT == "o":
        b = relu(b)
    elif WHAT == "dq":
        b = b.to(tl.float32)
        x = relu(x)
    else:
        r = tl.load(INVERSE + rows, mask=inside, other=0.0)
        if WHAT == "dk":
            b = b.to(tl.float32)
            x = tl.where((r != 0.0)[:, None], relu(x), 0.0) * r[:, None]
        else:
            b = tl.where((r != 0.0)[:, None], relu(b), 0.0) * r[:, None]
    bc = narrow(b * c[:, None], DOT, PRECISION)
    bs = narrow(b * s[:, None], DOT, PRECISION)
    x = narrow(x.to(tl.float32), DOT, PRECISION)

    p = tl.dot(ac, tl.trans(bc), input_precision=PRECISION)
    p = inner(as_, tl.trans(bs), p, PRECISION)
    if (WHAT == "o") or (WHAT == "dq"):
        p = tl.where(rows[:, None] >= rows[None, :], p, 0.0)
    else:
        p = tl.where(rows[:, None] <= rows[None, :], p, 0.0)
    acc = inner(narrow(p, DOT, PRECISION), x, acc, PRECISION)
    sc = inner(tl.trans(bc), x, sc, PRECISION)
    ss = inner(tl.trans(bs), x, ss, PRECISION)
    return acc, sc, ss


@triton.jit(do_not_specialize=["origin", "length", "pieces", "size", "row_b", "row_h", "mask_stride"])
def walk(
    A, B, C, Y, X, DENOMINATOR, INVERSE, MASK, POSITIONS, S, S_OUT, CU, DOCUMENT, FIRST, SLOT,
    origin, length, pieces, size, horizon, eps,
    a_b, a_t, a_h, b_b, b_t, b_h, c_b, c_t, c_h, y_b, y_t, y_h, x_b, x_t, x_h,
    row_b, row_h, mask_stride, s_stride, s_out_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    WHAT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, CARRIED: tl.constexpr,
    STARTED: tl.constexpr, STORED: tl.constexpr,
    CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`X` is what the ReLU behind the result saw (q for "dq", k for "dk"); the vectors DENOMINATOR and
    INVERSE (r) are [B, H, T]. STARTED: S holds what came before; STORED: what comes after goes to
    S_OUT; CARRIED: rows begin at POSITIONS."""
    # Of queries or of keys: "o" and "dq" give rows to query heads, and several share a key head.
    ON_Q: tl.constexpr = (WHAT == "o") or (WHAT == "dq")
    # The state of "dq" and "dk" is the transposed one of "o" and "dv".
    TURNED: tl.constexpr = (WHAT == "dq") or (WHAT == "dk")
    F: tl.constexpr = DV if TURNED else D
    N: tl.constexpr = D if TURNED else DV
    BLOCKS: tl.constexpr = (N + BN - 1) // BN
    PAD_F: tl.constexpr = F != BF
    PAD_N: tl.constexpr = N % BN != 0
    KEY_HEADS: tl.constexpr = HEADS // GROUP if ON_Q else HEADS

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

    sc = tl.zeros((BF, BN), tl.float32)
    ss = tl.zeros((BF, BN), tl.float32)
    tile = features[:, None] * (1 if TURNED else DV) + columns[None, :] * (DV if TURNED else 1)
    whole = (features < F)[:, None] & (columns < N)[None, :]
    index = (slot * KEY_HEADS + key_head).to(tl.int64)
    if STARTED:
        there = whole & (slot >= 0)
        sc = tl.load(S + index * s_stride + tile, mask=there, other=0.0)
        ss = tl.load(S + index * s_stride + D * DV + tile, mask=there, other=0.0)
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)

    chunks = tl.cdiv(end - begin, CHUNK)
    for i in range(chunks):
        first = begin + (i if ON_Q else chunks - 1 - i) * CHUNK
        token = start + first
        inside = first + rows < end
        c, s = phases(origin + first + rows, horizon)
        vector = (0 if PACKED else row.to(tl.int64) * row_b) + token
        seen = inside
        if ON_Q:
            vector += head.to(tl.int64) * row_h
        else:
            vector += other.to(tl.int64) * row_h
            seen = visible(MASK, mask_stride, row, first + rows, inside, MASKED)
        a = read(at(A, row, token, head, a_b, a_t, a_h, PACKED), a_t, rows, seen, features, F, PAD_F)
        if TURNED:
            a = a.to(tl.float32)
        else:
            a = relu(a)
        ac, as_ = narrow(a * c[:, None], DOT, PRECISION), narrow(a * s[:, None], DOT, PRECISION)
        acc = tl.dot(ac, narrow(sc, DOT, PRECISION), input_precision=PRECISION)
        acc = inner(as_, narrow(ss, DOT, PRECISION), acc, PRECISION)
        b_rows = at(B, row, token, other, b_b, b_t, b_h, PACKED)
        c_rows = at(C, row, token, other, c_b, c_t, c_h, PACKED)
        if ON_Q or GROUP == 1:
            acc, sc, ss = meet(
                ac, as_, b_rows, c_rows, MASK, INVERSE + vector, mask_stride, b_t, c_t, row, first + rows,
                inside, rows, features, columns, c, s, acc, sc, ss, WHAT, F, N, PAD_F, PAD_N, MASKED, DOT,
                PRECISION,
            )  # fmt: skip
        else:
            r_rows = INVERSE + vector
            for _ in range(GROUP):
                acc, sc, ss = meet(
                    ac, as_, b_rows, c_rows, MASK, r_rows, mask_stride, b_t, c_t, row, first + rows, inside,
                    rows, features, columns, c, s, acc, sc, ss, WHAT, F, N, PAD_F, PAD_N, MASKED, DOT,
                    PRECISION,
                )  # fmt: skip
                b_rows += b_h
                c_rows += c_h
                r_rows += row_h

        y_rows = at(Y, row, token, head, y_b, y_t, y_h, PACKED)
        if WHAT == "o":
            d = tl.load(DENOMINATOR + vector + rows, mask=inside, other=1.0)
            acc *= (1.0 / tl.maximum(d, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
        elif TURNED:
            if WHAT == "dq":
                r = tl.load(INVERSE + vector + rows, mask=inside, other=0.0)
                acc = tl.where((r != 0.0)[:, None], acc * r[:, None], 0.0)
            acc += read(y_rows, y_t, rows, inside, columns, N, PAD_N).to(tl.float32)
            x = read(at(X, row, token, head, x_b, x_t, x_h, PACKED), x_t, rows, seen, columns, N, PAD_N)
            acc = tl.where(x > 0, acc, 0.0)
        write(y_rows, y_t, rows, inside, columns, acc, N, PAD_N)

    if STORED:
        tl.store(S_OUT + index * s_out_stride + tile, sc, mask=whole)
        tl.store(S_OUT + index * s_out_stride + D * DV + tile, ss, mask=whole)
