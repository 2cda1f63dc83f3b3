"""Heads with a narrow window: the gradients of k and v (band_tiles.py), one query head for each key head. For
each tile of keys, and each tile of queries that sees it:

    P = c (k' (inv_den q')^T)      dv = P g
    A = c (v g^T + delta)          dk = A (inv_den q') where k > 0

inv_den q' is written over q. delta comes as a product with a selector, in two bfloat16 (partial_sums.py). 94
to 112 KiB of shared memory, two CTAs per SM.
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
from cosformer.ops.hopper.bf16x2 import relu_phase_or_zero, where_positive
from cosformer.ops.hopper.partial_sums import PARTIALS, selector_layout, weighted_selector
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
    sync,
    tma_load,
    tma_store,
)
from cosformer.ops.hopper.window_bwd_dkv import load_vector


@gluon.jit
def where_graded(x, inv_den_ptr, first, columns, length):
    """x, zero for queries that have no gradient: their q may be anything."""
    graded = load_vector(inv_den_ptr, first, columns, length) != 0.0
    return gl.where(graded[None, :], x.to(gl.float32), 0.0).to(gl.bfloat16)


RUNTIME = ["heads", "length", "tiles", "strips", "strip", "row_b", "row_h"]


@gluon.jit(do_not_specialize=RUNTIME)
def band_bwd_dkv(
    q, k, v, g, dk, dv, inv_den_ptr, delta_ptr, spoilt_ptr, table, heads, length, tiles, strips, strip,
    row_b, row_h, F: gl.constexpr, CAUSAL: gl.constexpr, BEFORE: gl.constexpr, OTHERS: gl.constexpr,
    MEND: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2
    SLOTS: gl.constexpr = OTHERS + 1

    head, _, window, entry, batch, first, count = locate_strip(
        gl.program_id(0), table, heads, tiles, strips, strip, 1
    )
    if MEND:
        if not any_marked(spoilt_ptr, batch * tiles + first, count, heads, entry, WARPS):
            return
        scratch = alloc_smem(CHUNK, F)
    oldest = first * CHUNK - BEFORE
    q_tiles = alloc_tiles(SLOTS, CHUNK, F)
    g_tiles = alloc_tiles(SLOTS, CHUNK, F)
    k_tiles = alloc_tiles(2, CHUNK, F)
    v_tiles = alloc_tiles(2, CHUNK, F)
    out_tiles = alloc_tiles(1, CHUNK, F)
    selectors = gl.allocate_shared_memory(
        gl.bfloat16, [SLOTS, CHUNK, PARTIALS], gl.NVMMASharedLayout(PARTIALS * 2, 16, rank=2)
    )
    bars = alloc_barriers(SLOTS)
    bars_k = alloc_barriers(2)
    for n in gl.static_range(2):
        if n < count:
            at = (first + n) * CHUNK
            mbarrier.expect(bars_k.index(n), 2 * TILE_BYTES)
            tma_load(k, k_tiles.index(n), bars_k.index(n), batch, at, head)
            tma_load(v, v_tiles.index(n), bars_k.index(n), batch, at, head)
    for n in gl.static_range(SLOTS):
        if n < count + OTHERS - 1:
            mbarrier.expect(bars.index(n), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, head)
            tma_load(g, g_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, head)

    w_0 = band_weights(BEFORE, window, True, CAUSAL, SCORES)
    w_1 = band_weights(BEFORE - CHUNK, window, True, CAUSAL, SCORES)
    if OTHERS == 3:
        w_2 = band_weights(BEFORE - 2 * CHUNK, window, True, CAUSAL, SCORES)
    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    delta_rows = gl.arange(0, CHUNK, layout=row_slice(selector_layout(WARPS)))
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    ones = gl.full([CHUNK, PARTIALS], 1.0, gl.float32, dot_operand(SCORES)).to(gl.bfloat16)
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    inv_den_ptr += vectors
    delta_ptr += vectors
    columns = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    for n in gl.static_range(OTHERS - 1):
        inv_den = load_vector(inv_den_ptr, oldest + n * CHUNK, q_rows, length)
        delta = load_vector(delta_ptr, oldest + n * CHUNK, delta_rows, length)
        weighted_selector(delta, selectors.index(n), WARPS)
        mbarrier.wait(bars.index(n), 0)
        tile = as_matrix(q_tiles.index(n))
        tile.store(relu_phase_or_zero(tile.load(COALESCED), inv_den))
    inv_den = load_vector(inv_den_ptr, oldest + (OTHERS - 1) * CHUNK, q_rows, length)
    delta = load_vector(delta_ptr, oldest + (OTHERS - 1) * CHUNK, delta_rows, length)

    for n in range(count):
        token = (first + n) * CHUNK
        zero = opaque_zero(n)
        newest = n + OTHERS - 1
        slot = newest % SLOTS
        stage = n % 2
        weighted_selector(delta, selectors.index(slot), WARPS)
        mbarrier.wait(bars.index(slot), (newest // SLOTS) & 1)
        tile = as_matrix(q_tiles.index(slot))
        tile.store(relu_phase_or_zero(tile.load(COALESCED), inv_den))
        inv_den = load_vector(inv_den_ptr, oldest + (newest + 1) * CHUNK, q_rows, length)
        delta = load_vector(delta_ptr, oldest + (newest + 1) * CHUNK, delta_rows, length)
        mbarrier.wait(bars_k.index(stage), (n // 2) & 1)
        tile_k = as_matrix(k_tiles.index(stage + zero))
        tile_v = as_matrix(v_tiles.index(stage + zero))
        y = rectified(tile_k.load(dot_operand(SCORES)))
        fence_async_shared()
        q_0 = as_matrix(q_tiles.index(n % SLOTS + zero))
        q_1 = as_matrix(q_tiles.index((n + 1) % SLOTS + zero))
        p_0 = warpgroup_mma(y, q_0.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p_1 = warpgroup_mma(y, q_1.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p_0, p_1 = warpgroup_mma_wait(num_outstanding=0, deps=[p_0, p_1])
        g_0 = as_matrix(g_tiles.index(n % SLOTS + zero))
        g_1 = as_matrix(g_tiles.index((n + 1) % SLOTS + zero))
        x_0 = weighed(p_0, w_0)
        if MEND:
            x_0 = where_graded(x_0, inv_den_ptr, oldest + (n + 0) * CHUNK, columns, length)
        x_0 = gl.convert_layout(x_0, dot_operand(OUT))
        x_1 = weighed(p_1, w_1)
        if MEND:
            x_1 = where_graded(x_1, inv_den_ptr, oldest + (n + 1) * CHUNK, columns, length)
        x_1 = gl.convert_layout(x_1, dot_operand(OUT))
        if OTHERS == 3:  # the third after the first two: all at once would spill registers
            q_2 = as_matrix(q_tiles.index((n + 2) % SLOTS + zero))
            g_2 = as_matrix(g_tiles.index((n + 2) % SLOTS + zero))
            p_2 = warpgroup_mma(y, q_2.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        if MEND:
            spare = scratch.index(zero)
            acc = mended(x_0, g_0, w_0, zero_out, spare, COALESCED, OUT)
            acc = mended(x_1, g_1, w_1, acc, spare, COALESCED, OUT)
        else:
            acc = warpgroup_mma(x_0, g_0, zero_out, use_acc=False, is_async=True)
            acc = warpgroup_mma(x_1, g_1, acc, is_async=True)
        if OTHERS == 3:
            p_2, acc, x_0, x_1, y = warpgroup_mma_wait(num_outstanding=0, deps=[p_2, acc, x_0, x_1, y])
            x_2 = weighed(p_2, w_2)
            if MEND:
                x_2 = where_graded(x_2, inv_den_ptr, oldest + (n + 2) * CHUNK, columns, length)
            x_2 = gl.convert_layout(x_2, dot_operand(OUT))
            if MEND:
                acc = mended(x_2, g_2, w_2, acc, spare, COALESCED, OUT)
            else:
                acc = warpgroup_mma(x_2, g_2, acc, is_async=True)
                acc, x_2 = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x_2])
        else:
            acc, x_0, x_1, y = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x_0, x_1, y])
        if MEND:
            acc = or_nan(acc)
        else:
            bad = not_finite(acc)
        tma.store_wait(0)
        sync()
        as_matrix(out_tiles.index(0)).store(acc.to(gl.bfloat16))
        a_0 = warpgroup_mma(tile_v, g_0.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        s_0 = selectors.index(n % SLOTS + zero)
        a_0 = warpgroup_mma(ones, s_0.permute((1, 0)), a_0, is_async=True)
        a_1 = warpgroup_mma(tile_v, g_1.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        s_1 = selectors.index((n + 1) % SLOTS + zero)
        a_1 = warpgroup_mma(ones, s_1.permute((1, 0)), a_1, is_async=True)
        fence_async_shared()
        sync()
        tma_store(dv, out_tiles.index(0), batch, token, head)
        a_0, a_1 = warpgroup_mma_wait(num_outstanding=0, deps=[a_0, a_1])
        x_0 = weighed(a_0, w_0)
        if MEND:
            x_0 = where_graded(x_0, inv_den_ptr, oldest + (n + 0) * CHUNK, columns, length)
        x_0 = gl.convert_layout(x_0, dot_operand(OUT))
        x_1 = weighed(a_1, w_1)
        if MEND:
            x_1 = where_graded(x_1, inv_den_ptr, oldest + (n + 1) * CHUNK, columns, length)
        x_1 = gl.convert_layout(x_1, dot_operand(OUT))
        if OTHERS == 3:
            a_2 = warpgroup_mma(tile_v, g_2.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
            s_2 = selectors.index((n + 2) % SLOTS + zero)
            a_2 = warpgroup_mma(ones, s_2.permute((1, 0)), a_2, is_async=True)
        if MEND:
            spare = scratch.index(zero)
            acc = mended(x_0, q_0, w_0, zero_out, spare, COALESCED, OUT)
            acc = mended(x_1, q_1, w_1, acc, spare, COALESCED, OUT)
        else:
            acc = warpgroup_mma(x_0, q_0, zero_out, use_acc=False, is_async=True)
            acc = warpgroup_mma(x_1, q_1, acc, is_async=True)
        if OTHERS == 3:
            a_2, acc, x_0, x_1 = warpgroup_mma_wait(num_outstanding=0, deps=[a_2, acc, x_0, x_1])
            x_2 = weighed(a_2, w_2)
            if MEND:
                x_2 = where_graded(x_2, inv_den_ptr, oldest + (n + 2) * CHUNK, columns, length)
            x_2 = gl.convert_layout(x_2, dot_operand(OUT))
            if MEND:
                acc = mended(x_2, q_2, w_2, acc, spare, COALESCED, OUT)
            else:
                acc = warpgroup_mma(x_2, q_2, acc, is_async=True)
                acc, x_2 = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x_2])
        else:
            acc, x_0, x_1 = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x_0, x_1])
        if MEND:
            acc = or_nan(acc)
        else:
            bad = bad | not_finite(acc)
            gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        result = where_positive(acc, tile_k.load(OUT))
        tma.store_wait(0)
        sync()
        as_matrix(out_tiles.index(0)).store(result)
        fence_async_shared()
        sync()
        tma_store(dk, out_tiles.index(0), batch, token, head)
        if n + 2 < count:
            mbarrier.expect(bars_k.index(stage), 2 * TILE_BYTES)
            tma_load(k, k_tiles.index(stage), bars_k.index(stage), batch, token + 2 * CHUNK, head)
            tma_load(v, v_tiles.index(stage), bars_k.index(stage), batch, token + 2 * CHUNK, head)
            at = oldest + (n + SLOTS) * CHUNK
            free = n % SLOTS
            mbarrier.expect(bars.index(free), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(free), bars.index(free), batch, at, head)
            tma_load(g, g_tiles.index(free), bars.index(free), batch, at, head)
    tma.store_wait(0)
