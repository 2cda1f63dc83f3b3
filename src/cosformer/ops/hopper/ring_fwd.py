"""Windows of two to four tiles, forward (ring_tiles.py). For each own tile, and each tile of keys it meets:

    P = c (q' k'^T)      n = P v,  d = P 1,  o = n / max(d, eps)

o is written over q in shared memory, of which a CTA takes 114 to 194 KiB.
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

from cosformer.ops.hopper.band_tiles import any_marked, locate_strip, mended, not_finite, or_nan, rectified
from cosformer.ops.hopper.partial_sums import PARTIALS, partials_layout, row_selector
from cosformer.ops.hopper.ring_tiles import OWN, kept_phases, place_weights, weighed_positive
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


@gluon.jit
def meet_keys(
    scores, x_before, acc, parts, y, k_next, v_now, selector, w, scratch, BUSY: gl.constexpr,
    LAST: gl.constexpr, MEND: gl.constexpr, OUT: gl.constexpr, COALESCED: gl.constexpr,
):  # fmt: skip
    """A round: `scores` and, behind them, BUSY products of the round before are on their way; when it ends,
    those of the next round, and the two of this one. x_before: what the products before it read."""
    ROW_PARTIALS: gl.constexpr = partials_layout(OWN, 8)
    scores = warpgroup_mma_wait(num_outstanding=BUSY, deps=[scores])
    ahead = scores
    if not LAST:
        zero = gl.zeros([OWN, CHUNK], gl.float32, mma_layout(OWN, CHUNK, 8))
        ahead = warpgroup_mma(y, k_next.permute((1, 0)), zero, use_acc=False, is_async=True)
    x = weighed_positive(scores, w, MEND)
    a = gl.convert_layout(x, dot_operand(OUT))
    b = gl.convert_layout(x, dot_operand(ROW_PARTIALS))
    acc, parts, x_before = warpgroup_mma_wait(num_outstanding=0 if LAST else 1, deps=[acc, parts, x_before])
    if MEND:
        acc = mended(a, v_now, gl.where(w > 0.0, 1.0, 0.0), acc, scratch, COALESCED, OUT)
    else:
        acc = warpgroup_mma(a, v_now, acc, is_async=True)
    parts = warpgroup_mma(b, selector, parts, is_async=True)
    return ahead, a, acc, parts


@gluon.jit(do_not_specialize=RUNTIME)
def ring_fwd(
    q, k, v, o, den_ptr, spoilt_ptr, table, heads, length, tiles, strips, strip, eps, row_b, row_h,
    GROUP: gl.constexpr, F: gl.constexpr, CAUSAL: gl.constexpr, BEHIND: gl.constexpr, AHEAD: gl.constexpr,
    MEND: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """spoilt [own tiles of all rows, heads]: 1 where a tile is not finite, else 0; with MEND it is read."""
    SCORES: gl.constexpr = mma_layout(OWN, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(OWN, F, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(OWN, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2
    R: gl.constexpr = BEHIND + 2 + AHEAD
    STAGES: gl.constexpr = 1 if MEND else 2

    head, key_head, window, entry, batch, first, count = locate_strip(
        gl.program_id(0), table, heads, tiles, strips, strip, GROUP
    )
    if MEND:
        if not any_marked(spoilt_ptr, batch * tiles + first, count, heads, entry, WARPS):
            return
        scratches = alloc_smem(CHUNK, F)
    oldest = first * OWN - BEHIND * CHUNK  # token
    k_tiles = alloc_tiles(R, CHUNK, F)
    v_tiles = alloc_tiles(R, CHUNK, F)
    q_tiles = alloc_tiles(STAGES, OWN, F)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(R)
    bars_q = alloc_barriers(STAGES)
    for n in gl.static_range(STAGES):
        if n < count:
            mbarrier.expect(bars_q.index(n), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(n), bars_q.index(n), batch, (first + n) * OWN, head)
    for n in gl.static_range(R):
        mbarrier.expect(bars.index(n), 2 * TILE_BYTES)
        tma_load(k, k_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)
        tma_load(v, v_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)

    cos_j, sin_j, step = kept_phases(window, SCORES)
    o_rows = gl.arange(0, OWN, layout=row_slice(OUT))
    zero_scores = gl.zeros([OWN, CHUNK], gl.float32, SCORES)
    den_ptr += batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    for n in gl.static_range(R - 2):
        mbarrier.wait(bars.index(n), 0)
        tile = as_matrix(k_tiles.index(n))
        tile.store(rectified(tile.load(COALESCED)))

    for n in range(count):
        token = (first + n) * OWN
        zero = opaque_zero(n)
        slot = 2 * n % R
        stage = n % STAGES
        for m in gl.static_range(2):
            newest = 2 * n + R - 2 + m
            mbarrier.wait(bars.index(newest % R), (newest // R) & 1)
            tile = as_matrix(k_tiles.index(newest % R))
            tile.store(rectified(tile.load(COALESCED)))
        mbarrier.wait(bars_q.index(stage), (n // STAGES) & 1)
        y = rectified(as_matrix(q_tiles.index(stage + zero)).load(dot_operand(SCORES)))
        fence_async_shared()
        sync()
        selector = selector_smem.index(zero)
        scratch = 0
        if MEND:
            scratch = scratches.index(zero)
        acc = gl.zeros([OWN, F], gl.float32, OUT)
        parts = gl.zeros([OWN, PARTIALS], gl.float32, ROW_PARTIALS)
        x = gl.zeros([OWN, CHUNK], gl.bfloat16, dot_operand(OUT))
        k_now = as_matrix(k_tiles.index(slot + zero))
        scores = warpgroup_mma(y, k_now.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        for p in gl.static_range(R):  # unrolled: across the end of a loop the assembler waits for products
            if p == 2:
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
                sync()
                if n + 1 < count:
                    for m in gl.static_range(2):
                        free = (2 * n + m) % R
                        at = oldest + (2 * n + m + R) * CHUNK
                        mbarrier.expect(bars.index(free), 2 * TILE_BYTES)
                        tma_load(k, k_tiles.index(free), bars.index(free), batch, at, key_head)
                        tma_load(v, v_tiles.index(free), bars.index(free), batch, at, key_head)
            v_now = as_matrix(v_tiles.index(slot + zero))
            slot = gl.where(slot + 1 == R, 0, slot + 1)
            k_next = as_matrix(k_tiles.index(slot + zero))
            w = place_weights(cos_j, sin_j, step, p, BEHIND, CAUSAL and p >= BEHIND, False, SCORES)
            scores, x, acc, parts = meet_keys(
                scores, x, acc, parts, y, k_next, v_now, selector, w, scratch, 0 if p == 0 else 2, p == R - 1,
                MEND, OUT, COALESCED,
            )  # fmt: skip
        acc, parts, x, y = warpgroup_mma_wait(num_outstanding=0, deps=[acc, parts, x, y])
        den = gl.convert_layout(gl.sum(parts, axis=1), row_slice(OUT))
        if MEND:
            acc = or_nan(acc)
        else:
            bad = not_finite(acc)
            gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        result = (acc * (1.0 / gl.maximum(den, eps))[:, None]).to(gl.bfloat16)
        as_matrix(q_tiles.index(stage)).store(result)
        fence_async_shared()
        sync()
        tma_store(o, q_tiles.index(stage), batch, token, head)
        gl.store(den_ptr + token + o_rows, den, mask=token + o_rows < length)
        if n + STAGES < count:
            # Into the tile that o was written from.
            tma.store_wait(0)
            mbarrier.expect(bars_q.index(stage), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(stage), bars_q.index(stage), batch, token + STAGES * OWN, head)
    tma.store_wait(0)
