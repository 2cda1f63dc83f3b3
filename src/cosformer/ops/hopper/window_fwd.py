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

from cosformer.ops.hopper.bf16x2 import minus_relu_phase, relu_phase, tril
from cosformer.ops.hopper.partial_sums import PARTIALS, alloc_partials, partials_layout, row_selector
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
    tma_store,
)
from cosformer.ops.hopper.window_tiles import locate_segment, sum_states

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
    STATE: gl.constexpr = mma_layout(F, F, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(CHUNK, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2

    head, key_head, entry, batch, _, begin, end = locate_segment(
        gl.program_id(0), table, heads, first, per_row, length, segment, window, GROUP
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
    s_cos_smem = alloc_smem(F, F)
    s_sin_smem = alloc_smem(F, F)
    z_cos_smem = alloc_partials(F)
    z_sin_smem = alloc_partials(F)
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
        mbarrier.expect(bar_last.index(0), 2 * TILE_BYTES)
        tma_load(k, k_last_tiles.index(0), bar_last.index(0), batch, begin - window, key_head)
        tma_load(v, v_last_tiles.index(0), bar_last.index(0), batch, begin - window, key_head)

    if HAS_STATE:
        high = (begin + enters) // segment
        s_cos, s_sin, z_cos, z_sin = sum_states(
            h, batch, entry // GROUP, heads // GROUP, segments, (begin - window) // segment, high, segment,
            window, block, D, DV, F, WARPS,
        )  # fmt: skip
    else:
        s_cos = gl.zeros([F, F], gl.float32, STATE)
        s_sin = gl.zeros([F, F], gl.float32, STATE)
        z_cos = gl.zeros([F, PARTIALS], gl.float32, partials_layout(F, WARPS))
        z_sin = z_cos

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
        s_cos_tile = s_cos_smem.index(zero)
        s_sin_tile = s_sin_smem.index(zero)
        z_cos_tile = z_cos_smem.index(zero)
        z_sin_tile = z_sin_smem.index(zero)
        selector = selector_smem.index(zero)
        s_cos_tile.store(s_cos.to(gl.bfloat16))
        s_sin_tile.store(s_sin.to(gl.bfloat16))
        z_cos_tile.store(z_cos.to(gl.bfloat16))
        z_sin_tile.store(z_sin.to(gl.bfloat16))
        cos, sin = phases(token - block_begin + k_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        k_cos = as_matrix(k_tiles.index(stage))
        k_sin = k_sin_smem.index(zero)
        tile_q = as_matrix(q_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        x = k_cos.load(COALESCED)
        if CAUSAL:
            k_cos.store(relu_phase(x, cos))
            k_sin.store(relu_phase(x, sin))
        else:
            k_cos.store(minus_relu_phase(x, sin))
            k_sin.store(relu_phase(x, cos))
        y = tile_q.load(dot_operand(SCORES))
        cos_q, sin_q = phases(token - block_begin + q_rows, angle_step)
        q_cos = relu_phase(y, cos_q)
        q_sin = relu_phase(y, sin_q)
        if LEAVES:
            mbarrier.wait(bar_last.index(0), t & 1)
            l_cos = as_matrix(k_last_tiles.index(zero))
            l_sin = l_sin_smem.index(zero)
            tile_w = as_matrix(v_last_tiles.index(zero))
            x = l_cos.load(COALESCED)
            l_cos.store(minus_relu_phase(x, sin))
            l_sin.store(relu_phase(x, cos))
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
        den = gl.convert_layout(gl.sum(den_parts, axis=1), row_slice(OUT))
        result = (acc * (1.0 / gl.maximum(den, eps))[:, None]).to(gl.bfloat16)
        tma.store_wait(0)
        sync()
        as_matrix(out_tiles.index(0)).store(result)
        s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[s_cos_next, s_sin_next, z_cos_next, z_sin_next]
        )
        fence_async_shared()
        sync()
        tma_store(o, out_tiles.index(0), batch, token, head)
        if LEAVES:
            if t + 1 < chunks:
                at = token + CHUNK - window
                mbarrier.expect(bar_last.index(0), 2 * TILE_BYTES)
                tma_load(k, k_last_tiles.index(0), bar_last.index(0), batch, at, key_head)
                tma_load(v, v_last_tiles.index(0), bar_last.index(0), batch, at, key_head)
        if t + STAGES < chunks:
            at = token + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), 3 * TILE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, at, head)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, at + enters, key_head)
            tma_load(v, v_tiles.index(stage), bars.index(stage), batch, at + enters, key_head)
        vector = den_ptr + batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h + token
        gl.store(vector + o_rows, den, mask=token + o_rows < length)
    tma.store_wait(0)
