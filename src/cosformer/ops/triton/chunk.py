"""Causal attention and its three gradients (the table in rows.py), chunk by chunk with the state in
registers.

One program takes one head of one split of a row, and BV columns of the result. It goes through the split in
chunks of BT tokens, forwards for "o" and "dq", backwards for "dk" and "dv". The state of all chunks it has
passed is in registers, in fp32: S = sum_j phi(b_j) c_j^T [2, features, BV] and, for the column of ones or of
delta, z [2, D]. With phi(x)_i = [x_i cos theta_i, x_i sin theta_i],

    "o", "dv":   P = phi(a) phi(b)^T    y = phi(a) S + P c                          S += phi(b)^T c
    "dq", "dk":  P = a b^T + delta      y = phi(1)^T (a S + delta z + P phi(c))     S += b^T phi(c)

with P masked causally. Phases multiply q and k alone; g and v are multiplied as they are stored. The 2D-wide
features and the scores P exist in registers and shared memory only.

z is kept as PARTIALS partial sums, because a sum over all rows would synchronise the warps in every chunk. A
matrix product completes it where it is used.

Bytes moved, in tensors the size of q, where one program has all columns: "o" reads q, k, v and writes o (4,
the memory-bound limit); "dq" reads g, v, k, q and writes dq (5), "dk" reads v, g, q, k and writes dk (5),
"dv" reads k, q, g and writes dv (4).
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import (
    as_columns,
    cot_and_sin,
    dot_add,
    dot_over_features,
    dot_over_features_add,
    load_key_mask,
    load_rows,
    locate_split,
    partial_sums,
    phases,
    plus,
    relu_phase,
    row_pointer,
    store_rows,
    to_dot_dtype,
)


@triton.jit
def causal_mask(p, rows, QUERY_SIDE: tl.constexpr):
    """The scores of a chunk with itself without the future."""
    if QUERY_SIDE:
        return tl.where(rows[:, None] >= rows[None, :], p, 0.0)
    return tl.where(rows[:, None] <= rows[None, :], p, 0.0)


@triton.jit
def chunk_o_dv(
    a_cos, a_sin, b, x, b_cos, b_sin, acc, s_cos, s_sin, rows, QUERY_SIDE: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """ "o" and "dv": scores within the chunk times c, and the chunk's contribution to the state."""
    b_cos, b_sin = relu_phase(b, b_cos, DOT, PRECISION), relu_phase(b, b_sin, DOT, PRECISION)
    p = tl.dot(a_cos, tl.trans(b_cos), input_precision=PRECISION)
    p = causal_mask(dot_add(a_sin, tl.trans(b_sin), p, PRECISION), rows, QUERY_SIDE)
    acc = dot_add(to_dot_dtype(p, DOT, PRECISION), x, acc, PRECISION)
    s_cos = dot_add(tl.trans(b_cos), x, s_cos, PRECISION)
    s_sin = dot_add(tl.trans(b_sin), x, s_sin, PRECISION)
    return acc, s_cos, s_sin


@triton.jit
def chunk_o_with_denominator(
    a, b, x, phase, acc, p, den, s, z, PARTIALS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr
):
    """ "o" with its denominators `den`, for one of cos and sin; the caller does one after the other, which
    needs fewer registers."""
    a = relu_phase(a, phase, DOT, PRECISION)
    acc = dot_add(a, to_dot_dtype(s, DOT, PRECISION), acc, PRECISION)
    den += tl.sum(tl.dot(a, tl.trans(to_dot_dtype(z, DOT, PRECISION)), input_precision=PRECISION), 1)
    b = relu_phase(b, phase, DOT, PRECISION)
    p = dot_add(a, tl.trans(b), p, PRECISION)
    s = dot_add(tl.trans(b), x, s, PRECISION)
    z += partial_sums(b.to(tl.float32), PARTIALS)
    return acc, p, den, s, z


