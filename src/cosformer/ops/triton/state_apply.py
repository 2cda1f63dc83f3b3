"""Rows times a finished state: bidirectional and cross attention, and their gradients.

    "o", "dv":  y = phi(a) S          "dq", "dk":  y = phi(1)^T (a S + delta z)      (as in chunk.py)

Every row is independent of the others. One program takes one head of one split and BV columns of the result;
it loads the state once (it stays in shared memory, in the type of the matrix products) and streams its rows.
Bytes moved, in tensors the size of q: "o" reads q, writes o (2); "dq" reads g, o, q, writes dq, inv_den and
delta (4), or reads inv_den and delta (3); "dk" reads v, k, writes dk (3); "dv" reads k, writes dv (2).
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    as_columns,
    cot_and_sin,
    dot_add,
    dot_over_features,
    dot_over_features_add,
    inv_den_and_delta,
    load_key_mask,
    load_rows,
    locate_split,
    phases,
    relu_phase,
    row_pointer,
    store_rows,
    to_dot_dtype,
)

RUNTIME = ["origin", "length", "splits_per_row", "split_size", "vec_stride_b", "vec_stride_h", "mask_stride"]


@triton.jit(do_not_specialize=RUNTIME)
def state_apply(
    a_ptr, o_ptr, y_ptr, x_ptr, den_ptr, inv_den_ptr, delta_ptr, key_mask_ptr, positions_ptr, h0, z0,
    cu_seqlens, split_doc, doc_first_split, split_slot,
    origin, length, splits_per_row, split_size, horizon, eps,
    stride_ab, stride_at: tl.constexpr, stride_ah, stride_ob, stride_ot: tl.constexpr, stride_oh, stride_yb,
    stride_yt: tl.constexpr, stride_yh,
    stride_xb, stride_xt: tl.constexpr, stride_xh, vec_stride_b, vec_stride_h, mask_stride, h0_stride,
    z0_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    OUTPUT: tl.constexpr, IS_VARLEN: tl.constexpr, HAS_MASK: tl.constexpr, HAS_POSITIONS: tl.constexpr,
    USE_INITIAL_STATE: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PARTIALS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """GROUP heads of a share a state; h0 and z0 hold one state for each row (or document) and key head. Where
    o is given, "dq" computes inv_den and delta itself and stores them; one program must have all columns."""
    TRANSPOSED: tl.constexpr = (OUTPUT == "dq") or (OUTPUT == "dk")
    F: tl.constexpr = DV if TRANSPOSED else D
    N: tl.constexpr = D if TRANSPOSED else DV
    COLUMN_BLOCKS: tl.constexpr = (N + BV - 1) // BV
    PAD_F: tl.constexpr = F != BK
    PAD_N: tl.constexpr = N % BV != 0

    pid = tl.program_id(0)
    column_block = pid % COLUMN_BLOCKS
    head = pid // COLUMN_BLOCKS % HEADS
    row, row_start, begin, end, _ = locate_split(
        pid // (COLUMN_BLOCKS * HEADS), cu_seqlens, split_doc, doc_first_split, split_slot, length,
        splits_per_row, split_size, IS_VARLEN,
    )  # fmt: skip
    if HAS_POSITIONS:
        origin += tl.load(positions_ptr + row, mask=begin < end, other=0).to(tl.int32)
    rows = tl.arange(0, BT)
    features = tl.arange(0, BK)
    columns = column_block * BV + tl.arange(0, BV)
    z_index = columns if TRANSPOSED else features
    index = (row * (HEADS // GROUP) + head // GROUP).to(tl.int64)
    if TRANSPOSED:
        state_offsets = features[:, None] + columns[None, :] * DV
    else:
        state_offsets = features[:, None] * DV + columns[None, :]
    # Splits beyond the last belong to no document.
    in_state = (features < F)[:, None] & (columns < N)[None, :] & (begin < end)
    if USE_INITIAL_STATE:
        s_pointers = h0 + index * h0_stride + state_offsets
        s_cos = to_dot_dtype(tl.load(s_pointers, mask=in_state, other=0.0), DOT, PRECISION)
        s_pointers = h0 + index * h0_stride + D * DV + state_offsets
        s_sin = to_dot_dtype(tl.load(s_pointers, mask=in_state, other=0.0), DOT, PRECISION)
        # z as the first of PARTIALS rows, the shape of an operand of a matrix product.
        in_z = ((z_index < D) & (begin < end))[None, :] & (tl.arange(0, PARTIALS) == 0)[:, None]
        z_pointers = z0 + index * z0_stride + z_index[None, :] + tl.zeros((PARTIALS, 1), tl.int32)
        z_cos = tl.load(z_pointers, mask=in_z, other=0.0)
        z_sin = tl.load(z_pointers + D, mask=in_z, other=0.0)
        z_cos, z_sin = to_dot_dtype(z_cos, DOT, PRECISION), to_dot_dtype(z_sin, DOT, PRECISION)
    for i in range(tl.cdiv(end - begin, BT)):
        chunk_begin = begin + i * BT
        token = row_start + chunk_begin
        in_split = chunk_begin + rows < end
        vec_offset = 0 if IS_VARLEN else row.to(tl.int64) * vec_stride_b
        vec_offset = vec_offset + token + head.to(tl.int64) * vec_stride_h
        cos, sin = phases(origin + chunk_begin + rows, horizon, DOT)
        if OUTPUT == "dk" or OUTPUT == "dv":
            visible = load_key_mask(key_mask_ptr, mask_stride, row, chunk_begin + rows, in_split, HAS_MASK)
        else:
            visible = in_split
        a = load_rows(
            row_pointer(a_ptr, row, token, head, stride_ab, stride_at, stride_ah, IS_VARLEN), stride_at, rows,
            visible, features, F, PAD_F,
        )  # fmt: skip
        if TRANSPOSED:
            x = load_rows(
                row_pointer(x_ptr, row, token, head, stride_xb, stride_xt, stride_xh, IS_VARLEN), stride_xt,
                rows, visible, columns, N, PAD_N,
            )  # fmt: skip
            weight = tl.full((BT,), 1.0, tl.float32)
            if OUTPUT == "dq" and o_ptr is None:
                inv_den = tl.load(inv_den_ptr + vec_offset + rows, mask=in_split, other=0.0)
                weight = tl.load(delta_ptr + vec_offset + rows, mask=in_split, other=0.0)
            elif OUTPUT == "dq":
                o = load_rows(
                    row_pointer(o_ptr, row, token, head, stride_ob, stride_ot, stride_oh, IS_VARLEN),
                    stride_ot, rows, visible, features, F, PAD_F,
                )  # fmt: skip
                den_in = tl.load(den_ptr + vec_offset + rows, mask=in_split, other=1.0)
                inv_den, weight = inv_den_and_delta(a, o, den_in, eps)
                tl.store(inv_den_ptr + vec_offset + rows, inv_den, mask=in_split)
                tl.store(delta_ptr + vec_offset + rows, weight, mask=in_split)
            if USE_INITIAL_STATE:
                a = to_dot_dtype(a, DOT, PRECISION)
                weight = to_dot_dtype(as_columns(weight, PARTIALS), DOT, PRECISION)
                cot, safe_sin = cot_and_sin(cos, sin)
                acc = dot_over_features(a, s_cos, PRECISION)
                acc = dot_add(weight, z_cos, acc, PRECISION) * cot[:, None]
                acc = dot_over_features_add(a, s_sin, acc, PRECISION)
                acc = dot_add(weight, z_sin, acc, PRECISION) * safe_sin[:, None]
            else:
                acc = tl.zeros((BT, BV), tl.float32)
            if OUTPUT == "dq":
                acc = tl.where((inv_den != 0.0)[:, None], acc * inv_den[:, None], 0.0)
            acc = tl.where(x > 0, acc, 0.0)
        else:
            acc = tl.zeros((BT, BV), tl.float32)
            den = tl.zeros((BT,), tl.float32)
            if USE_INITIAL_STATE:
                a_cos, a_sin = relu_phase(a, cos, DOT, PRECISION), relu_phase(a, sin, DOT, PRECISION)
                acc = dot_over_features(a_cos, s_cos, PRECISION)
                acc = dot_over_features_add(a_sin, s_sin, acc, PRECISION)
                if OUTPUT == "o":
                    den_partials = dot_over_features(a_cos, tl.trans(z_cos), PRECISION)
                    den = tl.sum(dot_over_features_add(a_sin, tl.trans(z_sin), den_partials, PRECISION), 1)
            if OUTPUT == "o":
                acc *= (1.0 / tl.maximum(den, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
                if column_block == 0:
                    tl.store(den_ptr + vec_offset + rows, den, mask=in_split)
        store_rows(
            row_pointer(y_ptr, row, token, head, stride_yb, stride_yt, stride_yh, IS_VARLEN), stride_yt, rows,
            in_split, columns, acc, N, PAD_N,
        )  # fmt: skip
