"""Rows against a finished state: bidirectional and cross attention, and their gradients.

    "o", "dv":  y = phi(a) S          "dq", "dk":  y = phi(1)^T (a S + e z)      (as in walk.py)

No chunk meets another: every row stands alone.

One program takes one head of one piece of a row and BN columns of the result; it reads the state once
(in the matrices' type it stays in shared memory) and streams its rows through it. Bytes moved, in
tensors the size of q: "o" reads q, writes o (2); "dq" reads g, o, q, writes dq, r and e (4), or finds r and e
(3); "dk" reads v, k, writes dk (3); "dv" reads k, writes dv (2).
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
    phases,
    quotient,
    read,
    repeated,
    visible,
    write,
)
from cosformer.ops.triton.weigh import weighed


@triton.jit(do_not_specialize=["origin", "length", "pieces", "size", "row_b", "row_h", "mask_stride"])
def apply(
    A, O, Y, X, DENOMINATOR, INVERSE, E, MASK, POSITIONS, S, Z, CU, DOCUMENT, FIRST, SLOT,
    origin, length, pieces, size, horizon, eps,
    a_b, a_t: tl.constexpr, a_h, o_b, o_t: tl.constexpr, o_h, y_b, y_t: tl.constexpr, y_h,
    x_b, x_t: tl.constexpr, x_h, row_b, row_h, mask_stride, s_stride, z_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    WHAT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, CARRIED: tl.constexpr,
    STARTED: tl.constexpr,
    CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """GROUP heads of a share a state; S and Z have one state a row of the batch (or document). "dq" with the
    output O, in one block of columns: r and e are computed here, and go to INVERSE and E."""
    TURNED: tl.constexpr = (WHAT == "dq") or (WHAT == "dk")
    F: tl.constexpr = DV if TURNED else D
    N: tl.constexpr = D if TURNED else DV
    BLOCKS: tl.constexpr = (N + BN - 1) // BN
    PAD_F: tl.constexpr = F != BF
    PAD_N: tl.constexpr = N % BN != 0

    pid = tl.program_id(0)
    block = pid % BLOCKS
    head = pid // BLOCKS % HEADS
    row, start, begin, end, _ = locate(
        pid // (BLOCKS * HEADS), CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED
    )
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)
    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    columns = block * BN + tl.arange(0, BN)
    which = columns if TURNED else features
    index = (row * (HEADS // GROUP) + head // GROUP).to(tl.int64)
    tile = (
        (features[:, None] + columns[None, :] * DV) if TURNED else (features[:, None] * DV + columns[None, :])
    )
    # Pieces beyond the last belong to no document.
    whole = (features < F)[:, None] & (columns < N)[None, :] & (begin < end)
    if STARTED:
        sc = narrow(tl.load(S + index * s_stride + tile, mask=whole, other=0.0), DOT, PRECISION)
        ss = narrow(tl.load(S + index * s_stride + D * DV + tile, mask=whole, other=0.0), DOT, PRECISION)
        # z as the first of PARTS rows, as the matrix products below want it.
        real = ((which < D) & (begin < end))[None, :] & (tl.arange(0, PARTS) == 0)[:, None]
        at_z = Z + index * z_stride + which[None, :] + tl.zeros((PARTS, 1), tl.int32)
        zc = tl.load(at_z, mask=real, other=0.0)
        zs = tl.load(at_z + D, mask=real, other=0.0)
        zc, zs = narrow(zc, DOT, PRECISION), narrow(zs, DOT, PRECISION)
    for i in range(tl.cdiv(end - begin, CHUNK)):
        first = begin + i * CHUNK
        token = start + first
        inside = first + rows < end
        vector = (0 if PACKED else row.to(tl.int64) * row_b) + token + head.to(tl.int64) * row_h
        c, s = phases(origin + first + rows, horizon, DOT)
        if WHAT == "dk" or WHAT == "dv":
            seen = visible(MASK, mask_stride, row, first + rows, inside, MASKED)
        else:
            seen = inside
        a = read(at(A, row, token, head, a_b, a_t, a_h, PACKED), a_t, rows, seen, features, F, PAD_F)
        if TURNED:
            x = read(at(X, row, token, head, x_b, x_t, x_h, PACKED), x_t, rows, seen, columns, N, PAD_N)
            w = tl.full((CHUNK,), 1.0, tl.float32)
            if WHAT == "dq" and O is None:
                r = tl.load(INVERSE + vector + rows, mask=inside, other=0.0)
                w = tl.load(E + vector + rows, mask=inside, other=0.0)
            elif WHAT == "dq":
                o = read(at(O, row, token, head, o_b, o_t, o_h, PACKED), o_t, rows, seen, features, F, PAD_F)
                d = tl.load(DENOMINATOR + vector + rows, mask=inside, other=1.0)
                r, w = weighed(a, o, d, eps)
                tl.store(INVERSE + vector + rows, r, mask=inside)
                tl.store(E + vector + rows, w, mask=inside)
            if STARTED:
                a = narrow(a, DOT, PRECISION)
                w = narrow(repeated(w, PARTS), DOT, PRECISION)
                ratio, sine = quotient(c, s)
                acc = along(a, sc, PRECISION)
                acc = inner(w, zc, acc, PRECISION) * ratio[:, None]
                acc = further(a, ss, acc, PRECISION)
                acc = inner(w, zs, acc, PRECISION) * sine[:, None]
            else:
                acc = tl.zeros((CHUNK, BN), tl.float32)
            if WHAT == "dq":
                acc = tl.where((r != 0.0)[:, None], acc * r[:, None], 0.0)
            acc = tl.where(x > 0, acc, 0.0)
        else:
            acc = tl.zeros((CHUNK, BN), tl.float32)
            total = tl.zeros((CHUNK,), tl.float32)
            if STARTED:
                ac, as_ = feature(a, c, DOT, PRECISION), feature(a, s, DOT, PRECISION)
                acc = further(as_, ss, along(ac, sc, PRECISION), PRECISION)
                if WHAT == "o":
                    parts = along(ac, tl.trans(zc), PRECISION)
                    total = tl.sum(further(as_, tl.trans(zs), parts, PRECISION), 1)
            if WHAT == "o":
                acc *= (1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
                if block == 0:
                    tl.store(DENOMINATOR + vector + rows, total, mask=inside)
        write(at(Y, row, token, head, y_b, y_t, y_h, PACKED), y_t, rows, inside, columns, acc, N, PAD_N)
