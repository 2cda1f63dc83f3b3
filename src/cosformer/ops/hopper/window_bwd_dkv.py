"""Heads with a wide window: the gradients of k and v. As chunk_bwd_dkv.py, from the end of a segment to
its beginning, with a second tile of queries, which leaves the window (window_tiles.py).

    P = phi(k) phi(inv_den q)^T on one side of the diagonal, for both tiles  -> dv = phi(k) R + P g + P' g'
    A = v g^T + delta there                                                -> dk, as in chunk_bwd_dkv.py

All tiles have one stage, or two where none leaves: 106 or 112 KiB of shared memory, two CTAs per SM.
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

from cosformer.ops.hopper.bf16x2 import minus_relu_phase_or_zero, relu_phase_or_zero, triu, where_positive
from cosformer.ops.hopper.partial_sums import PARTIALS, alloc_partials, selector_layout, weighted_selector
from cosformer.ops.hopper.state import (
    add_to_state,
    alloc_state,
    copy_state_to_smem,
    index_state,
    zero_state,
)
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
    sync,
    tma_load,
    tma_load_pair,
    tma_store,
    write_out_tile,
)
from cosformer.ops.hopper.window_tiles import locate_segment, sum_states, write_key_features

RUNTIME = [
    "heads", "length", "first", "per_row", "segments", "segment", "window", "angle_step", "row_b", "row_h"
]  # fmt: skip


@gluon.jit
def load_vector(ptr, first, rows, length):
    at = first + rows
    return gl.load(ptr + at, mask=(at >= 0) & (at < length), other=0.0)


@gluon.jit
def write_query_features(
    q_cos, q_sin, cos, sin, inv_den, AWAY: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """phi(inv_den q), with the cosines over q itself. AWAY: q is W tokens before, or W ahead and leaving."""
    x = q_cos.load(LAYOUT)
    if AWAY:
        q_cos.store(relu_phase_or_zero(x, sin * inv_den))
        q_sin.store(minus_relu_phase_or_zero(x, cos * inv_den))
    else:
        q_cos.store(relu_phase_or_zero(x, cos * inv_den))
        q_sin.store(relu_phase_or_zero(x, sin * inv_den))


@gluon.jit(do_not_specialize=RUNTIME)
def window_bwd_dkv(
    q, k, v, g, dk, dv, inv_den_ptr, delta_ptr, h, table, heads, length, first, per_row, segments, segment,
    window, angle_step, row_b, row_h, D: gl.constexpr, DV: gl.constexpr, F: gl.constexpr,
    CAUSAL: gl.constexpr, LEAVES: gl.constexpr, HAS_STATE: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """One query head for each key head. LEAVES: whether there is a tile W tokens ahead."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2

    head, _, entry, batch, _, begin, end = locate_segment(
        gl.program_id(0), table, heads, first, per_row, length, segment, 1
    )
    chunks = (end - begin + CHUNK - 1) // CHUNK
    if LEAVES and not CAUSAL:  # the pass over chunks starts from the state of a whole segment
        chunks = segment // CHUNK
    block = begin // window
    block_begin = block * window
    enters = 0 if CAUSAL else -window
    last = begin + (chunks - 1) * CHUNK

    q_tiles = alloc_tiles(STAGES, CHUNK, F)
    k_tiles = alloc_tiles(STAGES, CHUNK, F)
    v_tiles = alloc_tiles(STAGES, CHUNK, F)
    g_tiles = alloc_tiles(STAGES, CHUNK, F)
    out_tiles = alloc_tiles(1, CHUNK, F)
    k_sin_smem = alloc_smem(CHUNK, F)
    q_sin_smem = alloc_smem(CHUNK, F)
    state_smem = alloc_state(F)
    selector_smem = alloc_partials(CHUNK)
    bars = alloc_barriers(STAGES)
    for n in gl.static_range(STAGES):
        if n < chunks:
            at = last - n * CHUNK
            mbarrier.expect(bars.index(n), 4 * TILE_BYTES)
            tma_load(q, q_tiles.index(n), bars.index(n), batch, at + enters, head)
            tma_load(k, k_tiles.index(n), bars.index(n), batch, at, head)
            tma_load(v, v_tiles.index(n), bars.index(n), batch, at, head)
            tma_load(g, g_tiles.index(n), bars.index(n), batch, at + enters, head)
    if LEAVES:
        q_last_tiles = alloc_tiles(1, CHUNK, F)
        g_last_tiles = alloc_tiles(1, CHUNK, F)
        l_sin_smem = alloc_smem(CHUNK, F)
        selector_last_smem = alloc_partials(CHUNK)
        bar_last = alloc_barriers(1)
        tma_load_pair(
            q, g, q_last_tiles.index(0), g_last_tiles.index(0), bar_last.index(0), batch, last + window, head
        )

    if HAS_STATE:
        behind = begin + segment
        low = (behind + enters) // segment
        s_cos, s_sin, z_cos, z_sin = sum_states(
            h, batch, entry, heads, segments, low, (behind + window) // segment, segment, window, block, D,
            DV, F, WARPS,
        )  # fmt: skip
    else:
        s_cos, s_sin, z_cos, z_sin = zero_state(F, WARPS)

    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    delta_rows = gl.arange(0, CHUNK, layout=row_slice(selector_layout(WARPS)))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    i = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    j = gl.arange(0, CHUNK, layout=row_slice(SCORES))
    leaving_shift = 16 * (j[:, None] - i[None, :])
    entering_shift = leaving_shift if CAUSAL else leaving_shift + 16
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    ones = gl.full([CHUNK, PARTIALS], 1.0, gl.float32, dot_operand(OUT)).to(gl.bfloat16)
    ones_a = gl.convert_layout(ones, dot_operand(SCORES))
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    inv_den_ptr += vectors
    delta_ptr += vectors
    inv_den = load_vector(inv_den_ptr, last + enters, q_rows, length)
    delta = load_vector(delta_ptr, last + enters, delta_rows, length)
    if LEAVES:
        inv_den_last = load_vector(inv_den_ptr, last + window, q_rows, length)
        delta_last = load_vector(delta_ptr, last + window, delta_rows, length)
    for t in range(chunks):
        stage = t % STAGES
        token = last - t * CHUNK
        zero = opaque_zero(t)
        k_sin = k_sin_smem.index(zero)
        q_sin = q_sin_smem.index(zero)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        selector = selector_smem.index(zero)
        copy_state_to_smem(s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile)
        cos, sin = phases(token - block_begin + q_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        q_cos = as_matrix(q_tiles.index(stage + zero))
        k_cos = as_matrix(k_tiles.index(stage + zero))
        tile_v = as_matrix(v_tiles.index(stage + zero))
        tile_g = as_matrix(g_tiles.index(stage + zero))
        write_query_features(q_cos, q_sin, cos, sin, inv_den, not CAUSAL, COALESCED)
        weighted_selector(delta, selector, WARPS)
        if LEAVES:
            mbarrier.wait(bar_last.index(0), t & 1)
            l_cos = as_matrix(q_last_tiles.index(zero))
            l_sin = l_sin_smem.index(zero)
            tile_h = as_matrix(g_last_tiles.index(zero))
            selector_last = selector_last_smem.index(zero)
            write_query_features(l_cos, l_sin, cos, sin, inv_den_last, True, COALESCED)
            weighted_selector(delta_last, selector_last, WARPS)
        write_key_features(k_cos, k_sin, cos, sin, False, COALESCED)
        fence_async_shared()
        p = warpgroup_mma(k_cos, q_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(k_sin, q_sin.permute((1, 0)), p, is_async=True)
        if LEAVES:
            p_last = warpgroup_mma(k_cos, l_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
            p_last = warpgroup_mma(k_sin, l_sin.permute((1, 0)), p_last, is_async=True)
            p, p_last = warpgroup_mma_wait(num_outstanding=0, deps=[p, p_last])
            p_last = gl.convert_layout(triu(p_last, leaving_shift), dot_operand(OUT))
        else:
            p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
        p = gl.convert_layout(triu(p, entering_shift), dot_operand(OUT))
        y = warpgroup_mma(k_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
        y = warpgroup_mma(k_sin, s_sin_tile, y, is_async=True)
        y = warpgroup_mma(p, tile_g, y, is_async=True)
        if LEAVES:
            y = warpgroup_mma(p_last, tile_h, y, is_async=True)
            y, p, p_last = warpgroup_mma_wait(num_outstanding=0, deps=[y, p, p_last])
        else:
            y, p = warpgroup_mma_wait(num_outstanding=0, deps=[y, p])
        write_out_tile(out_tiles.index(0), y.to(gl.bfloat16))
        a = warpgroup_mma(tile_v, tile_g.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        a = warpgroup_mma(ones_a, selector.permute((1, 0)), a, is_async=True)
        if LEAVES:
            a_last = warpgroup_mma(tile_v, tile_h.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
            a_last = warpgroup_mma(ones_a, selector_last.permute((1, 0)), a_last, is_async=True)
        fence_async_shared()
        sync()
        tma_store(dv, out_tiles.index(0), batch, token, head)
        if LEAVES:
            a, a_last = warpgroup_mma_wait(num_outstanding=0, deps=[a, a_last])
            a_last = gl.convert_layout(triu(a_last, leaving_shift), dot_operand(OUT))
        else:
            a = warpgroup_mma_wait(num_outstanding=0, deps=[a])
        a = gl.convert_layout(triu(a, entering_shift), dot_operand(OUT))
        cos_y, sin_y = phases(token - block_begin + y_rows, angle_step)
        x = warpgroup_mma(tile_v, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
        x = warpgroup_mma(ones, z_cos_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(a, q_cos, x, is_async=True)
        if LEAVES:
            x = warpgroup_mma(a_last, l_cos, x, is_async=True)
        x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
        x = x * (cos_y / sin_y)[:, None]
        x = warpgroup_mma(tile_v, s_sin_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(ones, z_sin_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(a, q_sin, x, is_async=True)
        if LEAVES:
            x = warpgroup_mma(a_last, l_sin, x, is_async=True)
        s_cos_next, s_sin_next, z_cos_next, z_sin_next = add_to_state(
            q_cos, q_sin, tile_g, selector, s_cos, s_sin, z_cos, z_sin, True
        )
        if LEAVES:
            s_cos_next, s_sin_next, z_cos_next, z_sin_next = add_to_state(
                l_cos, l_sin, tile_h, selector_last, s_cos_next, s_sin_next, z_cos_next, z_sin_next, True
            )
            x, a, a_last = warpgroup_mma_wait(num_outstanding=8, deps=[x, a, a_last])
        else:
            x, a = warpgroup_mma_wait(num_outstanding=4, deps=[x, a])
        y = where_positive(x * sin_y[:, None], k_cos.load(OUT))
        inv_den = load_vector(inv_den_ptr, token - CHUNK + enters, q_rows, length)
        delta = load_vector(delta_ptr, token - CHUNK + enters, delta_rows, length)
        if LEAVES:
            inv_den_last = load_vector(inv_den_ptr, token - CHUNK + window, q_rows, length)
            delta_last = load_vector(delta_ptr, token - CHUNK + window, delta_rows, length)
        s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[s_cos_next, s_sin_next, z_cos_next, z_sin_next]
        )
        write_out_tile(out_tiles.index(0), y)
        fence_async_shared()
        sync()
        tma_store(dk, out_tiles.index(0), batch, token, head)
        if LEAVES:
            if t + 1 < chunks:
                tma_load_pair(
                    q, g, q_last_tiles.index(0), g_last_tiles.index(0), bar_last.index(0), batch,
                    token - CHUNK + window, head,
                )  # fmt: skip
        if t + STAGES < chunks:
            at = token - STAGES * CHUNK
            mbarrier.expect(bars.index(stage), 4 * TILE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, at + enters, head)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, at, head)
            tma_load(v, v_tiles.index(stage), bars.index(stage), batch, at, head)
            tma_load(g, g_tiles.index(stage), bars.index(stage), batch, at + enters, head)
    tma.store_wait(0)
