"""Heads with a narrow window: the gradient of q (band_tiles.py), with inv_den and delta, which dk and dv need
too. For each tile, and each tile of keys it meets:

    A = c (g v^T + delta)      dq = inv_den (A k') where q > 0

88 to 104 KiB of shared memory, two CTAs per SM.
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

from cosformer.ops.hopper.band_tiles import (
    any_marked,
    band_weights,
    locate_strip,
    mended,
    not_finite,
    or_nan,
    rectified,
    weighed,
)
from cosformer.ops.hopper.bf16x2 import where_positive
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
    row_slice,
    sync,
    tma_load,
    tma_store,
)

RUNTIME = ["heads", "length", "tiles", "strips", "strip", "eps", "row_b", "row_h"]


@gluon.jit(do_not_specialize=RUNTIME)
def band_bwd_dq(
    q, k, v, o, g, dq, den_ptr, inv_den_ptr, delta_ptr, spoilt_ptr, table, heads, length, tiles, strips,
    strip, eps, row_b, row_h, GROUP: gl.constexpr, F: gl.constexpr, CAUSAL: gl.constexpr,
    BEFORE: gl.constexpr, OTHERS: gl.constexpr, MEND: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2
    SLOTS: gl.constexpr = OTHERS + 1

    head, key_head, window, entry, batch, first, count = locate_strip(
        gl.program_id(0), table, heads, tiles, strips, strip, GROUP
    )
    if MEND:
        # band_bwd.py may have found a tile with the one behind it, half of whose queries are this one's.
        marks = gl.minimum(count + 1, tiles - first)
        if not any_marked(spoilt_ptr, batch * tiles + first, marks, heads, entry, WARPS):
            return
        scratch = alloc_smem(CHUNK, F)
    oldest = first * CHUNK - BEFORE
    k_tiles = alloc_tiles(SLOTS, CHUNK, F)
    v_tiles = alloc_tiles(SLOTS, CHUNK, F)
    g_tiles = alloc_tiles(2, CHUNK, F)
    q_tiles = alloc_tiles(1, CHUNK, F)
    o_tiles = alloc_tiles(1, CHUNK, F)
    out_tiles = alloc_tiles(1, CHUNK, F)
    bars = alloc_barriers(SLOTS)
    bars_g = alloc_barriers(2)
    bar_q = alloc_barriers(1)
    bar_o = alloc_barriers(1)
    token = first * CHUNK
    mbarrier.expect(bar_o.index(0), TILE_BYTES)
    tma_load(o, o_tiles.index(0), bar_o.index(0), batch, token, head)
    mbarrier.expect(bar_q.index(0), TILE_BYTES)
    tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token, head)
    for n in gl.static_range(2):
        if n < count:
            mbarrier.expect(bars_g.index(n), TILE_BYTES)
            tma_load(g, g_tiles.index(n), bars_g.index(n), batch, token + n * CHUNK, head)
    for n in gl.static_range(SLOTS):
        if n < count + OTHERS - 1:
            mbarrier.expect(bars.index(n), 2 * TILE_BYTES)
            tma_load(k, k_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)
            tma_load(v, v_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)

    w_0 = band_weights(BEFORE, window, False, CAUSAL, SCORES)
    w_1 = band_weights(BEFORE - CHUNK, window, False, CAUSAL, SCORES)
    if OTHERS == 3:
        w_2 = band_weights(BEFORE - 2 * CHUNK, window, False, CAUSAL, SCORES)
    rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(SCORES)))
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    den = gl.load(den_ptr + vectors + token + rows, mask=token + rows < length, other=1.0)
    for n in gl.static_range(OTHERS - 1):
        mbarrier.wait(bars.index(n), 0)
        tile = as_matrix(k_tiles.index(n))
        tile.store(rectified(tile.load(COALESCED)))

    for n in range(count):
        token = (first + n) * CHUNK
        zero = opaque_zero(n)
        newest = n + OTHERS - 1
        slot = newest % SLOTS
        stage = n % 2
        mbarrier.wait(bars.index(slot), (newest // SLOTS) & 1)
        tile = as_matrix(k_tiles.index(slot))
        tile.store(rectified(tile.load(COALESCED)))
        mbarrier.wait(bars_g.index(stage), (n // 2) & 1)
        mbarrier.wait(bar_o.index(0), n & 1)
        tile_g = as_matrix(g_tiles.index(stage + zero))
        inv_den, delta = inv_den_and_delta(tile_g, as_matrix(o_tiles.index(0)), den, eps, dot_operand(SCORES))
        fence_async_shared()
        sync()
        if n + 1 < count:
            mbarrier.expect(bar_o.index(0), TILE_BYTES)
            tma_load(o, o_tiles.index(0), bar_o.index(0), batch, token + CHUNK, head)
        v_0 = as_matrix(v_tiles.index(n % SLOTS + zero))
        v_1 = as_matrix(v_tiles.index((n + 1) % SLOTS + zero))
        a_0 = warpgroup_mma(tile_g, v_0.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        a_1 = warpgroup_mma(tile_g, v_1.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        if OTHERS == 3:
            v_2 = as_matrix(v_tiles.index((n + 2) % SLOTS + zero))
            a_2 = warpgroup_mma(tile_g, v_2.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
            a_0, a_1, a_2 = warpgroup_mma_wait(num_outstanding=0, deps=[a_0, a_1, a_2])
        else:
            a_0, a_1 = warpgroup_mma_wait(num_outstanding=0, deps=[a_0, a_1])
        of_row = gl.convert_layout(delta, row_slice(SCORES))[:, None]
        x_0 = gl.convert_layout(weighed(a_0 + of_row, w_0), dot_operand(OUT))
        x_1 = gl.convert_layout(weighed(a_1 + of_row, w_1), dot_operand(OUT))
        k_0 = as_matrix(k_tiles.index(n % SLOTS + zero))
        k_1 = as_matrix(k_tiles.index((n + 1) % SLOTS + zero))
        if OTHERS == 3:
            k_2 = as_matrix(k_tiles.index((n + 2) % SLOTS + zero))
            x_2 = gl.convert_layout(weighed(a_2 + of_row, w_2), dot_operand(OUT))
        if MEND:
            spare = scratch.index(zero)
            acc = mended(x_0, k_0, w_0, zero_out, spare, COALESCED, OUT)
            acc = mended(x_1, k_1, w_1, acc, spare, COALESCED, OUT)
            if OTHERS == 3:
                acc = mended(x_2, k_2, w_2, acc, spare, COALESCED, OUT)
        else:
            acc = warpgroup_mma(x_0, k_0, zero_out, use_acc=False, is_async=True)
            acc = warpgroup_mma(x_1, k_1, acc, is_async=True)
            if OTHERS == 3:
                acc = warpgroup_mma(x_2, k_2, acc, is_async=True)
        if OTHERS == 3:
            acc, x_0, x_1, x_2 = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x_0, x_1, x_2])
        else:
            acc, x_0, x_1 = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x_0, x_1])
        if MEND:
            acc = or_nan(acc)
        else:
            bad = not_finite(acc)
            gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        inv_den_y = gl.convert_layout(inv_den, row_slice(OUT))[:, None]
        y = gl.where(inv_den_y != 0.0, acc * inv_den_y, 0.0)
        mbarrier.wait(bar_q.index(0), n & 1)
        y = where_positive(y, as_matrix(q_tiles.index(0)).load(OUT))
        tma.store_wait(0)
        sync()
        as_matrix(out_tiles.index(0)).store(y)
        fence_async_shared()
        sync()
        tma_store(dq, out_tiles.index(0), batch, token, head)
        if n + 1 < count:
            mbarrier.expect(bar_q.index(0), TILE_BYTES)
            tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token + CHUNK, head)
        if n + 2 < count:
            mbarrier.expect(bars_g.index(stage), TILE_BYTES)
            tma_load(g, g_tiles.index(stage), bars_g.index(stage), batch, token + 2 * CHUNK, head)
            at = oldest + (n + SLOTS) * CHUNK
            free = n % SLOTS
            mbarrier.expect(bars.index(free), 2 * TILE_BYTES)
            tma_load(k, k_tiles.index(free), bars.index(free), batch, at, key_head)
            tma_load(v, v_tiles.index(free), bars.index(free), batch, at, key_head)
        gl.store(inv_den_ptr + vectors + token + rows, inv_den, mask=token + rows < length)
        gl.store(delta_ptr + vectors + token + rows, delta, mask=token + rows < length)
        ahead = token + CHUNK + rows
        den = gl.load(den_ptr + vectors + ahead, mask=ahead < length, other=1.0)
    tma.store_wait(0)
