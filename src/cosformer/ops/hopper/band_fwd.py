"""Heads with a narrow window, forward (band_tiles.py). For each tile, and each tile of keys it meets:

    P = c (q' k'^T)      n = P v,  d = P 1,  o = n / max(d, eps)

There is no state. q passes through registers, k is rectified in place, v goes from TMA to the products. 74 to
90 KiB of shared memory, two CTAs per SM or three.
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
from cosformer.ops.hopper.partial_sums import PARTIALS, partials_layout, row_selector
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_smem,
    alloc_tiles,
    as_matrix,
    coalesced,
    dot_operand,
    mma_layout,
    opaque_zero,
    row_slice,
    sync,
    tma_load,
    tma_store,
)

RUNTIME = ["heads", "length", "tiles", "strips", "strip", "eps", "row_b", "row_h"]


@gluon.jit(do_not_specialize=RUNTIME)
def band_fwd(
    q, k, v, o, den_ptr, spoilt_ptr, table, heads, length, tiles, strips, strip, eps, row_b, row_h,
    GROUP: gl.constexpr, F: gl.constexpr, CAUSAL: gl.constexpr, BEFORE: gl.constexpr, OTHERS: gl.constexpr,
    MEND: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """spoilt [tiles of all rows, heads]: 1 where a tile is not finite, else 0; with MEND it is read."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(CHUNK, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2
    SLOTS: gl.constexpr = OTHERS + 1

    head, key_head, window, entry, batch, first, count = locate_strip(
        gl.program_id(0), table, heads, tiles, strips, strip, GROUP
    )
    if MEND:
        if not any_marked(spoilt_ptr, batch * tiles + first, count, heads, entry, WARPS):
            return
        scratch = alloc_smem(CHUNK, F)
    oldest = first * CHUNK - BEFORE  # token
    k_tiles = alloc_tiles(SLOTS, CHUNK, F)
    v_tiles = alloc_tiles(SLOTS, CHUNK, F)
    q_tiles = alloc_tiles(2, CHUNK, F)
    out_tiles = alloc_tiles(1, CHUNK, F)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(SLOTS)
    bars_q = alloc_barriers(2)
    for n in gl.static_range(2):
        if n < count:
            mbarrier.expect(bars_q.index(n), TILE_BYTES)
            tma_load(q, q_tiles.index(n), bars_q.index(n), batch, (first + n) * CHUNK, head)
    for n in gl.static_range(SLOTS):
        if n < count + OTHERS - 1:
            mbarrier.expect(bars.index(n), 2 * TILE_BYTES)
            tma_load(k, k_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)
            tma_load(v, v_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)

    w_0 = band_weights(BEFORE, window, False, CAUSAL, SCORES)
    w_1 = band_weights(BEFORE - CHUNK, window, False, CAUSAL, SCORES)
    if OTHERS == 3:
        w_2 = band_weights(BEFORE - 2 * CHUNK, window, False, CAUSAL, SCORES)
    o_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    zero_parts = gl.zeros([CHUNK, PARTIALS], gl.float32, ROW_PARTIALS)
    den_ptr += batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    for n in gl.static_range(OTHERS - 1):
        mbarrier.wait(bars.index(n), 0)
        tile = as_matrix(k_tiles.index(n))
        tile.store(rectified(tile.load(COALESCED)))

    for n in range(count):
        token = (first + n) * CHUNK
        zero = opaque_zero(n)
        newest = n + OTHERS - 1
        slot = newest % SLOTS
        mbarrier.wait(bars.index(slot), (newest // SLOTS) & 1)
        tile = as_matrix(k_tiles.index(slot))
        tile.store(rectified(tile.load(COALESCED)))
        stage = n % 2
        mbarrier.wait(bars_q.index(stage), (n // 2) & 1)
        y = rectified(as_matrix(q_tiles.index(stage)).load(dot_operand(SCORES)))
        fence_async_shared()
        k_0 = as_matrix(k_tiles.index(n % SLOTS + zero))
        k_1 = as_matrix(k_tiles.index((n + 1) % SLOTS + zero))
        p_0 = warpgroup_mma(y, k_0.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p_1 = warpgroup_mma(y, k_1.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        if OTHERS == 3:
            k_2 = as_matrix(k_tiles.index((n + 2) % SLOTS + zero))
            p_2 = warpgroup_mma(y, k_2.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
            p_0, p_1, p_2, y = warpgroup_mma_wait(num_outstanding=0, deps=[p_0, p_1, p_2, y])
        else:
            p_0, p_1, y = warpgroup_mma_wait(num_outstanding=0, deps=[p_0, p_1, y])
        selector = selector_smem.index(zero)
        v_0 = as_matrix(v_tiles.index(n % SLOTS + zero))
        v_1 = as_matrix(v_tiles.index((n + 1) % SLOTS + zero))
        x_0 = weighed(p_0, w_0)
        x_1 = weighed(p_1, w_1)
        a_0 = gl.convert_layout(x_0, dot_operand(OUT))
        a_1 = gl.convert_layout(x_1, dot_operand(OUT))
        b_0 = gl.convert_layout(x_0, dot_operand(ROW_PARTIALS))
        b_1 = gl.convert_layout(x_1, dot_operand(ROW_PARTIALS))
        parts = warpgroup_mma(b_0, selector, zero_parts, use_acc=False, is_async=True)
        parts = warpgroup_mma(b_1, selector, parts, is_async=True)
        if OTHERS == 3:
            v_2 = as_matrix(v_tiles.index((n + 2) % SLOTS + zero))
            x_2 = weighed(p_2, w_2)
            a_2 = gl.convert_layout(x_2, dot_operand(OUT))
            b_2 = gl.convert_layout(x_2, dot_operand(ROW_PARTIALS))
            parts = warpgroup_mma(b_2, selector, parts, is_async=True)
        if MEND:
            spare = scratch.index(zero)
            acc = mended(a_0, v_0, w_0, zero_out, spare, COALESCED, OUT)
            acc = mended(a_1, v_1, w_1, acc, spare, COALESCED, OUT)
            if OTHERS == 3:
                acc = mended(a_2, v_2, w_2, acc, spare, COALESCED, OUT)
        else:
            acc = warpgroup_mma(a_0, v_0, zero_out, use_acc=False, is_async=True)
            acc = warpgroup_mma(a_1, v_1, acc, is_async=True)
            if OTHERS == 3:
                acc = warpgroup_mma(a_2, v_2, acc, is_async=True)
        if OTHERS == 3:
            acc, parts, a_0, b_0, a_1, b_1, a_2, b_2 = warpgroup_mma_wait(
                num_outstanding=0, deps=[acc, parts, a_0, b_0, a_1, b_1, a_2, b_2]
            )
        else:
            acc, parts, a_0, b_0, a_1, b_1 = warpgroup_mma_wait(
                num_outstanding=0, deps=[acc, parts, a_0, b_0, a_1, b_1]
            )
        den = gl.convert_layout(gl.sum(parts, axis=1), row_slice(OUT))
        if MEND:
            acc = or_nan(acc)
        else:
            bad = not_finite(acc)
            gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        result = (acc * (1.0 / gl.maximum(den, eps))[:, None]).to(gl.bfloat16)
        tma.store_wait(0)
        sync()
        as_matrix(out_tiles.index(0)).store(result)
        fence_async_shared()
        sync()
        tma_store(o, out_tiles.index(0), batch, token, head)
        if n + 2 < count:
            mbarrier.expect(bars_q.index(stage), TILE_BYTES)
            tma_load(q, q_tiles.index(stage), bars_q.index(stage), batch, token + 2 * CHUNK, head)
            at = oldest + (n + SLOTS) * CHUNK
            free = n % SLOTS
            mbarrier.expect(bars.index(free), 2 * TILE_BYTES)
            tma_load(k, k_tiles.index(free), bars.index(free), batch, at, key_head)
            tma_load(v, v_tiles.index(free), bars.index(free), batch, at, key_head)
        gl.store(den_ptr + token + o_rows, den, mask=token + o_rows < length)
    tma.store_wait(0)
