"""The state of each split, in fp32, from the keys ("o") or from the queries and g ("dv"; the table in
rows.py):

    S = sum_j phi(b_j) c_j^T [2, D, Dv],     z = sum_j w_j phi(b_j) [2, D],     w_j = 1 or delta_j

One program takes one key head of one split and BV columns of c. It reads b and c once (2 tensors) and writes
2 D (Dv + 1) numbers. gpu/state_scan.py turns these states into the initial state of each split, so that a
long row is computed by many programs at once. chunk_state needs fewer registers than the chunk kernels, so
more of its programs are resident: one split of chunk.py may be several splits here.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    dot_add,
    load_key_mask,
    load_rows,
    locate_split,
    partial_sums,
    phases,
    relu_phase,
    row_pointer,
    to_dot_dtype,
)

RUNTIME = [
    "origin",
    "length",
    "splits_per_row",
    "split_size",
    "unused_splits",
    "vec_stride_b",
    "vec_stride_h",
    "mask_stride",
]


@triton.jit(do_not_specialize=RUNTIME)
def chunk_state(
    b_ptr, c_ptr, inv_den_ptr, delta_ptr, key_mask_ptr, positions_ptr, h_ptr, cu_seqlens, split_doc,
    doc_first_split, split_slot, origin, length, splits_per_row, split_size,
    unused_splits, horizon, stride_bb, stride_bt, stride_bh, stride_cb, stride_ct, stride_ch, vec_stride_b,
    vec_stride_h, mask_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    OUTPUT: tl.constexpr, IS_VARLEN: tl.constexpr, HAS_MASK: tl.constexpr, HAS_POSITIONS: tl.constexpr,
    UNUSED_SPLITS: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PARTIALS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """HEADS: key heads; for "dv", each has GROUP heads of b and c. h [slots, HEADS, 2 D (Dv + 1)]: S, then z.
    UNUSED_SPLITS: the states of a row's "first" or "last" `unused_splits` splits are not needed ("none": all
    are)."""
    COLUMN_BLOCKS: tl.constexpr = (DV + BV - 1) // BV
    PAD_F: tl.constexpr = D != BK
    PAD_N: tl.constexpr = DV % BV != 0

    pid = tl.program_id(0)
    column_block = pid % COLUMN_BLOCKS
    head = pid // COLUMN_BLOCKS % HEADS
    split = pid // (COLUMN_BLOCKS * HEADS)
    if UNUSED_SPLITS != "none" and not IS_VARLEN:  # these have no program
        split += split // (splits_per_row - unused_splits) * unused_splits
        if UNUSED_SPLITS == "first":
            split += unused_splits
    row, row_start, begin, end, slot = locate_split(
        split, cu_seqlens, split_doc, doc_first_split, split_slot, length, splits_per_row, split_size,
        IS_VARLEN,
    )  # fmt: skip
    if HAS_POSITIONS:
        origin += tl.load(positions_ptr + row, mask=begin < end, other=0).to(tl.int32)
    rows = tl.arange(0, BT)
    features = tl.arange(0, BK)
    columns = column_block * BV + tl.arange(0, BV)
    s_cos = tl.zeros((BK, BV), tl.float32)
    s_sin = tl.zeros((BK, BV), tl.float32)
    z_cos = tl.zeros((PARTIALS, BK), tl.float32)
    z_sin = tl.zeros((PARTIALS, BK), tl.float32)
    # A document of one split does not need its state.
    chunks = tl.cdiv(end - begin, BT) * (slot >= 0)
    if UNUSED_SPLITS == "first":
        chunks *= begin > 0
    for g in range(GROUP):
        for i in range(chunks):
            chunk_begin = begin + i * BT
            token = row_start + chunk_begin
            in_split = chunk_begin + rows < end
            cos, sin = phases(origin + chunk_begin + rows, horizon, DOT)
            if OUTPUT == "o":
                visible = load_key_mask(
                    key_mask_ptr, mask_stride, row, chunk_begin + rows, in_split, HAS_MASK
                )
            else:
                visible = in_split
            head_b = head * GROUP + g
            b = load_rows(
                row_pointer(b_ptr, row, token, head_b, stride_bb, stride_bt, stride_bh, IS_VARLEN), stride_bt,
                rows, visible, features, D, PAD_F,
            )  # fmt: skip
            x = load_rows(
                row_pointer(c_ptr, row, token, head_b, stride_cb, stride_ct, stride_ch, IS_VARLEN), stride_ct,
                rows, visible, columns, DV, PAD_N,
            )  # fmt: skip
            x = to_dot_dtype(x, DOT, PRECISION)
            if OUTPUT == "o":
                b_cos, b_sin = relu_phase(b, cos, DOT, PRECISION), relu_phase(b, sin, DOT, PRECISION)
                z_cos += partial_sums(b_cos.to(tl.float32), PARTIALS)
                z_sin += partial_sums(b_sin.to(tl.float32), PARTIALS)
            else:
                vec_offset = (0 if IS_VARLEN else row.to(tl.int64) * vec_stride_b) + token
                vec_offset += head_b.to(tl.int64) * vec_stride_h
                inv_den = tl.load(inv_den_ptr + vec_offset + rows, mask=in_split, other=0.0)
                delta = tl.load(delta_ptr + vec_offset + rows, mask=in_split, other=0.0)
                b = tl.where((inv_den != 0.0)[:, None], b, 0.0)
                b_cos = relu_phase(b, cos * inv_den, DOT, PRECISION)
                b_sin = relu_phase(b, sin * inv_den, DOT, PRECISION)
                z_cos += partial_sums(b_cos.to(tl.float32) * delta[:, None], PARTIALS)
                z_sin += partial_sums(b_sin.to(tl.float32) * delta[:, None], PARTIALS)
            s_cos = dot_add(tl.trans(b_cos), x, s_cos, PRECISION)
            s_sin = dot_add(tl.trans(b_sin), x, s_sin, PRECISION)

    MATRIX: tl.constexpr = D * DV
    h_ptr += (slot * HEADS + head).to(tl.int64) * (2 * MATRIX + 2 * D)
    state_offsets = features[:, None] * DV + columns[None, :]
    in_state = (features < D)[:, None] & (columns < DV)[None, :] & (slot >= 0)
    tl.store(h_ptr + state_offsets, s_cos, mask=in_state)
    tl.store(h_ptr + MATRIX + state_offsets, s_sin, mask=in_state)
    if column_block == 0:
        in_z = (features < D) & (slot >= 0)
        tl.store(h_ptr + 2 * MATRIX + features, tl.sum(z_cos, 0), mask=in_z)
        tl.store(h_ptr + 2 * MATRIX + D + features, tl.sum(z_sin, 0), mask=in_z)
