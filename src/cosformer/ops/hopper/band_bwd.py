"""Heads with a narrow window, all three gradients at once (band_tiles.py): causal windows of up to 64 tokens
and of up to 32 in both directions, one query head for each key head. A CTA goes through a strip of tiles of
keys. Each meets two tiles of queries, the first of which begins BEFORE tokens before it; for both of them:

    P = c (k' (inv_den q')^T)      dv = P g
    A = c (v g^T + delta)          dk = A (inv_den q') where k > 0
    B = c (g v^T + delta)          dq = inv_den (B k') where q > 0

B is A with queries as rows: one product more instead of a transposition through shared memory. A tile of
queries meets two tiles of keys: dq is carried from the first to the second. Of the keys before the strip only
the part in dq is computed. Every number is computed as in band_bwd_dq.py and band_bwd_dkv.py, to the bit, so
that these can mend what is not finite (but that inv_den q' decides where q > 0, which is zero for q below
1e-37).

q, k, v, o and g are read and dq, dk and dv written once: 8 tensors, where the two kernels move 12. The
weights of the two tiles share registers: where one is seen, the other is not, and its weights are held as
negative numbers. dk is stored from the tile of k. k comes in two stages, v and o in one, q and g in three
slots. 93 KiB of shared memory, two CTAs per SM.
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

from cosformer.ops.hopper.band_tiles import band_weights, locate_strip, rectified, weighed
from cosformer.ops.hopper.bf16x2 import relu_phase_or_zero, where_positive
from cosformer.ops.hopper.partial_sums import PARTIALS, selector_layout, weighted_selector
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
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

SLOTS = gl.constexpr(3)


@gluon.jit
def signed_weights(before, window, OWN_KEYS: gl.constexpr, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights of the first tile, and those of the second with a minus; no pair is seen in both."""
    first = band_weights(before, window, OWN_KEYS, CAUSAL, LAYOUT)
    if OWN_KEYS:
        second = band_weights(before - CHUNK, window, OWN_KEYS, CAUSAL, LAYOUT)
    else:
        second = band_weights(before + CHUNK, window, OWN_KEYS, CAUSAL, LAYOUT)
    return gl.inline_asm_elementwise(
        "sub.rn.bf16x2 $0, $1, $2;", "=r,r,r", [first, second], dtype=gl.bfloat16, is_pure=False, pack=2
    )


