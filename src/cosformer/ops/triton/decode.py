"""One token a row: the state is read once, updated, used by the queries, and written once.

    S += phi(k) v^T,   z += phi(k),   n_g = phi(q_g) S,   d_g = phi(q_g) . z      for the heads g of a group

One program takes one key head of one row and goes through v in blocks of BV columns. The state dominates the
bytes moved: 2 D (Dv + 1) numbers of fp32 in and out, the memory-bound limit. The final state may be written
over the initial one: no other program reads it.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import phases, relu


@triton.jit(do_not_specialize=["offset", "mask_stride"])
def recurrent_step(
    q_ptr, k_ptr, v_ptr, o_ptr, den_ptr, key_mask_ptr, positions_ptr, h0, z0, ht, zt, offset, horizon, eps,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh, stride_ob, stride_oh, mask_stride,
    h0_stride, z0_stride, ht_stride, zt_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HAS_MASK: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """HEADS: key heads. den [B, HEADS * GROUP, 1] is contiguous."""
    pid = tl.program_id(0).to(tl.int64)
    head = pid % HEADS
    row = pid // HEADS
    features = tl.arange(0, BK)
    in_features = features < D
    columns = tl.arange(0, BV)
    h0 += pid * h0_stride
    ht += pid * ht_stride
    # Loaded first, so that nothing is waited for before; further blocks are loaded only where there are any.
    state_offsets = features[:, None] * DV + columns[None, :]
    in_state = in_features[:, None] & (columns < DV)[None, :]
    s_cos = tl.load(h0 + state_offsets, mask=in_state, other=0.0)
    s_sin = tl.load(h0 + D * DV + state_offsets, mask=in_state, other=0.0)
    visible = tl.load(key_mask_ptr + row * mask_stride) != 0 if HAS_MASK else True
    z_cos = tl.load(z0 + pid * z0_stride + features, mask=in_features, other=0.0)
    z_sin = tl.load(z0 + pid * z0_stride + D + features, mask=in_features, other=0.0)
    k = relu(
        tl.load(k_ptr + row * stride_kb + head * stride_kh + features, mask=in_features & visible, other=0.0)
    )
    position = tl.load(positions_ptr + row).to(tl.int32)
    cos, sin = phases(position, horizon, tl.float32)
    cos_q, sin_q = phases(position + offset, horizon, tl.float32)

    k_cos, k_sin = cos * k, sin * k
    z_cos += k_cos
    z_sin += k_sin
    for _ in range(0, DV, BV):
        in_columns = columns < DV
        v = tl.load(
            v_ptr + row * stride_vb + head * stride_vh + columns, mask=in_columns & visible, other=0.0
        ).to(tl.float32)
        s_cos += k_cos[:, None] * v[None, :]
        s_sin += k_sin[:, None] * v[None, :]
        state_offsets = features[:, None] * DV + columns[None, :]
        in_state = in_features[:, None] & in_columns[None, :]
        tl.store(ht + state_offsets, s_cos, mask=in_state)
        tl.store(ht + D * DV + state_offsets, s_sin, mask=in_state)
        for g in range(GROUP):
            h = head * GROUP + g
            q = relu(tl.load(q_ptr + row * stride_qb + h * stride_qh + features, mask=in_features, other=0.0))
            q_cos, q_sin = cos_q * q, sin_q * q
            den = tl.sum(q_cos * z_cos + q_sin * z_sin, 0)
            n = tl.sum(q_cos[:, None] * s_cos + q_sin[:, None] * s_sin, 0)
            n *= 1.0 / tl.maximum(den, eps, propagate_nan=tl.PropagateNan.ALL)
            to = o_ptr + row * stride_ob + h * stride_oh + columns
            tl.store(to, n.to(o_ptr.dtype.element_ty), mask=in_columns)
            tl.store(den_ptr + row * (HEADS * GROUP) + h, den)
        columns += BV
        if DV > BV:
            state_offsets = features[:, None] * DV + columns[None, :]
            in_state = in_features[:, None] & (columns < DV)[None, :]
            s_cos = tl.load(h0 + state_offsets, mask=in_state, other=0.0)
            s_sin = tl.load(h0 + D * DV + state_offsets, mask=in_state, other=0.0)
    # Every warp holds all of z, and one writes it, perhaps over what another has yet to read: here all have.
    # A number of S is held by one thread, which reads and writes it.
    tl.debug_barrier()
    tl.store(zt + pid * zt_stride + features, z_cos, mask=in_features)
    tl.store(zt + pid * zt_stride + D + features, z_sin, mask=in_features)
