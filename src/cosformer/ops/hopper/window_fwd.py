"""Heads with a wide window, forward: chunk_fwd.py with a second tile, which leaves the window
(window_tiles.py).

For each chunk, with k and v of the tile that enters and of the one that leaves, signs included:

    P = phi(q) phi(k)^T on one side of the diagonal, for each of the two tiles
    o = (phi(q) S + P v + P' v') / d,   S += phi(k)^T v + phi(k')^T v'

phi(k) is written over k. q, k and v have two stages, the tile that leaves one: it was read not long ago, as
the tile that enters in the CTA of the segment before, and lies in the cache. 110 KiB of shared memory, two
CTAs per SM.
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

from cosformer.ops.hopper.bf16x2 import relu_phase, tril
from cosformer.ops.hopper.partial_sums import PARTIALS, divide_by_den, partials_layout, row_selector
from cosformer.ops.hopper.state import alloc_state, copy_state_to_smem, index_state, zero_state
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
    "heads", "length", "first", "per_row", "segments", "segment", "window", "angle_step", "eps", "row_b",
    "row_h",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def window_fwd(
    q, k, v, o, den_ptr, h, table, heads, length, first, per_row, segments, segment, window, angle_step, eps,
    row_b, row_h, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, F: gl.constexpr,
    CAUSAL: gl.constexpr, LEAVES: gl.constexpr, HAS_STATE: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """LEAVES: whether there is a tile W tokens before. HAS_STATE: whether segments start from states h."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(CHUNK, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2

    head, key_head, entry, batch, _, begin, end = locate_segment(
        gl.program_id(0), table, heads, first, per_row, length, segment, GROUP
    )
    chunks = (end - begin + CHUNK - 1) // CHUNK
    block = begin // window
    block_begin = block * window
    enters = 0 if CAUSAL else window

    q_tiles = alloc_tiles(STAGES, CHUNK, F)
    k_tiles = alloc_tiles(STAGES, CHUNK, F)
    v_tiles = alloc_tiles(STAGES, CHUNK, F)
    out_tiles = alloc_tiles(1, CHUNK, F)
    k_sin_smem = alloc_smem(CHUNK, F)
    state_smem = alloc_state(F)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(STAGES)
    if LEAVES:
        k_last_tiles = alloc_tiles(1, CHUNK, F)
        v_last_tiles = alloc_tiles(1, CHUNK, F)
        l_sin_smem = alloc_smem(CHUNK, F)
        bar_last = alloc_barriers(1)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at = begin + i * CHUNK
            mbarrier.expect(bars.index(i), 3 * TILE_BYTES)
            tma_load(q, q_tiles.index(i), bars.index(i), batch, at, head)
            tma_load(k, k_tiles.index(i), bars.index(i), batch, at + enters, key_head)
            tma_load(v, v_tiles.index(i), bars.index(i), batch, at + enters, key_head)
    if LEAVES:
        tma_load_pair(
            k, v, k_last_tiles.index(0), v_last_tiles.index(0), bar_last.index(0), batch, begin - window,
            key_head,
        )  # fmt: skip

    if HAS_STATE:
        high = (begin + enters) // segment
        s_cos, s_sin, z_cos, z_sin = sum_states(
            h, batch, entry // GROUP, heads // GROUP, segments, (begin - window) // segment, high, segment,
            window, block, D, DV, F, WARPS,
        )  # fmt: skip
    else:
        s_cos, s_sin, z_cos, z_sin = zero_state(F, WARPS)

    q_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(SCORES)))
    k_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    o_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    i = gl.arange(0, CHUNK, layout=row_slice(SCORES))
    j = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    leaving_shift = 16 * (i[:, None] - j[None, :] + 1)
    # At a distance of W there is no weight.
    entering_shift = leaving_shift if CAUSAL else leaving_shift - 16
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    zero_parts = gl.zeros([CHUNK, PARTIALS], gl.float32, ROW_PARTIALS)
    for t in range(chunks):
        stage = t % STAGES
        token = begin + t * CHUNK
        zero = opaque_zero(t)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        selector = selector_smem.index(zero)
        copy_state_to_smem(s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile)
        cos, sin = phases(token - block_begin + k_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        k_cos = as_matrix(k_tiles.index(stage))
        k_sin = k_sin_smem.index(zero)
        tile_q = as_matrix(q_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        write_key_features(k_cos, k_sin, cos, sin, not CAUSAL, COALESCED)
        y = tile_q.load(dot_operand(SCORES))
        cos_q, sin_q = phases(token - block_begin + q_rows, angle_step)
        q_cos = relu_phase(y, cos_q)
        q_sin = relu_phase(y, sin_q)
        if LEAVES:
            mbarrier.wait(bar_last.index(0), t & 1)
            l_cos = as_matrix(k_last_tiles.index(zero))
            l_sin = l_sin_smem.index(zero)
            tile_w = as_matrix(v_last_tiles.index(zero))
            write_key_features(l_cos, l_sin, cos, sin, True, COALESCED)
        fence_async_shared()
        p = warpgroup_mma(q_cos, k_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(q_sin, k_sin.permute((1, 0)), p, is_async=True)
        if LEAVES:
            p_last = warpgroup_mma(q_cos, l_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
            p_last = warpgroup_mma(q_sin, l_sin.permute((1, 0)), p_last, is_async=True)
        s_cos_next = warpgroup_mma(k_cos.permute((1, 0)), tile_v, s_cos, is_async=True)
        s_sin_next = warpgroup_mma(k_sin.permute((1, 0)), tile_v, s_sin, is_async=True)
        if LEAVES:
            s_cos_next = warpgroup_mma(l_cos.permute((1, 0)), tile_w, s_cos_next, is_async=True)
            s_sin_next = warpgroup_mma(l_sin.permute((1, 0)), tile_w, s_sin_next, is_async=True)
            p, p_last = warpgroup_mma_wait(num_outstanding=4, deps=[p, p_last])
            p_last = tril(p_last, leaving_shift)
            p_last_out = gl.convert_layout(p_last, dot_operand(OUT))
            p_last_parts = gl.convert_layout(p_last, dot_operand(ROW_PARTIALS))
        else:
            p = warpgroup_mma_wait(num_outstanding=2, deps=[p])
        p = tril(p, entering_shift)
        p_out = gl.convert_layout(p, dot_operand(OUT))
        p_parts = gl.convert_layout(p, dot_operand(ROW_PARTIALS))
        q_cos_out = gl.convert_layout(q_cos, dot_operand(OUT))
        q_sin_out = gl.convert_layout(q_sin, dot_operand(OUT))
        acc = warpgroup_mma(q_cos_out, s_cos_tile, zero_out, use_acc=False, is_async=True)
        acc = warpgroup_mma(q_sin_out, s_sin_tile, acc, is_async=True)
        q_cos_z = gl.convert_layout(q_cos, dot_operand(ROW_PARTIALS))
        q_sin_z = gl.convert_layout(q_sin, dot_operand(ROW_PARTIALS))
        den_parts = warpgroup_mma(q_cos_z, z_cos_tile, zero_parts, use_acc=False, is_async=True)
        den_parts = warpgroup_mma(q_sin_z, z_sin_tile, den_parts, is_async=True)
        acc = warpgroup_mma(p_out, tile_v, acc, is_async=True)
        den_parts = warpgroup_mma(p_parts, selector, den_parts, is_async=True)
        if LEAVES:
            acc = warpgroup_mma(p_last_out, tile_w, acc, is_async=True)
            den_parts = warpgroup_mma(p_last_parts, selector, den_parts, is_async=True)
        z_cos_next = warpgroup_mma(k_cos.permute((1, 0)), selector, z_cos, is_async=True)
        z_sin_next = warpgroup_mma(k_sin.permute((1, 0)), selector, z_sin, is_async=True)
        if LEAVES:
            z_cos_next = warpgroup_mma(l_cos.permute((1, 0)), selector, z_cos_next, is_async=True)
            z_sin_next = warpgroup_mma(l_sin.permute((1, 0)), selector, z_sin_next, is_async=True)
            acc, den_parts, p_out, p_parts, p_last_out, p_last_parts, q_cos, q_sin = warpgroup_mma_wait(
                num_outstanding=4,
                deps=[acc, den_parts, p_out, p_parts, p_last_out, p_last_parts, q_cos, q_sin],
            )
        else:
            acc, den_parts, p_out, p_parts, q_cos, q_sin = warpgroup_mma_wait(
                num_outstanding=2, deps=[acc, den_parts, p_out, p_parts, q_cos, q_sin]
            )
        result, den = divide_by_den(acc, den_parts, eps, OUT)
        write_out_tile(out_tiles.index(0), result)
        s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[s_cos_next, s_sin_next, z_cos_next, z_sin_next]
        )
        fence_async_shared()
        sync()
        tma_store(o, out_tiles.index(0), batch, token, head)
        if LEAVES:
            if t + 1 < chunks:
                tma_load_pair(
                    k, v, k_last_tiles.index(0), v_last_tiles.index(0), bar_last.index(0), batch,
                    token + CHUNK - window, key_head,
                )  # fmt: skip
        if t + STAGES < chunks:
            at = token + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), 3 * TILE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, at, head)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, at + enters, key_head)
            tma_load(v, v_tiles.index(stage), bars.index(stage), batch, at + enters, key_head)
        vector = den_ptr + batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h + token
        gl.store(vector + o_rows, den, mask=token + o_rows < length)
    tma.store_wait(0)
