"""Bidirectional attention of packed documents of at most one tile, by scores without states.

    P = phi(q) phi(k)^T,     o = P v / d,     d the row sums of P

with P zero between tokens of different documents: neighbours that fit into one tile share it (`count_tiles`
of tile_list.py). Zero times NaN would carry NaN from one of them to the others: a CTA that meets a non-finite
number makes the next launch (`rerun`) compute every document alone.

A CTA takes one head and loops over tiles, the next one loading meanwhile. One step does all of a tile, where
a state takes two. phi is written over its input and over tiles that are no longer needed (the sines of k over
q), and so are results. Few tiles are full, so results are not stored with TMA.

Bytes: 4 tensors, the memory-bound limit, though all rows of each tile are read. 50 KiB of shared memory and
four CTAs per SM; twice that and half as many where W = 128. Measured as in varlen_bidir_fwd.py, for the
quarter of all tokens that it leaves: 0.053 ms.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.bf16x2 import (
    column_range_bits,
    keep_bits,
    mask_rows,
    relu_phase,
    zero_rows,
)
from cosformer.ops.hopper.partial_sums import PARTIALS, divide_by_den, partials_layout, row_selector
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_tiles,
    as_matrix,
    coalesced,
    dot_operand,
    mma_layout,
    opaque_zero,
    phases,
    row_slice,
    rows_per_pass,
    store_rows,
    sync,
    tma_load,
)

RUNTIME = ["documents", "rerun", "angle_step", "eps", "tokens"]


@gluon.jit
def group_at(groups_ptr, i, count):
    """First token and length of a group; length 0 beyond the last one."""
    there = i < count
    token = gl.load(groups_ptr + 2 * i, mask=there, other=0)
    return token, gl.load(groups_ptr + 2 * i + 1, mask=there, other=0)


@gluon.jit
def document_phases(bounds_ptr, token, rows, length, angle_step):
    """cos and sin of the position of each row in its document."""
    begin = gl.load(bounds_ptr + 2 * (token + rows), mask=rows < length, other=token)
    return phases(token + rows - begin, angle_step)


@gluon.jit
def same_document_bits(bounds_ptr, token, length, LAYOUT: gl.constexpr):
    """A bit mask of pairs of tokens in the same document."""
    rows = gl.arange(0, CHUNK, layout=row_slice(LAYOUT))
    at = bounds_ptr + 2 * (token + rows)
    begin = gl.load(at, mask=rows < length, other=token)
    end = gl.load(at + 1, mask=rows < length, other=token)
    return column_range_bits(begin - token, end - token, LAYOUT)


@gluon.jit
def request_rerun(nonfinite, groups_ptr, documents, rerun):
    """Makes the next launch compute every document alone, if something was not finite."""
    if (rerun == 0) & (gl.sum(nonfinite) != 0.0):
        single_ptr = groups_ptr + 4 * documents + 2
        gl.store(single_ptr, gl.load(single_ptr + 1))


@gluon.jit
def load_qkv(q, k, v, q_tiles, k_tiles, v_tiles, bar, token, head):
    mbarrier.expect(bar, 3 * CHUNK * q_tiles.shape[3] * 2)
    tma_load(q, q_tiles, bar, 0, token, head)
    tma_load(k, k_tiles, bar, 0, token, head)
    tma_load(v, v_tiles, bar, 0, token, head)


@gluon.jit(do_not_specialize=RUNTIME)
def varlen_single_tile_fwd(
    q, k, v, o_ptr, den_ptr, groups_ptr, bounds_ptr, documents, rerun, angle_step, eps, tokens,
    HEADS: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """groups [2, documents + 1, 2]: first token and length of the documents in a tile, and in the last row
    the number of tiles; groups[1], used by the rerun, has each document alone. bounds [tokens, 2]: where the
    document of each token begins and ends."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(CHUNK, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    SAMPLED_ROWS: gl.constexpr = rows_per_pass(W, WARPS)
    head = gl.program_id(0) % HEADS
    i = gl.program_id(0) // HEADS
    stride = gl.num_programs(0) // HEADS
    groups_ptr += 2 * rerun * (documents + 1)
    count = gl.load(groups_ptr + 2 * documents)
    q_tiles = alloc_tiles(STAGES, CHUNK, W)
    k_tiles = alloc_tiles(STAGES, CHUNK, W)
    v_tiles = alloc_tiles(STAGES, CHUNK, W)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(STAGES)
    for n in gl.static_range(STAGES):
        if i + n * stride < count:
            at, _ = group_at(groups_ptr, i + n * stride, count)
            load_qkv(q, k, v, q_tiles.index(n), k_tiles.index(n), v_tiles.index(n), bars.index(n), at, head)
    q_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(SCORES)))
    k_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    o_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_parts = gl.zeros([CHUNK, PARTIALS], gl.float32, ROW_PARTIALS)
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    nonfinite = gl.zeros([SAMPLED_ROWS], gl.float32, row_slice(COALESCED))
    token, length = group_at(groups_ptr, i, count)
    iterations = gl.maximum(count - i + stride - 1, 0) // stride
    for t in range(iterations):
        zero = opaque_zero(t)
        stage = (t + zero) % STAGES
        tile_q = as_matrix(q_tiles.index(stage))
        tile_k = as_matrix(k_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        token_next, length_next = group_at(groups_ptr, i + (t + 1) * stride, count)
        at, _ = group_at(groups_ptr, i + (t + STAGES) * stride, count)
        keep = k_rows < length
        cos_q, sin_q = document_phases(bounds_ptr, token, q_rows, length, angle_step)
        cos_k, sin_k = document_phases(bounds_ptr, token, k_rows, length, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        x = tile_q.load(dot_operand(SCORES))
        q_cos = relu_phase(x, cos_q)
        q_sin = relu_phase(x, sin_q)
        if length < CHUNK:
            zero_rows(tile_v, keep, COALESCED)
        x = mask_rows(tile_k.load(COALESCED), keep)
        sync()
        tile_k.store(relu_phase(x, cos_k))
        tile_q.store(relu_phase(x, sin_k))
        fence_async_shared()
        p = warpgroup_mma(q_cos, tile_k.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(q_sin, tile_q.permute((1, 0)), p, is_async=True)
        same = same_document_bits(bounds_ptr, token, length, SCORES)
        p, q_cos, q_sin = warpgroup_mma_wait(num_outstanding=0, deps=[p, q_cos, q_sin])
        p = keep_bits(p, same)
        p_out = gl.convert_layout(p, dot_operand(OUT))
        p_parts = gl.convert_layout(p, dot_operand(ROW_PARTIALS))
        y = warpgroup_mma(p_out, tile_v, zero_out, use_acc=False, is_async=True)
        den_parts = warpgroup_mma(
            p_parts, selector_smem.index(zero), zero_parts, use_acc=False, is_async=True
        )
        y, den_parts, p_out, p_parts = warpgroup_mma_wait(
            num_outstanding=0, deps=[y, den_parts, p_out, p_parts]
        )
        y, den = divide_by_den(y, den_parts, eps, OUT)
        sync()
        tile_k.store(y)
        sync()
        # A non-finite v makes every row NaN (zero times it): a few rows suffice.
        nonfinite += gl.sum(tile_k.slice(0, SAMPLED_ROWS).load(COALESCED).to(gl.float32), axis=1) * 0.0
        store_rows(o_ptr + head * DV, HEADS * DV, token, length, tile_k, DV, COALESCED)
        gl.store(den_ptr + head.to(gl.int64) * tokens + token + o_rows, den, mask=o_rows < length)
        fence_async_shared()
        sync()
        if t + STAGES < iterations:
            load_qkv(
                q, k, v, q_tiles.index(stage), k_tiles.index(stage), v_tiles.index(stage), bars.index(stage),
                at, head,
            )  # fmt: skip
        token, length = token_next, length_next
    request_rerun(nonfinite, groups_ptr, documents, rerun)
