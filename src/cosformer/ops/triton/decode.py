"""One token a row: the state is read once, updated, read by the queries, and written once.

    S += phi(k) v^T,   z += phi(k),   n_g = phi(q_g) S,   d_g = phi(q_g) . z      for the heads g of a group

One program takes one key head of one row, and goes through v in blocks of BN columns. Nothing but the
state weighs anything here: 2 D (Dv + 1) numbers of fp32 in and out, the floor of a step. The state that
goes out may be the one that came in: no other program looks at it.
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import phases, relu


@triton.jit(do_not_specialize=["offset", "mask_stride"])
def step(
    Q, K, V, OUT, DENOMINATOR, MASK, POSITIONS, S, Z, S_OUT, Z_OUT, offset, horizon, eps,
    q_b, q_h, k_b, k_h, v_b, v_h, mask_stride, s_stride, z_stride, s_out_stride, z_out_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, MASKED: tl.constexpr,
    BF: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """HEADS key heads; OUT [B, 1, HEADS * GROUP, DV] and DENOMINATOR [B, HEADS * GROUP, 1] contiguous."""
    pid = tl.program_id(0).to(tl.int64)
    head = pid % HEADS
    row = pid // HEADS
    features = tl.arange(0, BF)
    real_f = features < D
    columns = tl.arange(0, BN)
    S += pid * s_stride
    S_OUT += pid * s_out_stride
    # Asked for before anything has to be waited for; a block further on is not read where there is none.
    tile = features[:, None] * DV + columns[None, :]
    whole = real_f[:, None] & (columns < DV)[None, :]
    sc = tl.load(S + tile, mask=whole, other=0.0)
    ss = tl.load(S + D * DV + tile, mask=whole, other=0.0)
    seen = tl.load(MASK + row * mask_stride) != 0 if MASKED else True
    zc = tl.load(Z + pid * z_stride + features, mask=real_f, other=0.0)
    zs = tl.load(Z + pid * z_stride + D + features, mask=real_f, other=0.0)
    k = relu(tl.load(K + row * k_b + head * k_h + features, mask=real_f & seen, other=0.0))
    position = tl.load(POSITIONS + row).to(tl.int32)
    c, s = phases(position, horizon, tl.float32)
    cq, sq = phases(position + offset, horizon, tl.float32)

    kc, ks = c * k, s * k
    zc += kc
    zs += ks
    tl.store(Z_OUT + pid * z_out_stride + features, zc, mask=real_f)
    tl.store(Z_OUT + pid * z_out_stride + D + features, zs, mask=real_f)
    for _ in range(0, DV, BN):
        real_n = columns < DV
        v = tl.load(V + row * v_b + head * v_h + columns, mask=real_n & seen, other=0.0).to(tl.float32)
        sc += kc[:, None] * v[None, :]
        ss += ks[:, None] * v[None, :]
        tile = features[:, None] * DV + columns[None, :]
        whole = real_f[:, None] & real_n[None, :]
        tl.store(S_OUT + tile, sc, mask=whole)
        tl.store(S_OUT + D * DV + tile, ss, mask=whole)
        for g in range(GROUP):
            h = head * GROUP + g
            q = relu(tl.load(Q + row * q_b + h * q_h + features, mask=real_f, other=0.0))
            qc, qs = cq * q, sq * q
            d = tl.sum(qc * zc + qs * zs, 0)
            n = tl.sum(qc[:, None] * sc + qs[:, None] * ss, 0)
            n *= 1.0 / tl.maximum(d, eps, propagate_nan=tl.PropagateNan.ALL)
            to = row * (HEADS * GROUP) + h
            tl.store(OUT + to * DV + columns, n.to(OUT.dtype.element_ty), mask=real_n)
            tl.store(DENOMINATOR + to, d)
        columns += BN
        if DV > BN:
            tile = features[:, None] * DV + columns[None, :]
            whole = real_f[:, None] & (columns < DV)[None, :]
            sc = tl.load(S + tile, mask=whole, other=0.0)
            ss = tl.load(S + D * DV + tile, mask=whole, other=0.0)
