"""Windows of two to four tiles: the gradients of k and v (ring_tiles.py), one query head for each key head.
For each own tile of keys, and each tile of queries that sees it:

    P = c (k' (inv_den q')^T)      dv = P g
    A = c (v g^T + delta)          dk = A (inv_den q') where k > 0

inv_den q' is written over q, dk over k and dv over v in shared memory, of which a CTA takes 145 to 227 KiB.
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
from cosformer.ops.hopper.bf16x2 import relu_phase_or_zero, where_positive
from cosformer.ops.hopper.ring_tiles import OWN, kept_phases, packed_weights, place_weights, weighed_packed
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

RUNTIME = ["heads", "length", "tiles", "strips", "strip", "row_b", "row_h"]


@gluon.jit
def meet_queries(
    scores, x_before, before, acc, own_next, other_next, other_now, more, weight, graded, scratch,
    BUSY: gl.constexpr, LAST: gl.constexpr, MEND: gl.constexpr, OUT: gl.constexpr, COALESCED: gl.constexpr,
):  # fmt: skip
    """Half a round, for dv or dk, as a round in ring_fwd.py: what is on its way behind the scores, `before`,
    is the other half's sum. `more` is added to the scores."""
    scores = warpgroup_mma_wait(num_outstanding=BUSY, deps=[scores])
    ahead = scores
    if not LAST:
        zero = gl.zeros([OWN, CHUNK], gl.float32, mma_layout(OWN, CHUNK, 8))
        ahead = warpgroup_mma(own_next, other_next.permute((1, 0)), zero, use_acc=False, is_async=True)
    x = weighed_packed(scores + more, weight, MEND)
    if MEND:
        x = gl.where(graded, x.to(gl.float32), 0.0).to(gl.bfloat16)
    x = gl.convert_layout(x, dot_operand(OUT))
    before, x_before = warpgroup_mma_wait(num_outstanding=0 if LAST else 1, deps=[before, x_before])
    if MEND:
        acc = mended(x, other_now, weight, acc, scratch, COALESCED, OUT)
    else:
        acc = warpgroup_mma(x, other_now, acc, is_async=True)
    return ahead, x, before, acc