@triton.jit
def chunk_dq_dk(
    a, b, x, x_phase, delta, scores, weight, acc, s, z, OUTPUT: tl.constexpr, FROM_STATE: tl.constexpr,
    WITHIN_CHUNK: tl.constexpr,
    PARTIALS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """ "dq" and "dk" for one of cos and sin: the product with the state (FROM_STATE), then the scores within
    the chunk times phi(c) and the chunk's contribution to the state (WITHIN_CHUNK)."""
    if FROM_STATE:
        acc = dot_over_features_add(a, to_dot_dtype(s, DOT, PRECISION), acc, PRECISION)
        acc = dot_add(weight, to_dot_dtype(z, DOT, PRECISION), acc, PRECISION)
    if WITHIN_CHUNK:
        x = relu_phase(x, x_phase, DOT, PRECISION)
        acc = dot_add(scores, x, acc, PRECISION)
        s = dot_add(tl.trans(b), x, s, PRECISION)
        if OUTPUT == "dq":
            z += partial_sums(x.to(tl.float32), PARTIALS)
        else:
            z += partial_sums(x.to(tl.float32) * delta[:, None], PARTIALS)
    return acc, s, z


RUNTIME = ["origin", "length", "splits_per_row", "split_size", "vec_stride_b", "vec_stride_h", "mask_stride"]


@triton.jit(do_not_specialize=RUNTIME)
def chunk_attention(
    a_ptr, b_ptr, c_ptr, y_ptr, x_ptr, den_ptr, inv_den_ptr, delta_ptr, key_mask_ptr, positions_ptr, h0, z0,
    ht, zt, cu_seqlens, split_doc, doc_first_split, split_slot,
    origin, length, splits_per_row, split_size, horizon, eps,
    stride_ab, stride_at: tl.constexpr, stride_ah, stride_bb, stride_bt: tl.constexpr, stride_bh, stride_cb,
    stride_ct: tl.constexpr, stride_ch,
    stride_yb, stride_yt: tl.constexpr, stride_yh, stride_xb, stride_xt: tl.constexpr, stride_xh,
    vec_stride_b, vec_stride_h, mask_stride, h0_stride, z0_stride, ht_stride, zt_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    OUTPUT: tl.constexpr, IS_VARLEN: tl.constexpr, HAS_MASK: tl.constexpr, HAS_POSITIONS: tl.constexpr,
    USE_INITIAL_STATE: tl.constexpr, STORE_FINAL_STATE: tl.constexpr, WITH_DENOMINATOR: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PARTIALS: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """x: the input of the ReLU whose gradient is written (q for "dq", k for "dk"). den, inv_den and delta are
    [B, H, T]. WITH_DENOMINATOR: "o" computes den too; otherwise it reads den. h0, z0: S and z before each
    split (USE_INITIAL_STATE); ht, zt: S and z after it (STORE_FINAL_STATE). HAS_POSITIONS: row b begins at
    positions[b]. BK blocks the features summed over, BV the columns of the result."""
    # "o" and "dq" have one program for a query head, of which several share a key head; "dk" and "dv" for a
    # key head.
    QUERY_SIDE: tl.constexpr = (OUTPUT == "o") or (OUTPUT == "dq")
    # "dq" and "dk" use the state of "o" and "dv" transposed.
    TRANSPOSED: tl.constexpr = (OUTPUT == "dq") or (OUTPUT == "dk")
    F: tl.constexpr = DV if TRANSPOSED else D
    N: tl.constexpr = D if TRANSPOSED else DV
    COLUMN_BLOCKS: tl.constexpr = (N + BV - 1) // BV
    PAD_F: tl.constexpr = F != BK
    PAD_N: tl.constexpr = N % BV != 0
    BZ: tl.constexpr = BV if TRANSPOSED else BK
    KEY_HEADS: tl.constexpr = HEADS // GROUP if QUERY_SIDE else HEADS
    ONE_HEAD: tl.constexpr = QUERY_SIDE or GROUP == 1

    pid = tl.program_id(0)
    column_block = pid % COLUMN_BLOCKS
    head = pid // COLUMN_BLOCKS % HEADS
    row, row_start, begin, end, slot = locate_split(
        pid // (COLUMN_BLOCKS * HEADS), cu_seqlens, split_doc, doc_first_split, split_slot, length,
        splits_per_row, split_size, IS_VARLEN,
    )  # fmt: skip
    key_head = head // GROUP if QUERY_SIDE else head
    other_head = key_head if QUERY_SIDE else head * GROUP
    rows = tl.arange(0, BT)
    features = tl.arange(0, BK)
    columns = column_block * BV + tl.arange(0, BV)
    z_index = columns if TRANSPOSED else features

    s_cos = tl.zeros((BK, BV), tl.float32)
    s_sin = tl.zeros((BK, BV), tl.float32)
    z_cos = tl.zeros((PARTIALS, BZ), tl.float32)
    z_sin = tl.zeros((PARTIALS, BZ), tl.float32)
    state_offsets = features[:, None] * (1 if TRANSPOSED else DV)
    state_offsets = state_offsets + columns[None, :] * (DV if TRANSPOSED else 1)
    in_state = (features < F)[:, None] & (columns < N)[None, :]
    index = (slot * KEY_HEADS + key_head).to(tl.int64)
    if USE_INITIAL_STATE:
        has_state = in_state & (slot >= 0)
        s_cos = tl.load(h0 + index * h0_stride + state_offsets, mask=has_state, other=0.0)
        s_sin = tl.load(h0 + index * h0_stride + D * DV + state_offsets, mask=has_state, other=0.0)
        if WITH_DENOMINATOR or TRANSPOSED:
            first_part = (z_index < D)[None, :] & (tl.arange(0, PARTIALS) == 0)[:, None] & (slot >= 0)
            z_pointers = z0 + index * z0_stride + z_index[None, :] + tl.zeros((PARTIALS, 1), tl.int32)
            z_cos = tl.load(z_pointers, mask=first_part, other=0.0)
            z_sin = tl.load(z_pointers + D, mask=first_part, other=0.0)
    if HAS_POSITIONS:
        origin += tl.load(positions_ptr + row, mask=begin < end, other=0).to(tl.int32)

    chunks = tl.cdiv(end - begin, BT)
    for i in range(chunks):
        chunk_begin = begin + (i if QUERY_SIDE else chunks - 1 - i) * BT
        token = row_start + chunk_begin
        in_split = chunk_begin + rows < end
        cos, sin = phases(origin + chunk_begin + rows, horizon, DOT)
        vec_offset = (0 if IS_VARLEN else row.to(tl.int64) * vec_stride_b) + token
        vec_offset += (head if QUERY_SIDE else other_head).to(tl.int64) * vec_stride_h
        visible = load_key_mask(key_mask_ptr, mask_stride, row, chunk_begin + rows, in_split, HAS_MASK)
        of_a = in_split if QUERY_SIDE else visible
        of_b = visible if QUERY_SIDE else in_split
        a_rows = row_pointer(a_ptr, row, token, head, stride_ab, stride_at, stride_ah, IS_VARLEN)
        b_rows = row_pointer(b_ptr, row, token, other_head, stride_bb, stride_bt, stride_bh, IS_VARLEN)
        c_rows = row_pointer(c_ptr, row, token, other_head, stride_cb, stride_ct, stride_ch, IS_VARLEN)
        y_rows = row_pointer(y_ptr, row, token, head, stride_yb, stride_yt, stride_yh, IS_VARLEN)
        a = load_rows(a_rows, stride_at, rows, of_a, features, F, PAD_F)
        acc = tl.zeros((BT, BV), tl.float32)
        den = tl.zeros((BT,), tl.float32)
        inv_den = tl.zeros((BT,), tl.float32)
        delta = tl.zeros((BT,), tl.float32)
        if TRANSPOSED:
            x = load_rows(
                row_pointer(x_ptr, row, token, head, stride_xb, stride_xt, stride_xh, IS_VARLEN), stride_xt,
                rows, of_a, columns, N, PAD_N,
            )  # fmt: skip
            a = to_dot_dtype(a, DOT, PRECISION)
            weight = tl.full((BT,), 1.0, tl.float32)
            if OUTPUT == "dq":
                weight = tl.load(delta_ptr + vec_offset + rows, mask=in_split, other=0.0)
            weight = to_dot_dtype(as_columns(weight, PARTIALS), DOT, PRECISION)
            cot, safe_sin = cot_and_sin(cos, sin)
        elif not WITH_DENOMINATOR:
            a_cos, a_sin = relu_phase(a, cos, DOT, PRECISION), relu_phase(a, sin, DOT, PRECISION)
            acc = tl.dot(a_cos, to_dot_dtype(s_cos, DOT, PRECISION), input_precision=PRECISION)
            acc = dot_add(a_sin, to_dot_dtype(s_sin, DOT, PRECISION), acc, PRECISION)
        if TRANSPOSED and not ONE_HEAD:
            # The state first, then one query head after the other.
            acc, s_cos, z_cos = chunk_dq_dk(
                a, a, a, cos, delta, a, weight, acc, s_cos, z_cos, OUTPUT, True, False, PARTIALS, DOT,
                PRECISION,
            )  # fmt: skip
            acc *= cot[:, None]
            acc, s_sin, z_sin = chunk_dq_dk(
                a, a, a, sin, delta, a, weight, acc, s_sin, z_sin, OUTPUT, True, False, PARTIALS, DOT,
                PRECISION,
            )  # fmt: skip
        for _ in range(1 if ONE_HEAD else GROUP):
            b = load_rows(b_rows, stride_bt, rows, of_b, features, F, PAD_F)
            y = load_rows(c_rows, stride_ct, rows, of_b, columns, N, PAD_N)
            b_cos, b_sin = cos, sin
            if OUTPUT != "o":
                inv_den = tl.load(inv_den_ptr + vec_offset + rows, mask=in_split, other=0.0)
            if not QUERY_SIDE:
                b_cos, b_sin = cos * inv_den, sin * inv_den
            if TRANSPOSED:
                delta = tl.load(delta_ptr + vec_offset + rows, mask=in_split, other=0.0)
                b = to_dot_dtype(b, DOT, PRECISION)
                p = dot_over_features(a, tl.trans(b), PRECISION)
                if OUTPUT == "dq":
                    p = plus(p, delta[:, None], PRECISION)
                else:
                    p = plus(p, delta[None, :], PRECISION)
                    y = tl.where((inv_den != 0.0)[:, None], y, 0.0)
                scores = to_dot_dtype(causal_mask(p, rows, QUERY_SIDE), DOT, PRECISION)
                if ONE_HEAD:
                    acc, s_cos, z_cos = chunk_dq_dk(
                        a, b, y, b_cos, delta, scores, weight, acc, s_cos, z_cos, OUTPUT, True, True,
                        PARTIALS, DOT, PRECISION,
                    )  # fmt: skip
                    acc *= cot[:, None]
                else:
                    head_acc, s_cos, z_cos = chunk_dq_dk(
                        a, b, y, b_cos, delta, scores, weight, tl.zeros((BT, BV), tl.float32), s_cos, z_cos,
                        OUTPUT, False, True, PARTIALS, DOT, PRECISION,
                    )  # fmt: skip
                    acc += head_acc * cot[:, None]
                acc, s_sin, z_sin = chunk_dq_dk(
                    a, b, y, b_sin, delta, scores, weight, acc, s_sin, z_sin, OUTPUT, ONE_HEAD, True,
                    PARTIALS, DOT, PRECISION,
                )  # fmt: skip
            else:
                if OUTPUT == "dv":
                    b = tl.where((inv_den != 0.0)[:, None], b, 0.0)
                y = to_dot_dtype(y, DOT, PRECISION)
                if WITH_DENOMINATOR:
                    p = tl.zeros((BT, BT), tl.float32)
                    acc, p, den, s_cos, z_cos = chunk_o_with_denominator(
                        a, b, y, cos, acc, p, den, s_cos, z_cos, PARTIALS, DOT, PRECISION
                    )
                    acc, p, den, s_sin, z_sin = chunk_o_with_denominator(
                        a, b, y, sin, acc, p, den, s_sin, z_sin, PARTIALS, DOT, PRECISION
                    )
                    p = causal_mask(p, rows, QUERY_SIDE)
                    den += tl.sum(p, 1)
                    acc = dot_add(to_dot_dtype(p, DOT, PRECISION), y, acc, PRECISION)
                else:
                    acc, s_cos, s_sin = chunk_o_dv(
                        a_cos, a_sin, b, y, b_cos, b_sin, acc, s_cos, s_sin, rows, QUERY_SIDE, DOT, PRECISION
                    )
            b_rows += stride_bh
            c_rows += stride_ch
            vec_offset += vec_stride_h
        if OUTPUT == "o":
            vec_offset -= vec_stride_h
            if WITH_DENOMINATOR:
                if column_block == 0:
                    tl.store(den_ptr + vec_offset + rows, den, mask=in_split)
            else:
                den = tl.load(den_ptr + vec_offset + rows, mask=in_split, other=1.0)
            acc *= (1.0 / tl.maximum(den, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
        if TRANSPOSED:
            acc *= safe_sin[:, None]
            if OUTPUT == "dq":
                acc = tl.where((inv_den != 0.0)[:, None], acc * inv_den[:, None], 0.0)
            acc = tl.where(x > 0, acc, 0.0)
        store_rows(y_rows, stride_yt, rows, in_split, columns, acc, N, PAD_N)

    if STORE_FINAL_STATE:
        tl.store(ht + index * ht_stride + state_offsets, s_cos, mask=in_state)
        tl.store(ht + index * ht_stride + D * DV + state_offsets, s_sin, mask=in_state)
        if TRANSPOSED or (WITH_DENOMINATOR and column_block == 0):
            tl.store(zt + index * zt_stride + z_index, tl.sum(z_cos, 0), mask=z_index < D)
            tl.store(zt + index * zt_stride + D + z_index, tl.sum(z_sin, 0), mask=z_index < D)
