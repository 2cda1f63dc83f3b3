"""Heads with a wide window: the gradient of q. As chunk_bwd_dq.py, with a second tile, which leaves the
window (window_tiles.py); inv_den and delta were computed before.

    A = g v^T + delta on one side of the diagonal, for each of the two tiles
    X = g S_cos^T + A k_cos + A' k'_cos + delta (x) z_cos; Y with the sines, on top of X cos / sin
    dq = inv_den sin (X cos / sin + Y) where q > 0

dq is written over q in shared memory: 110 KiB, two CTAs per SM.

Some functions of state.py and window_tiles.py are written out here: calls would change the line table, from
which alone ptxas assigns other registers.
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

from cosformer.ops.hopper.bf16x2 import minus_relu_phase, relu_phase, tril, where_positive
from cosformer.ops.hopper.partial_sums import PARTIALS, alloc_partials, row_selector
from cosformer.ops.hopper.state import add_to_state, zero_state
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
)
from cosformer.ops.hopper.window_tiles import locate_segment, sum_states

RUNTIME = [
    "heads", "length", "first", "per_row", "segments", "segment", "window", "angle_step", "row_b", "row_h"
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def window_bwd_dq(
    q, k, v, g, dq, inv_den_ptr, delta_ptr, h, table, heads, length, first, per_row, segments, segment,
    window, angle_step, row_b, row_h, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr,
    F: gl.constexpr, CAUSAL: gl.constexpr, LEAVES: gl.constexpr, HAS_STATE: gl.constexpr,
    STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2

    head, key_head, entry, batch, _, begin, end = locate_segment(
        gl.program_id(0), table, heads, first, per_row, length, segment, GROUP
    )
    chunks = (end - begin + CHUNK - 1) // CHUNK
    block = begin // window
    block_begin = block * window
    enters = 0 if CAUSAL else window

    k_tiles = alloc_tiles(STAGES, CHUNK, F)
    v_tiles = alloc_tiles(STAGES, CHUNK, F)
    g_tiles = alloc_tiles(STAGES, CHUNK, F)
    q_tiles = alloc_tiles(1, CHUNK, F)
    k_sin_smem = alloc_smem(CHUNK, F)
    s_cos_smem = alloc_smem(F, F)
    s_sin_smem = alloc_smem(F, F)
    z_cos_smem = alloc_partials(F)
    z_sin_smem = alloc_partials(F)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(STAGES)
    bar_q = alloc_barriers(1)
    if LEAVES:
        k_last_tiles = alloc_tiles(1, CHUNK, F)
        v_last_tiles = alloc_tiles(1, CHUNK, F)
        l_sin_smem = alloc_smem(CHUNK, F)
        bar_last = alloc_barriers(1)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at = begin + i * CHUNK
            mbarrier.expect(bars.index(i), 3 * TILE_BYTES)
            tma_load(k, k_tiles.index(i), bars.index(i), batch, at + enters, key_head)
            tma_load(v, v_tiles.index(i), bars.index(i), batch, at + enters, key_head)
            tma_load(g, g_tiles.index(i), bars.index(i), batch, at, head)
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
        s_cos, s_sin, z_cos, z_sin = zero_state(F, WARPS)

    k_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    d_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(OUT)))
    i = gl.arange(0, CHUNK, layout=row_slice(SCORES))
    j = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    leaving_shift = 16 * (i[:, None] - j[None, :] + 1)
    entering_shift = leaving_shift if CAUSAL else leaving_shift - 16
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    zero_cols = gl.zeros([CHUNK, PARTIALS], gl.float32, dot_operand(OUT))
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    for t in range(chunks):
        stage = t % STAGES
        token = begin + t * CHUNK
        zero = opaque_zero(t)
        k_cos = as_matrix(k_tiles.index(stage))
        k_sin = k_sin_smem.index(zero)
        s_cos_tile = s_cos_smem.index(zero)
        s_sin_tile = s_sin_smem.index(zero)
        z_cos_tile = z_cos_smem.index(zero)
        z_sin_tile = z_sin_smem.index(zero)
        selector = selector_smem.index(zero)
        delta = gl.load(delta_ptr + vectors + token + i, mask=token + i < length, other=0.0)
        delta_d = gl.load(delta_ptr + vectors + token + d_rows, mask=token + d_rows < length, other=0.0)
        inv_den = gl.load(inv_den_ptr + vectors + token + y_rows, mask=token + y_rows < length, other=0.0)
        s_cos_tile.store(s_cos.to(gl.bfloat16))
        s_sin_tile.store(s_sin.to(gl.bfloat16))
        z_cos_tile.store(z_cos.to(gl.bfloat16))
        z_sin_tile.store(z_sin.to(gl.bfloat16))
        cos, sin = phases(token - block_begin + k_rows, angle_step)
        # dq of the chunk before has left the tile that q comes to.
        tma.store_wait(0)
        sync()
        mbarrier.expect(bar_q.index(0), TILE_BYTES)
        tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token, head)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_g = as_matrix(g_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        x = k_cos.load(COALESCED)
        if CAUSAL:
            k_cos.store(relu_phase(x, cos))
            k_sin.store(relu_phase(x, sin))
        else:
            k_cos.store(minus_relu_phase(x, sin))
            k_sin.store(relu_phase(x, cos))
        if LEAVES:
            mbarrier.wait(bar_last.index(0), t & 1)
            l_cos = as_matrix(k_last_tiles.index(zero))
            l_sin = l_sin_smem.index(zero)
            tile_w = as_matrix(v_last_tiles.index(zero))
            x = l_cos.load(COALESCED)
            l_cos.store(minus_relu_phase(x, sin))
            l_sin.store(relu_phase(x, cos))
        fence_async_shared()
        a = warpgroup_mma(tile_g, tile_v.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        if LEAVES:
            a_last = warpgroup_mma(tile_g, tile_w.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        s_cos_next = warpgroup_mma(k_cos.permute((1, 0)), tile_v, s_cos, is_async=True)
        z_cos_next = warpgroup_mma(k_cos.permute((1, 0)), selector, z_cos, is_async=True)
        s_sin_next = warpgroup_mma(k_sin.permute((1, 0)), tile_v, s_sin, is_async=True)
        z_sin_next = warpgroup_mma(k_sin.permute((1, 0)), selector, z_sin, is_async=True)
        if LEAVES:
            s_cos_next, s_sin_next, z_cos_next, z_sin_next = add_to_state(
                l_cos, l_sin, tile_w, selector, s_cos_next, s_sin_next, z_cos_next, z_sin_next, True
            )
            a, a_last = warpgroup_mma_wait(num_outstanding=8, deps=[a, a_last])
            a_last = gl.convert_layout(tril(a_last + delta[:, None], leaving_shift), dot_operand(OUT))
        else:
            a = warpgroup_mma_wait(num_outstanding=4, deps=[a])
        a = gl.convert_layout(tril(a + delta[:, None], entering_shift), dot_operand(OUT))
        delta_cols = (delta_d[:, None] + zero_cols).to(gl.bfloat16)
        cos_y, sin_y = phases(token - block_begin + y_rows, angle_step)
        x = warpgroup_mma(tile_g, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
        x = warpgroup_mma(delta_cols, z_cos_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(a, k_cos, x, is_async=True)
        if LEAVES:
            x = warpgroup_mma(a_last, l_cos, x, is_async=True)
        x, s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[x, s_cos_next, s_sin_next, z_cos_next, z_sin_next]
        )
        x = x * (cos_y / sin_y)[:, None]
        x = warpgroup_mma(tile_g, s_sin_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(delta_cols, z_sin_tile.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(a, k_sin, x, is_async=True)
        if LEAVES:
            x = warpgroup_mma(a_last, l_sin, x, is_async=True)
            x, a, a_last, delta_cols = warpgroup_mma_wait(num_outstanding=0, deps=[x, a, a_last, delta_cols])
        else:
            x, a, delta_cols = warpgroup_mma_wait(num_outstanding=0, deps=[x, a, delta_cols])
        y = x * (sin_y * inv_den)[:, None]
        mbarrier.wait(bar_q.index(0), t & 1)
        tile_y = as_matrix(q_tiles.index(zero))
        y = where_positive(y, tile_y.load(OUT))
        sync()
        tile_y.store(y)
        fence_async_shared()
        sync()
        tma_store(dq, q_tiles.index(0), batch, token, head)
        if LEAVES:
            if t + 1 < chunks:
                tma_load_pair(
                    k, v, k_last_tiles.index(0), v_last_tiles.index(0), bar_last.index(0), batch,
                    token + CHUNK - window, key_head,
                )  # fmt: skip
        if t + STAGES < chunks:
            at = token + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), 3 * TILE_BYTES)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, at + enters, key_head)
            tma_load(v, v_tiles.index(stage), bars.index(stage), batch, at + enters, key_head)
            tma_load(g, g_tiles.index(stage), bars.index(stage), batch, at, head)
    tma.store_wait(0)