@gluon.jit(do_not_specialize=RUNTIME)
def ring_bwd_dkv(
    q, k, v, g, dk, dv, inv_den_ptr, delta_ptr, spoilt_ptr, table, heads, length, tiles, strips, strip,
    row_b, row_h, F: gl.constexpr, CAUSAL: gl.constexpr, BEHIND: gl.constexpr, AHEAD: gl.constexpr,
    MEND: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = mma_layout(OWN, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(OWN, F, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2
    R: gl.constexpr = BEHIND + 2 + AHEAD
    STAGES: gl.constexpr = 1 if MEND else 2

    head, _, window, entry, batch, first, count = locate_strip(
        gl.program_id(0), table, heads, tiles, strips, strip, 1
    )
    if MEND:
        if not any_marked(spoilt_ptr, batch * tiles + first, count, heads, entry, WARPS):
            return
        scratches = alloc_smem(CHUNK, F)
    oldest = first * OWN - BEHIND * CHUNK  # token
    q_tiles = alloc_tiles(R, CHUNK, F)
    g_tiles = alloc_tiles(R, CHUNK, F)
    k_tiles = alloc_tiles(STAGES, OWN, F)
    v_tiles = alloc_tiles(STAGES, OWN, F)
    deltas = gl.allocate_shared_memory(gl.float32, [R, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bars = alloc_barriers(R)
    bars_k = alloc_barriers(STAGES)
    for n in gl.static_range(STAGES):
        if n < count:
            at = (first + n) * OWN
            mbarrier.expect(bars_k.index(n), 4 * TILE_BYTES)
            tma_load(k, k_tiles.index(n), bars_k.index(n), batch, at, head)
            tma_load(v, v_tiles.index(n), bars_k.index(n), batch, at, head)
    for n in gl.static_range(R):
        mbarrier.expect(bars.index(n), 2 * TILE_BYTES)
        tma_load(q, q_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, head)
        tma_load(g, g_tiles.index(n), bars.index(n), batch, oldest + n * CHUNK, head)

    cos_j, sin_j, step = kept_phases(window, SCORES)
    VECTOR: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    delta_rows = gl.arange(0, CHUNK, layout=VECTOR)
    columns = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    zero_scores = gl.zeros([OWN, CHUNK], gl.float32, SCORES)
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    inv_den_ptr += vectors
    delta_ptr += vectors
    for n in gl.static_range(R - 2):
        inv_den = load_vector(inv_den_ptr, oldest + n * CHUNK, q_rows, length)
        deltas.index(n).store(load_vector(delta_ptr, oldest + n * CHUNK, delta_rows, length))
        mbarrier.wait(bars.index(n), 0)
        tile = as_matrix(q_tiles.index(n))
        tile.store(relu_phase_or_zero(tile.load(COALESCED), inv_den))

    for n in range(count):
        token = (first + n) * OWN
        zero = opaque_zero(n)
        slot = 2 * n % R
        stage = n % STAGES
        for m in gl.static_range(2):
            newest = 2 * n + R - 2 + m
            inv_den = load_vector(inv_den_ptr, oldest + newest * CHUNK, q_rows, length)
            deltas.index(newest % R).store(
                load_vector(delta_ptr, oldest + newest * CHUNK, delta_rows, length)
            )
            mbarrier.wait(bars.index(newest % R), (newest // R) & 1)
            tile = as_matrix(q_tiles.index(newest % R))
            tile.store(relu_phase_or_zero(tile.load(COALESCED), inv_den))
        mbarrier.wait(bars_k.index(stage), (n // STAGES) & 1)
        key = rectified(as_matrix(k_tiles.index(stage + zero)).load(dot_operand(SCORES)))
        value = as_matrix(v_tiles.index(stage + zero)).load(dot_operand(SCORES))
        fence_async_shared()
        sync()
        graded, scratch = 0, 0
        if MEND:
            scratch = scratches.index(zero)
        acc_k = gl.zeros([OWN, F], gl.float32, OUT)
        acc_v = gl.zeros([OWN, F], gl.float32, OUT)
        x = gl.zeros([OWN, CHUNK], gl.bfloat16, dot_operand(OUT))
        q_next = as_matrix(q_tiles.index(slot + zero))
        scores = warpgroup_mma(key, q_next.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        for p in gl.static_range(R):
            if p == 2:
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
                sync()
                if n + 1 < count:
                    for m in gl.static_range(2):
                        free = (2 * n + m) % R
                        at = oldest + (2 * n + m + R) * CHUNK
                        mbarrier.expect(bars.index(free), 2 * TILE_BYTES)
                        tma_load(q, q_tiles.index(free), bars.index(free), batch, at, head)
                        tma_load(g, g_tiles.index(free), bars.index(free), batch, at, head)
            w = place_weights(cos_j, sin_j, step, p, BEHIND, CAUSAL and p < 2, True, SCORES)
            weight = packed_weights(w)
            q_now = as_matrix(q_tiles.index(slot + zero))
            g_now = as_matrix(g_tiles.index(slot + zero))
            delta = deltas.index(slot).load(column_slice(SCORES))
            if MEND:
                at = oldest + (2 * n + p) * CHUNK
                graded = (load_vector(inv_den_ptr, at, columns, length) != 0.0)[None, :]
            slot = gl.where(slot + 1 == R, 0, slot + 1)
            q_next = as_matrix(q_tiles.index(slot + zero))
            scores, x, acc_k, acc_v = meet_queries(
                scores, x, acc_k, acc_v, value, g_now, g_now, 0.0, weight, graded, scratch,
                0 if p == 0 else 1, False, MEND, OUT, COALESCED,
            )  # fmt: skip
            scores, x, acc_v, acc_k = meet_queries(
                scores, x, acc_v, acc_k, key, q_next, q_now, delta[None, :], weight, graded, scratch, 1,
                p == R - 1, MEND, OUT, COALESCED,
            )  # fmt: skip
        acc_k, acc_v, x, key, value = warpgroup_mma_wait(
            num_outstanding=0, deps=[acc_k, acc_v, x, key, value]
        )
        if MEND:
            acc_k = or_nan(acc_k)
            acc_v = or_nan(acc_v)
        else:
            bad = not_finite(acc_k) | not_finite(acc_v)
            gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        k_tile = as_matrix(k_tiles.index(stage))
        result = where_positive(acc_k, k_tile.load(OUT))
        as_matrix(v_tiles.index(stage)).store(acc_v.to(gl.bfloat16))
        k_tile.store(result)
        fence_async_shared()
        sync()
        tma_store(dv, v_tiles.index(stage), batch, token, head)
        tma_store(dk, k_tiles.index(stage), batch, token, head)
        if n + STAGES < count:
            tma.store_wait(0)
            at = token + STAGES * OWN
            mbarrier.expect(bars_k.index(stage), 4 * TILE_BYTES)
            tma_load(k, k_tiles.index(stage), bars_k.index(stage), batch, at, head)
            tma_load(v, v_tiles.index(stage), bars_k.index(stage), batch, at, head)
    tma.store_wait(0)
