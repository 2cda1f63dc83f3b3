"""The gradients of bidirectional and cross attention: rows times finished states, which stay in shared
memory.

    state_apply_dq   q, g, o -> dq = inv_den (cos X + sin Y) where q > 0, X = g S_cos^T + delta (x) z_cos,
                     Y likewise with sines; and, since q and g are loaded, the state R = sum phi(inv_den q')
                     g^T of each split
    state_apply_dkv  k, v -> dv = phi(k) R, dk = cos X + sin Y where k > 0, X = v R_cos^T + 1 (x) z_cos, Y
                     likewise with sines

with z, beside R, weighted by delta. One CTA takes one head of one split.

Bytes: 4 tensors each, 8 in all: the memory-bound limit. Measured as in chunk_fwd.py: 0.158 and 0.147 ms
(limits 0.126); together 0.80 ms where W = 128 (0.505).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.bf16x2 import mask_rows, relu_phase, relu_phase_or_zero, where_positive, zero_rows
from cosformer.ops.hopper.chunk_state import store_state
from cosformer.ops.hopper.partial_sums import (
    PARTIALS,
    alloc_partials,
    selector_layout,
    weighted_selector,
)
from cosformer.ops.hopper.state import add_to_state, alloc_state_z_rows, index_state, zero_state
from cosformer.ops.hopper.state_apply import load_state_to_smem
from cosformer.ops.hopper.tile_access import locate_part
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_smem,
    alloc_tiles,
    as_matrix,
    coalesced,
    dot_operand,
    inv_den_and_delta,
    mma_layout,
    opaque_zero,
    phases,
    row_slice,
    store_rows,
    sync,
    tma_load,
    tma_load_pair,
    tma_store,
    write_out_tile,
)

RUNTIME = [
    "origin", "length", "splits_per_row", "split_size", "angle_step", "eps", "tokens", "mask_stride",
    "h0_stride", "z0_stride",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def state_apply_dq(
    q, o, g, dq, dq_ptr, den_ptr, positions_ptr, h0, z0, h_ptr, cu_seqlens, split_doc, doc_first_split,
    split_slot, tile_list, origin, length, splits_per_row, split_size, angle_step, eps, tokens, h0_stride,
    z0_stride, HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr, HAS_POSITIONS: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """h [slots, GROUP, key heads, 2 D (Dv + 1)]: R of each split and head."""
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    STAGE_BYTES: gl.constexpr = 3 * CHUNK * W * 2
    head = gl.program_id(0) % HEADS
    row, batch, row_start, begin, end, slot = locate_part(
        gl.program_id(0) // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length,
        splits_per_row, split_size, IS_VARLEN, TILE_LIST,
    )  # fmt: skip
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    q_tiles = alloc_tiles(STAGES, CHUNK, W)
    g_tiles = alloc_tiles(STAGES, CHUNK, W)
    o_tiles = alloc_tiles(STAGES, CHUNK, W)
    out_tiles = alloc_tiles(1, CHUNK, W)
    q_cos_smem = alloc_smem(CHUNK, W)
    q_sin_smem = alloc_smem(CHUNK, W)
    selector_smem = alloc_partials(CHUNK)
    state_smem = alloc_state_z_rows(W)
    bars = alloc_barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            token = row_start + begin + i * CHUNK
            mbarrier.expect(bars.index(i), STAGE_BYTES)
            tma_load(q, q_tiles.index(i), bars.index(i), batch, token, head)
            tma_load(g, g_tiles.index(i), bars.index(i), batch, token, head)
            tma_load(o, o_tiles.index(i), bars.index(i), batch, token, head)
    if chunks > 0:
        if HAS_POSITIONS:
            origin += gl.load(positions_ptr + row).to(gl.int32)
        load_state_to_smem(
            h0, z0, row * (HEADS // GROUP) + head // GROUP, h0_stride, z0_stride, state_smem, 1, D, DV, W,
            COALESCED,
        )  # fmt: skip
    r_cos, r_sin, z_cos, z_sin = zero_state(W, WARPS)
    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    vec_offset = (batch * HEADS + head).to(gl.int64) * tokens + row_start
    den = gl.load(den_ptr + vec_offset + begin + q_rows, mask=begin + q_rows < end, other=1.0)
    for t in range(chunks):
        stage = t % STAGES
        before = begin + t * CHUNK
        token = row_start + before
        zero = opaque_zero(t)
        q_cos = q_cos_smem.index(zero)
        q_sin = q_sin_smem.index(zero)
        selector = selector_smem.index(zero)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        in_state = before + q_rows < end
        cos, sin = phases(origin + before + q_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_q = as_matrix(q_tiles.index(stage))
        tile_g = as_matrix(g_tiles.index(stage))
        if IS_VARLEN and before + CHUNK > end:
            zero_rows(tile_g, in_state, COALESCED)
        inv_den, delta = inv_den_and_delta(tile_g, as_matrix(o_tiles.index(stage)), den, eps, COALESCED)
        x = tile_q.load(COALESCED)
        q_cos.store(relu_phase_or_zero(x, cos * inv_den))
        q_sin.store(relu_phase_or_zero(x, sin * inv_den))
        weighted_selector(gl.convert_layout(delta, row_slice(selector_layout(WARPS))), selector, WARPS)
        fence_async_shared()
        x = warpgroup_mma(tile_g, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
        x = warpgroup_mma(selector, z_cos_tile, x, is_async=True)
        y = warpgroup_mma(tile_g, s_sin_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
        y = warpgroup_mma(selector, z_sin_tile, y, is_async=True)
        r_cos_next, r_sin_next, z_cos_next, z_sin_next = add_to_state(
            q_cos, q_sin, tile_g, selector, r_cos, r_sin, z_cos, z_sin, True
        )
        x, y = warpgroup_mma_wait(num_outstanding=4, deps=[x, y])
        cos_y, sin_y = phases(origin + before + y_rows, angle_step)
        inv_den_y = gl.convert_layout(inv_den, row_slice(OUT))
        y = x * (cos_y * inv_den_y)[:, None] + y * (sin_y * inv_den_y)[:, None]
        y = where_positive(y, tile_q.load(OUT))
        den = gl.load(
            den_ptr + vec_offset + before + CHUNK + q_rows, mask=before + CHUNK + q_rows < end, other=1.0
        )
        r_cos, r_sin, z_cos, z_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[r_cos_next, r_sin_next, z_cos_next, z_sin_next]
        )
        write_out_tile(out_tiles.index(0), y)
        fence_async_shared()
        sync()
        if IS_VARLEN and before + CHUNK > end:
            store_rows(
                dq_ptr + head * D, HEADS * D, token, end - before, as_matrix(out_tiles.index(0)), D, COALESCED
            )
        else:
            tma_store(dq, out_tiles.index(0), batch, token, head)
        if t + STAGES < chunks:
            token_ahead = token + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), STAGE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, token_ahead, head)
            tma_load(g, g_tiles.index(stage), bars.index(stage), batch, token_ahead, head)
            tma_load(o, o_tiles.index(stage), bars.index(stage), batch, token_ahead, head)
    KEY_HEADS: gl.constexpr = HEADS // GROUP
    index = gl.where(slot >= 0, (slot * GROUP + head % GROUP) * KEY_HEADS + head // GROUP, -1)
    store_state(h_ptr, index, r_cos, r_sin, z_cos, z_sin, D, DV, W, WARPS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=RUNTIME)
def state_apply_dkv(
    k, v, dk, dv, dk_ptr, dv_ptr, key_mask_ptr, positions_ptr, h0, z0, cu_seqlens, split_doc, doc_first_split,
    split_slot, tile_list, origin, length, splits_per_row, split_size, angle_step, mask_stride, h0_stride,
    z0_stride, HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr, HAS_MASK: gl.constexpr, HAS_POSITIONS: gl.constexpr,
    STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: key heads."""
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    head = gl.program_id(0) % HEADS
    row, batch, row_start, begin, end, _ = locate_part(
        gl.program_id(0) // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length,
        splits_per_row, split_size, IS_VARLEN, TILE_LIST,
    )  # fmt: skip
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    k_tiles = alloc_tiles(STAGES, CHUNK, W)
    v_tiles = alloc_tiles(STAGES, CHUNK, W)
    out_tiles = alloc_tiles(2, CHUNK, W)
    state_smem = alloc_state_z_rows(W)
    bars = alloc_barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            token = row_start + begin + i * CHUNK
            tma_load_pair(k, v, k_tiles.index(i), v_tiles.index(i), bars.index(i), batch, token, head)
    if chunks > 0:
        if HAS_POSITIONS:
            origin += gl.load(positions_ptr + row).to(gl.int32)
        load_state_to_smem(
            h0, z0, row * HEADS + head, h0_stride, z0_stride, state_smem, PARTIALS, D, DV, W, COALESCED,
        )  # fmt: skip
    k_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(OUT)))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    ones = gl.full([CHUNK, PARTIALS], 1.0, gl.float32, dot_operand(OUT)).to(gl.bfloat16)
    for t in range(chunks):
        stage = t % STAGES
        before = begin + t * CHUNK
        token = row_start + before
        zero = opaque_zero(t)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        cos, sin = phases(origin + before + k_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_k = as_matrix(k_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        x = warpgroup_mma(tile_v, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
        x = warpgroup_mma(ones, z_cos_tile, x, is_async=True)
        y = warpgroup_mma(tile_v, s_sin_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
        y = warpgroup_mma(ones, z_sin_tile, y, is_async=True)
        k_tile = tile_k.load(dot_operand(OUT))
        k_cos = relu_phase(k_tile, cos)
        k_sin = relu_phase(k_tile, sin)
        dv_acc = warpgroup_mma(k_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
        dv_acc = warpgroup_mma(k_sin, s_sin_tile, dv_acc, is_async=True)
        x, y = warpgroup_mma_wait(num_outstanding=2, deps=[x, y])
        cos_y, sin_y = phases(origin + before + y_rows, angle_step)
        y = x * cos_y[:, None] + y * sin_y[:, None]
        y = where_positive(y, tile_k.load(OUT))
        if HAS_MASK:
            keep = gl.load(
                key_mask_ptr + batch.to(gl.int64) * mask_stride + before + y_rows,
                mask=before + y_rows < end,
                other=0,
            )
            y = mask_rows(y, keep != 0)
        write_out_tile(out_tiles.index(0), y)
        dv_acc, k_cos, k_sin = warpgroup_mma_wait(num_outstanding=0, deps=[dv_acc, k_cos, k_sin])
        if HAS_MASK:
            as_matrix(out_tiles.index(1)).store(mask_rows(dv_acc.to(gl.bfloat16), keep != 0))
        else:
            as_matrix(out_tiles.index(1)).store(dv_acc.to(gl.bfloat16))
        fence_async_shared()
        sync()
        if IS_VARLEN and before + CHUNK > end:
            store_rows(
                dk_ptr + head * D, HEADS * D, token, end - before, as_matrix(out_tiles.index(0)), D, COALESCED
            )
            store_rows(
                dv_ptr + head * DV, HEADS * DV, token, end - before, as_matrix(out_tiles.index(1)), DV,
                COALESCED,
            )  # fmt: skip
        else:
            tma_store(dk, out_tiles.index(0), batch, token, head)
            tma_store(dv, out_tiles.index(1), batch, token, head)
        if t + STAGES < chunks:
            tma_load_pair(
                k, v, k_tiles.index(stage), v_tiles.index(stage), bars.index(stage), batch,
                token + STAGES * CHUNK, head,
            )  # fmt: skip
    tma.store_wait(0)
