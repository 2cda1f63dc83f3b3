"""The gradients of k and v in causal attention: chunk by chunk from the end of the sequence to its beginning.

    dk'_j = sum_{i >= j} cos(theta_i - theta_j) (g_i . v_j + delta_i) inv_den_i q'_i
    dv_j  = sum_{i >= j} cos(theta_i - theta_j) (k'_j . inv_den_i q'_i) g_i

The state is R = sum_i phi(inv_den_i q'_i) g_i^T with its own z, weighted by delta: the selector with the
weights delta (`weighted_selector`) also adds delta to A. inv_den multiplies q together with the phase, so
that v and g go from TMA straight into matrix products; phi(k) and phi(inv_den q) are written over k and q.
The two results are computed one after the other, because together they would not leave room for R in 255
registers:

    P = phi(k) phi(inv_den q)^T above the diagonal -> dv = phi(k) R + P g -> store
    A = v g^T + delta above the diagonal -> X = v R_cos^T + A (inv_den q)_cos + 1 (x) z_cos; in the same
    registers, on top of X cos / sin, Y with the sines -> dk = sin (X cos / sin + Y) where k > 0 -> store
    R += phi(inv_den q)^T g

inv_den and delta are loaded one chunk ahead. Two stages (110 KiB); where W = 128 only one of v and g, which
are needed later than q and k (222 KiB: R alone takes 64). With grouped heads each query head writes its own
part of dk and dv.

Bytes: q, k, v, g read, dk and dv written: 6 tensors. Measured as in chunk_fwd.py: 0.235 ms (memory-bound
limit of these tensors 0.189); W = 128 as in chunk_bwd_dq.py. Documents, as there: 0.321 ms; here the last
tile of a document has no state, and the first adds nothing to R.
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

from cosformer.ops.hopper.bf16x2 import (
    mask_rows,
    relu_phase,
    relu_phase_or_zero,
    triu,
    where_positive,
    zero_rows,
)
from cosformer.ops.hopper.partial_sums import (
    PARTIALS,
    alloc_partials,
    selector_layout,
    weighted_selector,
)
from cosformer.ops.hopper.state import (
    add_to_state,
    alloc_state,
    copy_state_to_smem,
    index_state,
    initial_state,
    store_final_state,
)
from cosformer.ops.hopper.tile_access import locate_split_tiles, tile_at
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
    phases,
    row_slice,
    store_tile,
    tma_load,
    write_out_tile,
)

RUNTIME = [
    "origin", "length", "splits_per_row", "split_size", "angle_step", "tokens", "mask_stride", "h0_stride",
    "z0_stride", "ht_stride", "zt_stride",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def chunk_bwd_dkv(
    q, k, v, g, dk, dv, dk_ptr, dv_ptr, inv_den_ptr, delta_ptr, key_mask_ptr, positions_ptr, h0, z0, ht, zt,
    cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, origin, length, splits_per_row, split_size,
    angle_step, tokens, mask_stride, h0_stride, z0_stride, ht_stride, zt_stride, HEADS: gl.constexpr,
    GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, IS_VARLEN: gl.constexpr,
    TILE_LIST: gl.constexpr, HAS_MASK: gl.constexpr, HAS_POSITIONS: gl.constexpr,
    USE_INITIAL_STATE: gl.constexpr, STORE_FINAL_STATE: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """h0, z0: the gradient of the state after each split; ht, zt: of the state before the first."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * W * 2
    VG_STAGES: gl.constexpr = STAGES if W == 64 else 1  # stages of v and g

    pid = gl.program_id(0)
    head = pid % HEADS
    key_head = head // GROUP
    row, batch, row_start, begin, end, slot, chunks = locate_split_tiles(
        pid // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length, splits_per_row,
        split_size, IS_VARLEN, TILE_LIST,
    )  # fmt: skip
    if HAS_POSITIONS:
        origin += gl.load(positions_ptr + row, mask=chunks > 0, other=0).to(gl.int32)
    token, before, rest = tile_at(gl.maximum(chunks - 1, 0), tile_list, row_start, begin, end, TILE_LIST)

    q_tiles = alloc_tiles(STAGES, CHUNK, W)
    k_tiles = alloc_tiles(STAGES, CHUNK, W)
    v_tiles = alloc_tiles(VG_STAGES, CHUNK, W)
    g_tiles = alloc_tiles(VG_STAGES, CHUNK, W)
    out_tiles = alloc_tiles(1, CHUNK, W)
    k_sin_smem = alloc_smem(CHUNK, W)
    q_sin_smem = alloc_smem(CHUNK, W)
    state_smem = alloc_state(W)
    selector_smem = alloc_partials(CHUNK)
    bars = alloc_barriers(STAGES)
    vg_bars = alloc_barriers(VG_STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at, _, _ = tile_at(chunks - 1 - i, tile_list, row_start, begin, end, TILE_LIST)
            mbarrier.expect(bars.index(i), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(i), bars.index(i), batch, at, head)
            tma_load(k, k_tiles.index(i), bars.index(i), batch, at, key_head)
    for i in gl.static_range(VG_STAGES):
        if i < chunks:
            at, _, _ = tile_at(chunks - 1 - i, tile_list, row_start, begin, end, TILE_LIST)
            mbarrier.expect(vg_bars.index(i), 2 * TILE_BYTES)
            tma_load(v, v_tiles.index(i), vg_bars.index(i), batch, at, key_head)
            tma_load(g, g_tiles.index(i), vg_bars.index(i), batch, at, head)

    if USE_INITIAL_STATE and TILE_LIST:
        slot = gl.where((chunks > 0) & (rest > CHUNK), slot, -1)
    z_cos, z_sin, s_cos, s_sin = initial_state(
        h0, z0, slot, head, h0_stride, z0_stride, HEADS, D, DV, W, USE_INITIAL_STATE, WARPS
    )

    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    delta_rows = gl.arange(0, CHUNK, layout=row_slice(selector_layout(WARPS)))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    i = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    j = gl.arange(0, CHUNK, layout=row_slice(SCORES))
    mask_shift = 16 * (j[:, None] - i[None, :])
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    ones = gl.full([CHUNK, PARTIALS], 1.0, gl.float32, dot_operand(OUT)).to(gl.bfloat16)
    ones_a = gl.convert_layout(ones, dot_operand(SCORES))
    vec_offset = (batch * HEADS + head).to(gl.int64) * tokens
    inv_den = gl.load(
        inv_den_ptr + vec_offset + token + q_rows, mask=(q_rows < rest) & (chunks > 0), other=0.0
    )
    delta = gl.load(
        delta_ptr + vec_offset + token + delta_rows, mask=(delta_rows < rest) & (chunks > 0), other=0.0
    )
    for t in range(chunks):
        stage = t % STAGES
        vg_stage = t % VG_STAGES
        n = chunks - 1 - t
        token_next, before_next, rest_next = tile_at(
            gl.maximum(n - 1, 0), tile_list, row_start, begin, end, TILE_LIST
        )
        token_ahead, _, _ = tile_at(gl.maximum(n - STAGES, 0), tile_list, row_start, begin, end, TILE_LIST)
        if not TILE_LIST:
            token, before, rest = tile_at(n, tile_list, row_start, begin, end, TILE_LIST)
            has_prev: gl.constexpr = True
            continues: gl.constexpr = True
        else:
            has_prev = rest > CHUNK
            continues = before > 0
        zero = opaque_zero(t)
        k_sin = k_sin_smem.index(zero)
        q_sin = q_sin_smem.index(zero)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        selector = selector_smem.index(zero)
        if has_prev:
            copy_state_to_smem(
                s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile
            )  # fmt: skip
        cos, sin = phases(origin + before + q_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        q_cos = as_matrix(q_tiles.index(stage))
        k_cos = as_matrix(k_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(vg_stage))
        tile_g = as_matrix(g_tiles.index(vg_stage))
        x = q_cos.load(COALESCED)
        q_cos.store(relu_phase_or_zero(x, cos * inv_den))
        q_sin.store(relu_phase_or_zero(x, sin * inv_den))
        weighted_selector(delta, selector, WARPS)
        x = k_cos.load(COALESCED)
        k_cos.store(relu_phase(x, cos))
        k_sin.store(relu_phase(x, sin))
        fence_async_shared()
        p = warpgroup_mma(k_cos, q_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(k_sin, q_sin.permute((1, 0)), p, is_async=True)
        mbarrier.wait(vg_bars.index(vg_stage), (t // VG_STAGES) & 1)
        if IS_VARLEN and rest < CHUNK:
            zero_rows(tile_g, q_rows < rest, COALESCED)
            fence_async_shared()
        p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
        p = gl.convert_layout(triu(p, mask_shift), dot_operand(OUT))
        y = zero_out
        if has_prev:
            y = warpgroup_mma(k_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
            y = warpgroup_mma(k_sin, s_sin_tile, y, is_async=True)
            if TILE_LIST:
                y = warpgroup_mma_wait(num_outstanding=0, deps=[y])
        y = warpgroup_mma(p, tile_g, y, is_async=True)
        y, p = warpgroup_mma_wait(num_outstanding=0, deps=[y, p])
        if HAS_MASK:
            keep = gl.load(
                key_mask_ptr + batch.to(gl.int64) * mask_stride + before + y_rows,
                mask=y_rows < rest,
                other=0,
            )
            y = mask_rows(y.to(gl.bfloat16), keep != 0)
        y = y.to(gl.bfloat16)
        write_out_tile(out_tiles.index(0), y)
        a = warpgroup_mma(tile_v, tile_g.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        a = warpgroup_mma(ones_a, selector.permute((1, 0)), a, is_async=True)
        store_tile(dv, dv_ptr, out_tiles.index(0), batch, token, rest, head, HEADS, DV, COALESCED, IS_VARLEN)
        a = warpgroup_mma_wait(num_outstanding=0, deps=[a])
        a = gl.convert_layout(triu(a, mask_shift), dot_operand(OUT))
        cos_y, sin_y = phases(origin + before + y_rows, angle_step)
        if TILE_LIST:
            x = warpgroup_mma(a, q_cos, zero_out, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            if has_prev:
                x = warpgroup_mma(tile_v, s_cos_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(ones, z_cos_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            x = x * (cos_y / sin_y)[:, None]
            if has_prev:
                x = warpgroup_mma(tile_v, s_sin_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(ones, z_sin_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
        else:
            x = warpgroup_mma(tile_v, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
            x = warpgroup_mma(ones, z_cos_tile.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(a, q_cos, x, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            x = x * (cos_y / sin_y)[:, None]
            x = warpgroup_mma(tile_v, s_sin_tile.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(ones, z_sin_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(a, q_sin, x, is_async=True)
        if TILE_LIST:
            x, a = warpgroup_mma_wait(num_outstanding=0, deps=[x, a])
            if continues:
                # Views of their own: an address computed in a branch must not be used after it.
                fresh_zero = opaque_zero(rest)
                s_cos, s_sin, z_cos, z_sin = add_to_state(
                    as_matrix(q_tiles.index(stage + fresh_zero)), q_sin_smem.index(fresh_zero),
                    as_matrix(g_tiles.index(vg_stage + fresh_zero)), selector_smem.index(fresh_zero), s_cos,
                    s_sin, z_cos, z_sin, has_prev,
                )  # fmt: skip
                s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
                    num_outstanding=0, deps=[s_cos, s_sin, z_cos, z_sin]
                )
        else:
            s_cos_next, s_sin_next, z_cos_next, z_sin_next = add_to_state(
                q_cos, q_sin, tile_g, selector, s_cos, s_sin, z_cos, z_sin, True
            )
            x, a = warpgroup_mma_wait(num_outstanding=4, deps=[x, a])
        y = where_positive(x * sin_y[:, None], k_cos.load(OUT))
        if HAS_MASK:
            y = mask_rows(y, keep != 0)
        inv_den = gl.load(inv_den_ptr + vec_offset + token_next + q_rows, mask=q_rows < rest_next, other=0.0)
        delta = gl.load(
            delta_ptr + vec_offset + token_next + delta_rows, mask=delta_rows < rest_next, other=0.0
        )
        if not TILE_LIST:
            s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
                num_outstanding=0, deps=[s_cos_next, s_sin_next, z_cos_next, z_sin_next]
            )
        write_out_tile(out_tiles.index(0), y)
        store_tile(dk, dk_ptr, out_tiles.index(0), batch, token, rest, head, HEADS, D, COALESCED, IS_VARLEN)
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, token_ahead, head)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, token_ahead, key_head)
        if t + VG_STAGES < chunks:
            vg_token_next, _, _ = tile_at(n - VG_STAGES, tile_list, row_start, begin, end, TILE_LIST)
            mbarrier.expect(vg_bars.index(vg_stage), 2 * TILE_BYTES)
            tma_load(v, v_tiles.index(vg_stage), vg_bars.index(vg_stage), batch, vg_token_next, key_head)
            tma_load(g, g_tiles.index(vg_stage), vg_bars.index(vg_stage), batch, vg_token_next, head)
        if TILE_LIST:
            token, before, rest = token_next, before_next, rest_next
    tma.store_wait(0)
    if STORE_FINAL_STATE:
        store_final_state(
            ht, zt, slot * HEADS + head, ht_stride, zt_stride, s_cos, s_sin, z_cos, z_sin, D, DV, W, WARPS
        )  # fmt: skip
