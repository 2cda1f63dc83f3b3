"""Windows of two to four tiles: the gradient of q (ring_tiles.py), with inv_den and delta, which dk and dv
need too. For each own tile, and each tile of keys it meets:

    A = c (g v^T + delta)      dq = inv_den (A k') where q > 0

dq is written over g in shared memory, of which a CTA takes 144 to 224 KiB.
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
from cosformer.ops.hopper.bf16x2 import where_positive
from cosformer.ops.hopper.ring_tiles import OWN, kept_phases, packed_weights, place_weights, weighed_packed
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
    scores, x_before, acc, grad, delta, v_next, k_now, weight, scratch, BUSY: gl.constexpr,
    LAST: gl.constexpr, MEND: gl.constexpr, OUT: gl.constexpr, COALESCED: gl.constexpr,
):  # fmt: skip
    """A round, as in ring_fwd.py."""
    scores = warpgroup_mma_wait(num_outstanding=BUSY, deps=[scores])
    ahead = scores
    if not LAST:
        zero = gl.zeros([OWN, CHUNK], gl.float32, mma_layout(OWN, CHUNK, 8))
        ahead = warpgroup_mma(grad, v_next.permute((1, 0)), zero, use_acc=False, is_async=True)
    x = gl.convert_layout(weighed_packed(scores + delta, weight, MEND), dot_operand(OUT))
    acc, x_before = warpgroup_mma_wait(num_outstanding=0 if LAST else 1, deps=[acc, x_before])
    if MEND:
        acc = mended(x, k_now, weight, acc, scratch, COALESCED, OUT)
    else:
        acc = warpgroup_mma(x, k_now, acc, is_async=True)
    return ahead, x, acc


@gluon.jit(do_not_specialize=RUNTIME)
def ring_bwd_dq(
    q, k, v, o, g, dq, den_ptr, inv_den_ptr, delta_ptr, spoilt_ptr, table, heads, length, tiles, strips,
    strip, eps, row_b, row_h, GROUP: gl.constexpr, F: gl.constexpr, CAUSAL: gl.constexpr,
    BEHIND: gl.constexpr, AHEAD: gl.constexpr, MEND: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = mma_layout(OWN, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(OWN, F, WARPS)
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
    g_tiles = alloc_tiles(STAGES, OWN, F)
    q_tiles = alloc_tiles(1, OWN, F)
    o_tiles = alloc_tiles(1, OWN, F)
    bars = alloc_barriers(R)
    bars_g = alloc_barriers(STAGES)
    bar_q = alloc_barriers(1)
    bar_o = alloc_barriers(1)
    token = first * OWN
    mbarrier.expect(bar_o.index(0), 2 * TILE_BYTES)
    tma_load(o, o_tiles.index(0), bar_o.index(0), batch, token, head)
    for n in gl.static_range(STAGES):
        if n < count:
            mbarrier.expect(bars_g.index(n), 2 * TILE_BYTES)
            tma_load(g, g_tiles.index(n), bars_g.index(n), batch, token + n * OWN, head)
    for n in gl.static_range(R):
        mbarrier.expect(bars.index(n), 2 * TILE_BYTES)
        tma_load(k, k_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)
        tma_load(v, v_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, key_head)
    mbarrier.expect(bar_q.index(0), 2 * TILE_BYTES)
    tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token, head)

    cos_j, sin_j, step = kept_phases(window, SCORES)
    rows = gl.arange(0, OWN, layout=row_slice(dot_operand(SCORES)))
    zero_scores = gl.zeros([OWN, CHUNK], gl.float32, SCORES)
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    den = gl.load(den_ptr + vectors + token + rows, mask=token + rows < length, other=1.0)
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
        mbarrier.wait(bars_g.index(stage), (n // STAGES) & 1)
        mbarrier.wait(bar_o.index(0), n & 1)
        y = as_matrix(g_tiles.index(stage + zero)).load(dot_operand(SCORES))
        grad = y.to(gl.float32)
        has_grad = gl.sum(gl.abs(grad), axis=1) != 0.0
        delta = -gl.sum(grad * as_matrix(o_tiles.index(0)).load(dot_operand(SCORES)).to(gl.float32), axis=1)
        delta = gl.where(has_grad & (den >= eps), delta, 0.0)
        inv_den = gl.where(has_grad, 1.0 / gl.where(den < eps, eps, den), 0.0)
        gl.store(inv_den_ptr + vectors + token + rows, inv_den, mask=token + rows < length)
        gl.store(delta_ptr + vectors + token + rows, delta, mask=token + rows < length)
        ahead = token + OWN + rows
        den = gl.load(den_ptr + vectors + ahead, mask=ahead < length, other=1.0)
        fence_async_shared()
        sync()
        if n + 1 < count:
            mbarrier.expect(bar_o.index(0), 2 * TILE_BYTES)
            tma_load(o, o_tiles.index(0), bar_o.index(0), batch, token + OWN, head)
        of_row = gl.convert_layout(delta, row_slice(SCORES))[:, None]
        scratch = 0
        if MEND:
            scratch = scratches.index(zero)
        acc = gl.zeros([OWN, F], gl.float32, OUT)
        x = gl.zeros([OWN, CHUNK], gl.bfloat16, dot_operand(OUT))
        v_now = as_matrix(v_tiles.index(slot + zero))
        scores = warpgroup_mma(y, v_now.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        for p in gl.static_range(R):
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
            k_now = as_matrix(k_tiles.index(slot + zero))
            slot = gl.where(slot + 1 == R, 0, slot + 1)
            v_next = as_matrix(v_tiles.index(slot + zero))
            w = place_weights(cos_j, sin_j, step, p, BEHIND, CAUSAL and p >= BEHIND, False, SCORES)
            scores, x, acc = meet_keys(
                scores, x, acc, y, of_row, v_next, k_now, packed_weights(w), scratch, 0 if p == 0 else 1,
                p == R - 1, MEND, OUT, COALESCED,
            )  # fmt: skip
        acc, x, y = warpgroup_mma_wait(num_outstanding=0, deps=[acc, x, y])
        if MEND:
            acc = or_nan(acc)
        else:
            bad = not_finite(acc)
            gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        inv_den_y = gl.convert_layout(inv_den, row_slice(OUT))[:, None]
        result = gl.where(inv_den_y != 0.0, acc * inv_den_y, 0.0)
        mbarrier.wait(bar_q.index(0), n & 1)
        result = where_positive(result, as_matrix(q_tiles.index(0)).load(OUT))
        as_matrix(g_tiles.index(stage)).store(result)
        fence_async_shared()
        sync()
        tma_store(dq, g_tiles.index(stage), batch, token, head)
        if n + 1 < count:
            mbarrier.expect(bar_q.index(0), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(0), bar_q.index(0), batch, token + OWN, head)
        if n + STAGES < count:
            tma.store_wait(0)
            mbarrier.expect(bars_g.index(stage), 2 * TILE_BYTES)
            tma_load(g, g_tiles.index(stage), bars_g.index(stage), batch, token + STAGES * OWN, head)
    tma.store_wait(0)
