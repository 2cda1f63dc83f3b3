"""The denominators of causal attention where the walk has no registers left for them (walk.py, ONES).

    d_i = q'_i . h_i,     h_i = sum_{j <= i} cos(theta_i - theta_j) k'_j

A walk with a state of one column: z = sum_j phi(k'_j) [2, D], in PARTS partial sums. Inside a chunk the
cosines depend on the distance alone: they are one matrix for all chunks. Reads q and k (2 tensors).
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import (
    at,
    inner,
    locate,
    narrow,
    partial,
    phases,
    read,
    relu,
    repeated,
    visible,
)


@triton.jit(do_not_specialize=["origin", "length", "pieces", "size", "row_b", "row_h", "mask_stride"])
def denominators(
    Q, K, DENOMINATOR, MASK, POSITIONS, Z, Z_OUT, CU, DOCUMENT, FIRST, SLOT, origin, length, pieces, size,
    horizon, q_b, q_t: tl.constexpr, q_h, k_b, k_t: tl.constexpr, k_h, row_b, row_h, mask_stride, z_stride,
    z_out_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr,
    CARRIED: tl.constexpr, STARTED: tl.constexpr, STORED: tl.constexpr, CHUNK: tl.constexpr,
    BF: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program takes one head of queries of one piece of a row. STARTED, STORED, CARRIED: as in walk."""
    PADDED: tl.constexpr = D != BF
    pid = tl.program_id(0)
    head = pid % HEADS
    row, start, begin, end, slot = locate(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED
    )
    key_head = head // GROUP
    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    index = (slot * (HEADS // GROUP) + key_head).to(tl.int64)
    zc = tl.zeros((PARTS, BF), tl.float32)
    zs = tl.zeros((PARTS, BF), tl.float32)
    if STARTED:
        there = (features < D)[None, :] & (tl.arange(0, PARTS) == 0)[:, None] & (slot >= 0)
        at_z = Z + index * z_stride + features[None, :] + tl.zeros((PARTS, 1), tl.int32)
        zc = tl.load(at_z, mask=there, other=0.0)
        zs = tl.load(at_z + D, mask=there, other=0.0)
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)
    near, _ = phases(rows[:, None] - rows[None, :], horizon, DOT)
    near = narrow(tl.where(rows[:, None] >= rows[None, :], near, 0.0), DOT, PRECISION)

    for i in range(tl.cdiv(end - begin, CHUNK)):
        first = begin + i * CHUNK
        token = start + first
        inside = first + rows < end
        seen = visible(MASK, mask_stride, row, first + rows, inside, MASKED)
        q = relu(read(at(Q, row, token, head, q_b, q_t, q_h, PACKED), q_t, rows, inside, features, D, PADDED))
        k = relu(
            read(at(K, row, token, key_head, k_b, k_t, k_h, PACKED), k_t, rows, seen, features, D, PADDED)
        )
        c, s = phases(origin + first + rows, horizon, DOT)
        h = tl.dot(near, narrow(k, DOT, PRECISION), input_precision=PRECISION)
        wide = narrow(repeated(c, PARTS), DOT, PRECISION)
        h = inner(wide, narrow(zc, DOT, PRECISION), h, PRECISION)
        wide = narrow(repeated(s, PARTS), DOT, PRECISION)
        h = inner(wide, narrow(zs, DOT, PRECISION), h, PRECISION)
        vector = (0 if PACKED else row.to(tl.int64) * row_b) + head.to(tl.int64) * row_h + token
        tl.store(DENOMINATOR + vector + rows, tl.sum(q * h, 1), mask=inside)
        zc += partial(k * c[:, None], PARTS)
        zs += partial(k * s[:, None], PARTS)

    if STORED:
        tl.store(Z_OUT + index * z_out_stride + features, tl.sum(zc, 0), mask=features < D)
        tl.store(Z_OUT + index * z_out_stride + D + features, tl.sum(zs, 0), mask=features < D)
