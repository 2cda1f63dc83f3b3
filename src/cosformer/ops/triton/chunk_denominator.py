"""The denominators of causal attention, where chunk.py has no registers left for them (WITH_DENOMINATOR).

    d_i = q'_i . h_i,     h_i = sum_{j <= i} cos(theta_i - theta_j) k'_j

The state has one column: z = sum_j phi(k'_j) [2, D], as PARTIALS partial sums. Within a chunk the cosines
depend on i - j alone: one matrix serves all chunks. Reads q and k (2 tensors).
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    as_columns,
    dot_add,
    load_key_mask,
    load_rows,
    locate_split,
    partial_sums,
    phases,
    relu,
    row_pointer,
    to_dot_dtype,
)

RUNTIME = ["origin", "length", "splits_per_row", "split_size", "vec_stride_b", "vec_stride_h", "mask_stride"]


@triton.jit(do_not_specialize=RUNTIME)
def chunk_denominator(
    q_ptr, k_ptr, den_ptr, key_mask_ptr, positions_ptr, z0, zt, cu_seqlens, split_doc, doc_first_split,
    split_slot, origin, length, splits_per_row, split_size,
    horizon, stride_qb, stride_qt: tl.constexpr, stride_qh, stride_kb, stride_kt: tl.constexpr, stride_kh,
    vec_stride_b, vec_stride_h, mask_stride, z0_stride,
    zt_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, IS_VARLEN: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_POSITIONS: tl.constexpr, USE_INITIAL_STATE: tl.constexpr, STORE_FINAL_STATE: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr, PARTIALS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program takes one query head of one split. Arguments as in `chunk_attention`."""
    PADDED: tl.constexpr = D != BK
    pid = tl.program_id(0)
    head = pid % HEADS
    row, row_start, begin, end, slot = locate_split(
        pid // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, length, splits_per_row, split_size,
        IS_VARLEN,
    )  # fmt: skip
    key_head = head // GROUP
    rows = tl.arange(0, BT)
    features = tl.arange(0, BK)
    index = (slot * (HEADS // GROUP) + key_head).to(tl.int64)
    z_cos = tl.zeros((PARTIALS, BK), tl.float32)
    z_sin = tl.zeros((PARTIALS, BK), tl.float32)
    if USE_INITIAL_STATE:
        has_state = (features < D)[None, :] & (tl.arange(0, PARTIALS) == 0)[:, None] & (slot >= 0)
        z_pointers = z0 + index * z0_stride + features[None, :] + tl.zeros((PARTIALS, 1), tl.int32)
        z_cos = tl.load(z_pointers, mask=has_state, other=0.0)
        z_sin = tl.load(z_pointers + D, mask=has_state, other=0.0)
    if HAS_POSITIONS:
        origin += tl.load(positions_ptr + row, mask=begin < end, other=0).to(tl.int32)
    near_cos, _ = phases(rows[:, None] - rows[None, :], horizon, DOT)
    near_cos = to_dot_dtype(tl.where(rows[:, None] >= rows[None, :], near_cos, 0.0), DOT, PRECISION)

    for i in range(tl.cdiv(end - begin, BT)):
        chunk_begin = begin + i * BT
        token = row_start + chunk_begin
        in_split = chunk_begin + rows < end
        visible = load_key_mask(key_mask_ptr, mask_stride, row, chunk_begin + rows, in_split, HAS_MASK)
        q_rows = row_pointer(q_ptr, row, token, head, stride_qb, stride_qt, stride_qh, IS_VARLEN)
        q = relu(load_rows(q_rows, stride_qt, rows, in_split, features, D, PADDED))
        k_rows = row_pointer(k_ptr, row, token, key_head, stride_kb, stride_kt, stride_kh, IS_VARLEN)
        k = relu(load_rows(k_rows, stride_kt, rows, visible, features, D, PADDED))
        cos, sin = phases(origin + chunk_begin + rows, horizon, DOT)
        h = tl.dot(near_cos, to_dot_dtype(k, DOT, PRECISION), input_precision=PRECISION)
        phase_columns = to_dot_dtype(as_columns(cos, PARTIALS), DOT, PRECISION)
        h = dot_add(phase_columns, to_dot_dtype(z_cos, DOT, PRECISION), h, PRECISION)
        phase_columns = to_dot_dtype(as_columns(sin, PARTIALS), DOT, PRECISION)
        h = dot_add(phase_columns, to_dot_dtype(z_sin, DOT, PRECISION), h, PRECISION)
        vec_offset = 0 if IS_VARLEN else row.to(tl.int64) * vec_stride_b
        vec_offset = vec_offset + head.to(tl.int64) * vec_stride_h + token
        tl.store(den_ptr + vec_offset + rows, tl.sum(q * h, 1), mask=in_split)
        z_cos += partial_sums(k * cos[:, None], PARTIALS)
        z_sin += partial_sums(k * sin[:, None], PARTIALS)

    if STORE_FINAL_STATE:
        tl.store(zt + index * zt_stride + features, tl.sum(z_cos, 0), mask=features < D)
        tl.store(zt + index * zt_stride + D + features, tl.sum(z_sin, 0), mask=features < D)