@gluon.jit
def of_first(weight):
    """max(weight, 0). Not pure: the compiler would hold it in registers of its own."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 zero; mov.b32 zero, 0; max.bf16x2 $0, $1, zero; }",
        "=r,r", [weight], dtype=gl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def of_second(weight):
    """max(-weight, 0)."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 zero, y; mov.b32 zero, 0; neg.bf16x2 y, $1; max.bf16x2 $0, y, zero; }",
        "=r,r", [weight], dtype=gl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def take_queries(
    tile_q, tile_g, tile_o, den, eps, inv_den_smem, delta_smem, selector, SCORES: gl.constexpr,
    COALESCED: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """inv_den and delta of a tile of queries, which also go to shared memory; inv_den q' over q."""
    inv_den, delta = inv_den_and_delta(tile_g, tile_o, den, eps, dot_operand(SCORES))
    inv_den_smem.store(inv_den)
    delta_smem.store(delta)
    sync()
    tile_q.store(relu_phase_or_zero(tile_q.load(COALESCED), inv_den_smem.load(row_slice(COALESCED))))
    weighted_selector(delta_smem.load(row_slice(selector_layout(WARPS))), selector, WARPS)
    return inv_den, delta


@gluon.jit
def rectify(tile, COALESCED: gl.constexpr):
    tile.store(rectified(tile.load(COALESCED)))


@gluon.jit
def part_of_dq(b, delta_smem, weight, SCORES: gl.constexpr, OUT: gl.constexpr):
    """c (g v^T + delta), as an operand."""
    of_row = delta_smem.load(row_slice(SCORES))[:, None]
    return gl.convert_layout(weighed(b + of_row, weight), dot_operand(OUT))


@gluon.jit
def finished_dq(acc, tile_q, inv_den_smem, OUT: gl.constexpr):
    inv_den = inv_den_smem.load(row_slice(OUT))[:, None]
    return where_positive(gl.where(inv_den != 0.0, acc * inv_den, 0.0), tile_q.load(OUT))


@gluon.jit
def nan_of_rows(x):
    """A number for each row: zero if all of it is finite, else NaN."""
    return gl.sum(x * 0.0, axis=1)


RUNTIME = ["heads", "length", "tiles", "strips", "strip", "eps", "row_b", "row_h"]


@gluon.jit(do_not_specialize=RUNTIME)
def band_bwd(
    q, k, v, o, g, dq, dk, dv, den_ptr, inv_den_ptr, delta_ptr, spoilt_ptr, table, heads, length, tiles,
    strips, strip, eps, row_b, row_h, F: gl.constexpr, CAUSAL: gl.constexpr, BEFORE: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """inv_den and delta are written too, for what mends; spoilt [tiles of all rows, heads]: 1 where dk, dv or
    dq of a tile, which begins BEFORE tokens before it, is not finite, else 0."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, F, WARPS)
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    TILE_BYTES: gl.constexpr = CHUNK * F * 2
    VECTORS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

    head, _, window, entry, batch, first, count = locate_strip(
        gl.program_id(0), table, heads, tiles, strips, strip, 1
    )
    # Tiles are counted from `oldest` of queries, and from the one before the strip of keys.
    oldest, before = first * CHUNK - BEFORE, (first - 1) * CHUNK
    # Behind a row's last tile of keys, the queries that lie BEFORE have no strip of their own.
    ends = BEFORE > 0 and first + count == tiles
    q_tiles = alloc_tiles(SLOTS, CHUNK, F)
    g_tiles = alloc_tiles(SLOTS, CHUNK, F)
    k_tiles = alloc_tiles(2, CHUNK, F)
    v_tiles = alloc_tiles(1, CHUNK, F)
    o_tiles = alloc_tiles(1, CHUNK, F)
    out_tiles = alloc_tiles(1, CHUNK, F)
    selectors = gl.allocate_shared_memory(
        gl.bfloat16, [2, CHUNK, PARTIALS], gl.NVMMASharedLayout(PARTIALS * 2, 16, rank=2)
    )
    inv_dens = gl.allocate_shared_memory(gl.float32, [2, CHUNK], VECTORS)
    deltas = gl.allocate_shared_memory(gl.float32, [2, CHUNK], VECTORS)
    bars = alloc_barriers(SLOTS)
    bars_k = alloc_barriers(2)
    bar_v = alloc_barriers(1)
    bar_o = alloc_barriers(1)
    mbarrier.expect(bar_o.index(0), TILE_BYTES)
    tma_load(o, o_tiles.index(0), bar_o.index(0), batch, oldest, head)
    for i in gl.static_range(SLOTS):
        if i <= count:
            mbarrier.expect(bars.index(i), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(i), bars.index(i), batch, oldest + i * CHUNK, head)
            tma_load(g, g_tiles.index(i), bars.index(i), batch, oldest + i * CHUNK, head)
    for i in gl.static_range(2):
        mbarrier.expect(bars_k.index(i), TILE_BYTES)
        tma_load(k, k_tiles.index(i), bars_k.index(i), batch, before + i * CHUNK, head)
    mbarrier.expect(bar_v.index(0), TILE_BYTES)
    tma_load(v, v_tiles.index(0), bar_v.index(0), batch, before, head)

    w = signed_weights(BEFORE, window, True, CAUSAL, SCORES)
    u = signed_weights(-BEFORE, window, False, CAUSAL, SCORES)
    rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(SCORES)))
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, F], gl.float32, OUT)
    ones = gl.full([CHUNK, PARTIALS], 1.0, gl.float32, dot_operand(SCORES)).to(gl.bfloat16)
    vectors = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    den_ptr += vectors
    inv_den_ptr += vectors
    delta_ptr += vectors
    at = oldest + rows
    den = gl.load(den_ptr + at, mask=(at >= 0) & (at < length), other=1.0)
    mbarrier.wait(bars.index(0), 0)
    mbarrier.wait(bar_o.index(0), 0)
    inv_den, delta = take_queries(
        as_matrix(q_tiles.index(0)), as_matrix(g_tiles.index(0)), as_matrix(o_tiles.index(0)), den, eps,
        inv_dens.index(0), deltas.index(0), selectors.index(0), SCORES, COALESCED, WARPS,
    )  # fmt: skip
    gl.store(inv_den_ptr + at, inv_den, mask=(at >= 0) & (at < length))
    gl.store(delta_ptr + at, delta, mask=(at >= 0) & (at < length))
    at += CHUNK
    den = gl.load(den_ptr + at, mask=at < length, other=1.0)
    # The keys before the strip: their part in dq of its first tile.
    mbarrier.wait(bars_k.index(0), 0)
    rectify(as_matrix(k_tiles.index(0)), COALESCED)
    mbarrier.wait(bar_v.index(0), 0)
    fence_async_shared()
    sync()
    mbarrier.expect(bar_o.index(0), TILE_BYTES)
    tma_load(o, o_tiles.index(0), bar_o.index(0), batch, oldest + CHUNK, head)
    zero = opaque_zero(first)
    tile_v = as_matrix(v_tiles.index(zero))
    b = warpgroup_mma(
        as_matrix(g_tiles.index(zero)), tile_v.permute((1, 0)), zero_scores, use_acc=False, is_async=True
    )
    b = warpgroup_mma_wait(num_outstanding=0, deps=[b])
    sync()
    mbarrier.expect(bar_v.index(0), TILE_BYTES)
    tma_load(v, v_tiles.index(0), bar_v.index(0), batch, before + CHUNK, head)
    y = part_of_dq(b, deltas.index(0), of_second(u), SCORES, OUT)
    sum_q = warpgroup_mma(y, as_matrix(k_tiles.index(zero)), zero_out, use_acc=False, is_async=True)
    sum_q, y = warpgroup_mma_wait(num_outstanding=0, deps=[sum_q, y])

    for n in range(count):
        token = (first + n) * CHUNK
        zero = opaque_zero(n)
        m = n + 1  # of the own tile of keys, and of the second tile of queries
        slot = m % SLOTS
        mbarrier.wait(bars.index(slot), (m // SLOTS) & 1)
        mbarrier.wait(bar_o.index(0), m & 1)
        inv_den, delta = take_queries(
            as_matrix(q_tiles.index(slot)), as_matrix(g_tiles.index(slot)), as_matrix(o_tiles.index(0)), den,
            eps, inv_dens.index(m % 2), deltas.index(m % 2), selectors.index(m % 2), SCORES, COALESCED, WARPS,
        )  # fmt: skip
        own = (at < length) & (m < count or ends)
        gl.store(inv_den_ptr + at, inv_den, mask=own)
        gl.store(delta_ptr + at, delta, mask=own)
        at += CHUNK
        den = gl.load(den_ptr + at, mask=at < length, other=1.0)
        mbarrier.wait(bars_k.index(m % 2), (m // 2) & 1)
        rectify(as_matrix(k_tiles.index(m % 2)), COALESCED)
        fence_async_shared()
        sync()
        if m < count:
            mbarrier.expect(bar_o.index(0), TILE_BYTES)
            tma_load(o, o_tiles.index(0), bar_o.index(0), batch, oldest + (m + 1) * CHUNK, head)

        tile_k = as_matrix(k_tiles.index(m % 2 + zero))
        q_0 = as_matrix(q_tiles.index(n % SLOTS + zero))
        g_0 = as_matrix(g_tiles.index(n % SLOTS + zero))
        s_0 = selectors.index(n % 2 + zero)
        q_1 = as_matrix(q_tiles.index(m % SLOTS + zero))
        g_1 = as_matrix(g_tiles.index(m % SLOTS + zero))
        s_1 = selectors.index(m % 2 + zero)
        p = warpgroup_mma(tile_k, q_0.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
        x = gl.convert_layout(weighed(p, of_first(w)), dot_operand(OUT))
        p = warpgroup_mma(tile_k, q_1.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        acc = warpgroup_mma(x, g_0, zero_out, use_acc=False, is_async=True)
        p, acc, x = warpgroup_mma_wait(num_outstanding=0, deps=[p, acc, x])
        x = gl.convert_layout(weighed(p, of_second(w)), dot_operand(OUT))
        mbarrier.wait(bar_v.index(0), m & 1)
        tile_v = as_matrix(v_tiles.index(zero))
        acc = warpgroup_mma(x, g_1, acc, is_async=True)
        a = warpgroup_mma(tile_v, g_0.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        a = warpgroup_mma(ones, s_0.permute((1, 0)), a, is_async=True)
        a, acc, x = warpgroup_mma_wait(num_outstanding=0, deps=[a, acc, x])
        bad_rows = nan_of_rows(acc)
        tma.store_wait(0)
        sync()
        if m < count:  # into the tile that dk was stored from
            mbarrier.expect(bars_k.index(n % 2), TILE_BYTES)
            tma_load(k, k_tiles.index(n % 2), bars_k.index(n % 2), batch, token + CHUNK, head)
        as_matrix(out_tiles.index(0)).store(acc.to(gl.bfloat16))
        fence_async_shared()
        sync()
        tma_store(dv, out_tiles.index(0), batch, token, head)

        x = gl.convert_layout(weighed(a, of_first(w)), dot_operand(OUT))
        b = warpgroup_mma(g_0, tile_v.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        acc = warpgroup_mma(x, q_0, zero_out, use_acc=False, is_async=True)
        b, acc, x = warpgroup_mma_wait(num_outstanding=0, deps=[b, acc, x])
        y = part_of_dq(b, deltas.index(n % 2), of_first(u), SCORES, OUT)
        a = warpgroup_mma(tile_v, g_1.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        a = warpgroup_mma(ones, s_1.permute((1, 0)), a, is_async=True)
        sum_q = warpgroup_mma(y, tile_k, sum_q, is_async=True)
        a, sum_q, y = warpgroup_mma_wait(num_outstanding=0, deps=[a, sum_q, y])
        x = gl.convert_layout(weighed(a, of_second(w)), dot_operand(OUT))
        b = warpgroup_mma(g_1, tile_v.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        acc = warpgroup_mma(x, q_1, acc, is_async=True)
        bad_rows += nan_of_rows(sum_q)
        finished = finished_dq(sum_q, q_0, inv_dens.index(n % 2), OUT)
        b, acc, x = warpgroup_mma_wait(num_outstanding=0, deps=[b, acc, x])
        y = part_of_dq(b, deltas.index(m % 2), of_second(u), SCORES, OUT)
        sum_q = warpgroup_mma(y, tile_k, zero_out, use_acc=False, is_async=True)
        bad_rows += nan_of_rows(acc)
        bad = gl.where(gl.sum(bad_rows, axis=0) != 0.0, 1, 0)
        gl.store(spoilt_ptr + (batch * tiles + first + n) * heads + entry, bad)
        result = where_positive(acc, tile_k.load(OUT))
        sum_q, y = warpgroup_mma_wait(num_outstanding=0, deps=[sum_q, y])
        tma.store_wait(0)
        sync()
        as_matrix(k_tiles.index(m % 2)).store(result)
        as_matrix(out_tiles.index(0)).store(finished)
        fence_async_shared()
        sync()
        tma_store(dk, k_tiles.index(m % 2), batch, token, head)
        if BEFORE > 0:  # in halves: no store may begin before the row does
            if token > 0:
                tma_store(dq, out_tiles.index(0).slice(0, BEFORE, dim=1), batch, token - BEFORE, head)
            tma_store(dq, out_tiles.index(0).slice(BEFORE, BEFORE, dim=1), batch, token, head)
        else:
            tma_store(dq, out_tiles.index(0), batch, token, head)
        if m < count:
            mbarrier.expect(bar_v.index(0), TILE_BYTES)
            tma_load(v, v_tiles.index(0), bar_v.index(0), batch, token + CHUNK, head)
        if n + SLOTS <= count:
            free = n % SLOTS
            later = oldest + (n + SLOTS) * CHUNK
            mbarrier.expect(bars.index(free), 2 * TILE_BYTES)
            tma_load(q, q_tiles.index(free), bars.index(free), batch, later, head)
            tma_load(g, g_tiles.index(free), bars.index(free), batch, later, head)
    if BEFORE > 0:
        if ends:
            bad = gl.where(gl.sum(nan_of_rows(sum_q), axis=0) != 0.0, 1, 0)
            gl.store(spoilt_ptr + (batch * tiles + tiles - 1) * heads + entry, bad, mask=bad != 0)
            last = as_matrix(q_tiles.index(count % SLOTS))
            finished = finished_dq(sum_q, last, inv_dens.index(count % 2), OUT)
            tma.store_wait(0)
            sync()
            as_matrix(out_tiles.index(0)).store(finished)
            fence_async_shared()
            sync()
            tma_store(dq, out_tiles.index(0).slice(0, BEFORE, dim=1), batch, tiles * CHUNK - BEFORE, head)
    tma.store_wait(0)
