"""The gradients of bidirectional attention of packed documents of at most one tile.

    A = g v^T + delta (along rows)    dq = inv_den phi(1)^T A phi(k) where q > 0
    P = phi(k) phi(inv_den q)^T       dk = phi(1)^T A^T phi(inv_den q) where k > 0,     dv = P g

with inv_den and delta as in state_apply_bwd.py, and A, P zero between tokens of different documents. Tiles,
shared memory and the rerun are as in varlen_single_tile_fwd.py; a state would take three steps a tile.

Bytes: 8 tensors, the memory-bound limit. 96 KiB of shared memory and two CTAs per SM; twice that and one
where W = 128. Measured as in varlen_bidir_fwd.py, for the quarter of all tokens that it leaves: 0.135 ms.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.bf16x2 import keep_bits, mask_rows, relu_phase, where_positive, zero_rows
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_smem,
    alloc_tiles,
    as_matrix,
    coalesced,
    column_slice,
    dot_operand,
    mma_layout,
    opaque_zero,
    row_slice,
    store_rows,
    sync,
    tma_load,
)
from cosformer.ops.hopper.varlen_single_tile_fwd import (
    RUNTIME,
    document_phases,
    group_at,
    request_rerun,
    same_document_bits,
)


@gluon.jit
def load_qkvog(q, k, v, o, g, q_tiles, k_tiles, v_tiles, o_tiles, g_tiles, bar, token, head):
    mbarrier.expect(bar, 5 * CHUNK * q_tiles.shape[3] * 2)
    tma_load(q, q_tiles, bar, 0, token, head)
    tma_load(k, k_tiles, bar, 0, token, head)
    tma_load(v, v_tiles, bar, 0, token, head)
    tma_load(o, o_tiles, bar, 0, token, head)
    tma_load(g, g_tiles, bar, 0, token, head)


@gluon.jit(do_not_specialize=RUNTIME)
def varlen_single_tile_bwd(
    q, k, v, o, g, dq_ptr, dk_ptr, dv_ptr, den_ptr, groups_ptr, bounds_ptr, documents, rerun, angle_step, eps,
    tokens, HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """One query head for each key head."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    head = gl.program_id(0) % HEADS
    i = gl.program_id(0) // HEADS
    stride = gl.num_programs(0) // HEADS
    groups_ptr += 2 * rerun * (documents + 1)
    count = gl.load(groups_ptr + 2 * documents)
    q_tiles = alloc_tiles(STAGES, CHUNK, W)
    k_tiles = alloc_tiles(STAGES, CHUNK, W)
    v_tiles = alloc_tiles(STAGES, CHUNK, W)
    o_tiles = alloc_tiles(STAGES, CHUNK, W)
    g_tiles = alloc_tiles(STAGES, CHUNK, W)
    q_sin_smem = alloc_smem(CHUNK, W)
    k_sin_smem = alloc_smem(CHUNK, W)
    bars = alloc_barriers(STAGES)
    for n in gl.static_range(STAGES):
        if i + n * stride < count:
            at, _ = group_at(groups_ptr, i + n * stride, count)
            load_qkvog(
                q, k, v, o, g, q_tiles.index(n), k_tiles.index(n), v_tiles.index(n), o_tiles.index(n),
                g_tiles.index(n), bars.index(n), at, head,
            )  # fmt: skip
    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    den_ptr += head.to(gl.int64) * tokens
    nonfinite = gl.zeros([CHUNK], gl.float32, row_slice(COALESCED))
    token, length = group_at(groups_ptr, i, count)
    den = gl.load(den_ptr + token + q_rows, mask=q_rows < length, other=1.0)
    iterations = gl.maximum(count - i + stride - 1, 0) // stride
    for t in range(iterations):
        zero = opaque_zero(t)
        stage = (t + zero) % STAGES
        q_cos = as_matrix(q_tiles.index(stage))
        k_cos = as_matrix(k_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        tile_o = as_matrix(o_tiles.index(stage))
        tile_g = as_matrix(g_tiles.index(stage))
        q_sin = q_sin_smem.index(zero)
        k_sin = k_sin_smem.index(zero)
        token_next, length_next = group_at(groups_ptr, i + (t + 1) * stride, count)
        at, _ = group_at(groups_ptr, i + (t + STAGES) * stride, count)
        keep = q_rows < length
        cos, sin = document_phases(bounds_ptr, token, q_rows, length, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        if length < CHUNK:
            zero_rows(tile_g, keep, COALESCED)
        grad = tile_g.load(COALESCED).to(gl.float32)
        has_grad = gl.sum(gl.abs(grad), axis=1) != 0.0
        delta = -gl.sum(grad * tile_o.load(COALESCED).to(gl.float32), axis=1)
        # den is not finite where q or k is not, delta is not where g is not. (Not detected: a finite q beyond
        # 3e32 in a document whose scores are all zero, because inv_den is 1 / eps there.)
        nonfinite += gl.where(keep, delta + den, 0.0) * 0.0
        delta = gl.where(has_grad & (den >= eps), delta, 0.0)
        inv_den = gl.where(has_grad, 1.0 / gl.where(den < eps, eps, den), 0.0)
        x = mask_rows(q_cos.load(COALESCED), has_grad)
        q_cos.store(relu_phase(x, cos * inv_den))
        q_sin.store(relu_phase(x, sin * inv_den))
        x = mask_rows(k_cos.load(COALESCED), keep)
        k_cos.store(relu_phase(x, cos))
        k_sin.store(relu_phase(x, sin))
        fence_async_shared()
        a = warpgroup_mma(tile_g, tile_v.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        b = warpgroup_mma(tile_v, tile_g.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(k_cos, q_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(k_sin, q_sin.permute((1, 0)), p, is_async=True)
        e_rows = gl.convert_layout(delta, row_slice(SCORES))
        e_columns = gl.convert_layout(delta, column_slice(SCORES))
        inv_den_y = gl.convert_layout(inv_den, row_slice(OUT))
        cos_y, sin_y = document_phases(bounds_ptr, token, y_rows, length, angle_step)
        same = same_document_bits(bounds_ptr, token, length, SCORES)
        a, b, p = warpgroup_mma_wait(num_outstanding=0, deps=[a, b, p])
        # v beyond the last document may be NaN: its bits are masked.
        a = gl.convert_layout(keep_bits(a + e_rows[:, None], same), dot_operand(OUT))
        x = warpgroup_mma(a, k_cos, zero_out, use_acc=False, is_async=True)
        y = warpgroup_mma(a, k_sin, zero_out, use_acc=False, is_async=True)
        p = gl.convert_layout(keep_bits(p, same), dot_operand(OUT))
        b = gl.convert_layout(keep_bits(b + e_columns[None, :], same), dot_operand(OUT))
        x, y, a = warpgroup_mma_wait(num_outstanding=0, deps=[x, y, a])
        dv_acc = warpgroup_mma(p, tile_g, zero_out, use_acc=False, is_async=True)
        # phi(inv_den q) is positive where q is, NaN where inv_den is, or inv_den is zero.
        x = x * (cos_y * inv_den_y)[:, None] + y * (sin_y * inv_den_y)[:, None]
        tile_o.store(where_positive(x, q_cos.load(OUT)))
        dv_acc, p = warpgroup_mma_wait(num_outstanding=0, deps=[dv_acc, p])
        sync()
        x = warpgroup_mma(b, q_cos, zero_out, use_acc=False, is_async=True)
        y = warpgroup_mma(b, q_sin, zero_out, use_acc=False, is_async=True)
        tile_v.store(dv_acc.to(gl.bfloat16))
        x, y, b = warpgroup_mma_wait(num_outstanding=0, deps=[x, y, b])
        x = x * cos_y[:, None] + y * sin_y[:, None]
        tile_g.store(where_positive(x, k_cos.load(OUT)))
        sync()
        store_rows(dq_ptr + head * D, HEADS * D, token, length, tile_o, D, COALESCED)
        store_rows(dv_ptr + head * DV, HEADS * DV, token, length, tile_v, DV, COALESCED)
        store_rows(dk_ptr + head * D, HEADS * D, token, length, tile_g, D, COALESCED)
        fence_async_shared()
        sync()
        if t + STAGES < iterations:
            load_qkvog(
                q, k, v, o, g, q_tiles.index(stage), k_tiles.index(stage), v_tiles.index(stage),
                o_tiles.index(stage), g_tiles.index(stage), bars.index(stage), at, head,
            )  # fmt: skip
        den = gl.load(den_ptr + token_next + q_rows, mask=q_rows < length_next, other=1.0)
        token, length = token_next, length_next
    request_rerun(nonfinite, groups_ptr, documents, rerun)
