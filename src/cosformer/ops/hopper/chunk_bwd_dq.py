"""The gradient of q in causal attention: as chunk_fwd.py, with other roles.

    dq'_i / inv_den_i = sum_{j <= i} cos(theta_i - theta_j) (g_i . v_j + delta_i) k'_j

The factors 1/d and delta stay off the large tiles: g and v go from TMA straight into matrix products, only k
passes through registers. For each chunk, with S and z as in the forward:

    delta = -(g . o), inv_den = 1 / max(d, eps); both are stored for chunk_bwd_dkv.py
    A = g v^T + delta below the diagonal, while S += phi(k)^T v runs
    X = g S_cos^T + A k_cos + delta (x) z_cos; in the same registers, on top of X cos / sin, Y with the sines
    dq = inv_den sin (X cos / sin + Y) where q > 0

phi(k) is written over k. o, read first, and q, read last, have one stage each; k, v and g two where W = 64
(102 KiB), one where W = 128 (190 KiB). d of the next chunk is loaded one chunk ahead.

Bytes: q, k, v, o, g read and dq written: 6 tensors. Measured as in chunk_fwd.py: 0.205 ms (memory-bound limit
of these tensors 0.189); W = 128, with chunk_bwd_dkv.py, 1.37 ms (0.757). Documents, as there: 0.268 ms; the
last tile of a document adds nothing to S.
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

from cosformer.ops.hopper.bf16x2 import relu_phase, relu_phase_or_zero, tril, where_positive, zero_rows
from cosformer.ops.hopper.partial_sums import (
    PARTIALS,
    row_selector,
)
from cosformer.ops.hopper.state import (
    add_to_state,
    alloc_state,
    copy_state_to_smem,
    index_state,
    initial_state,
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
    inv_den_and_delta,
    mma_layout,
    opaque_zero,
    phases,
    row_slice,
    store_tile,
    tma_load,
    write_out_tile,
)

RUNTIME = [
    "origin", "length", "splits_per_row", "split_size", "angle_step", "eps", "tokens", "mask_stride",
    "h0_stride", "z0_stride",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def chunk_bwd_dq(
    q, k, v, o, g, dq, dq_ptr, den_ptr, inv_den_ptr, delta_ptr, key_mask_ptr, positions_ptr, h0, z0,
    cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, origin, length, splits_per_row, split_size,
    angle_step, eps, tokens, mask_stride, h0_stride, z0_stride, HEADS: gl.constexpr, GROUP: gl.constexpr,
    D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr,
    HAS_MASK: gl.constexpr, HAS_POSITIONS: gl.constexpr, USE_INITIAL_STATE: gl.constexpr,
    STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * W * 2

    pid = gl.program_id(0)
    head = pid % HEADS
    key_head = head // GROUP
    row, batch, row_start, begin, end, slot, chunks = locate_split_tiles(
        pid // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length, splits_per_row,
        split_size, IS_VARLEN, TILE_LIST,
    )  # fmt: skip
    if HAS_POSITIONS:
        origin += gl.load(positions_ptr + row, mask=chunks > 0, other=0).to(gl.int32)
    token, before, rest = tile_at(0, tile_list, row_start, begin, end, TILE_LIST)

    k_tiles = alloc_tiles(STAGES, CHUNK, W)
    v_tiles = alloc_tiles(STAGES, CHUNK, W)
    g_tiles = alloc_tiles(STAGES, CHUNK, W)
    q_tiles = alloc_tiles(1, CHUNK, W)
    o_tiles = alloc_tiles(1, CHUNK, W)
    out_tiles = alloc_tiles(1, CHUNK, W)
    k_sin_smem = alloc_smem(CHUNK, W)
    state_smem = alloc_state(W)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(STAGES)
    bar_q = alloc_barriers(1)
    bar_o = alloc_barriers(1)
    if chunks > 0:
        mbarrier.expect(bar_o.index(0), TILE_BYTES)
        tma_load(o, o_tiles.index(0), bar_o.index(0), batch, token, head)
        mbarrier.expect(bar_q.index(0), TILE_BYTES)
        tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token, head)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at, _, _ = tile_at(i, tile_list, row_start, begin, end, TILE_LIST)
            mbarrier.expect(bars.index(i), 3 * TILE_BYTES)
            tma_load(k, k_tiles.index(i), bars.index(i), batch, at, key_head)
            tma_load(v, v_tiles.index(i), bars.index(i), batch, at, key_head)
            tma_load(g, g_tiles.index(i), bars.index(i), batch, at, head)

    if USE_INITIAL_STATE and TILE_LIST:
        slot = gl.where((chunks > 0) & (before > 0), slot, -1)
    z_cos, z_sin, s_cos, s_sin = initial_state(
        h0, z0, slot, key_head, h0_stride, z0_stride, HEADS // GROUP, D, DV, W, USE_INITIAL_STATE, WARPS
    )

    g_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(SCORES)))
    k_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    i = gl.arange(0, CHUNK, layout=row_slice(SCORES))
    j = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    mask_shift = 16 * (i[:, None] - j[None, :] + 1)
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    vec_offset = (batch * HEADS + head).to(gl.int64) * tokens
    den = gl.load(
        den_ptr + vec_offset + token + g_rows, mask=g_rows < gl.where(chunks > 0, rest, 0), other=1.0
    )
    for t in range(chunks):
        stage = t % STAGES
        token_next, before_next, rest_next = tile_at(
            gl.minimum(t + 1, chunks - 1), tile_list, row_start, begin, end, TILE_LIST
        )
        token_ahead, _, _ = tile_at(
            gl.minimum(t + STAGES, chunks - 1), tile_list, row_start, begin, end, TILE_LIST
        )
        if not TILE_LIST:
            token, before, rest = tile_at(t, tile_list, row_start, begin, end, TILE_LIST)
            has_prev: gl.constexpr = True
            continues: gl.constexpr = True
        else:
            has_prev = before > 0
            continues = rest > CHUNK
        zero = opaque_zero(t)
        k_cos = as_matrix(k_tiles.index(stage))
        k_sin = k_sin_smem.index(zero)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        if has_prev:
            copy_state_to_smem(
                s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile
            )  # fmt: skip
        cos, sin = phases(origin + before + k_rows, angle_step)
        keep = k_rows < rest
        if HAS_MASK:
            keep = (
                gl.load(key_mask_ptr + batch.to(gl.int64) * mask_stride + before + k_rows, mask=keep, other=0)
                != 0
            )
        if HAS_MASK or IS_VARLEN:
            cos = gl.where(keep, cos, 0.0)
            sin = gl.where(keep, sin, 0.0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        mbarrier.wait(bar_o.index(0), t & 1)
        tile_g = as_matrix(g_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        inv_den, delta = inv_den_and_delta(tile_g, as_matrix(o_tiles.index(0)), den, eps, dot_operand(SCORES))
        x = k_cos.load(COALESCED)
        if HAS_MASK or IS_VARLEN:
            k_cos.store(relu_phase_or_zero(x, cos))
            k_sin.store(relu_phase_or_zero(x, sin))
            if HAS_MASK or rest < CHUNK:
                zero_rows(tile_v, keep, COALESCED)
        else:
            k_cos.store(relu_phase(x, cos))
            k_sin.store(relu_phase(x, sin))
        fence_async_shared()
        a = warpgroup_mma(tile_g, tile_v.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        if not TILE_LIST:
            selector = selector_smem.index(zero)
            s_cos_next, s_sin_next, z_cos_next, z_sin_next = add_to_state(
                k_cos, k_sin, tile_v, selector, s_cos, s_sin, z_cos, z_sin, True
            )
        if t + 1 < chunks:
            mbarrier.expect(bar_o.index(0), TILE_BYTES)
            tma_load(o, o_tiles.index(0), bar_o.index(0), batch, token_next, head)
        a = warpgroup_mma_wait(num_outstanding=0 if TILE_LIST else 4, deps=[a])
        a = tril(a + gl.convert_layout(delta, row_slice(SCORES))[:, None], mask_shift)
        a = gl.convert_layout(a, dot_operand(OUT))
        zero_cols = gl.zeros([CHUNK, PARTIALS], gl.float32, dot_operand(OUT))
        delta_cols = (gl.convert_layout(delta, row_slice(dot_operand(OUT)))[:, None] + zero_cols).to(
            gl.bfloat16
        )
        cos_y, sin_y = phases(origin + before + y_rows, angle_step)
        inv_den_y = gl.convert_layout(inv_den, row_slice(OUT))
        if TILE_LIST:
            x = warpgroup_mma(a, k_cos, zero_out, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            if continues:
                # Views of their own: an address computed in a branch must not be used after it.
                fresh_zero = opaque_zero(rest)
                s_cos, s_sin, z_cos, z_sin = add_to_state(
                    as_matrix(k_tiles.index(stage + fresh_zero)), k_sin_smem.index(fresh_zero),
                    as_matrix(v_tiles.index(stage + fresh_zero)), selector_smem.index(fresh_zero), s_cos,
                    s_sin, z_cos, z_sin, has_prev,
                )  # fmt: skip
                s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
                    num_outstanding=0, deps=[s_cos, s_sin, z_cos, z_sin]
                )
            if has_prev:
                x = warpgroup_mma(tile_g, s_cos_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(delta_cols, z_cos_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            x = x * (cos_y / sin_y)[:, None]
            x = warpgroup_mma(a, k_sin, x, is_async=True)
            x, a = warpgroup_mma_wait(num_outstanding=0, deps=[x, a])
            if has_prev:
                x = warpgroup_mma(tile_g, s_sin_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(delta_cols, z_sin_tile.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
        else:
            x = warpgroup_mma(tile_g, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
            x = warpgroup_mma(delta_cols, z_cos_tile.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(a, k_cos, x, is_async=True)
            x, s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
                num_outstanding=0, deps=[x, s_cos_next, s_sin_next, z_cos_next, z_sin_next]
            )
            x = x * (cos_y / sin_y)[:, None]
            x = warpgroup_mma(tile_g, s_sin_tile.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(delta_cols, z_sin_tile.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(a, k_sin, x, is_async=True)
            x, a, delta_cols = warpgroup_mma_wait(num_outstanding=0, deps=[x, a, delta_cols])
        y = x * (sin_y * inv_den_y)[:, None]
        mbarrier.wait(bar_q.index(0), t & 1)
        y = where_positive(y, as_matrix(q_tiles.index(0)).load(OUT))
        write_out_tile(out_tiles.index(0), y)
        store_tile(dq, dq_ptr, out_tiles.index(0), batch, token, rest, head, HEADS, D, COALESCED, IS_VARLEN)
        if t + 1 < chunks:
            mbarrier.expect(bar_q.index(0), TILE_BYTES)
            tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token_next, head)
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), 3 * TILE_BYTES)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, token_ahead, key_head)
            tma_load(v, v_tiles.index(stage), bars.index(stage), batch, token_ahead, key_head)
            tma_load(g, g_tiles.index(stage), bars.index(stage), batch, token_ahead, head)
        den = gl.load(den_ptr + vec_offset + token_next + g_rows, mask=g_rows < rest_next, other=1.0)
        gl.store(delta_ptr + vec_offset + token + g_rows, delta, mask=g_rows < rest)
        gl.store(inv_den_ptr + vec_offset + token + g_rows, inv_den, mask=g_rows < rest)
        if TILE_LIST:
            token, before, rest = token_next, before_next, rest_next
    tma.store_wait(0)
