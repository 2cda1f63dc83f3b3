"""Bidirectional attention of packed documents that lie in one split: state and rows in one kernel.

A CTA takes one key head of one split of the tile list (tile_list.py) and goes from document to document. It
goes through the tiles of a document once for each phase:

    k, v -> S;  then, for each query head, q -> o = phi(q) S / d

The state is summed in registers, 64 (128) a thread. At the end of its phase it goes to shared memory in
bfloat16, where the next phase uses it; none goes through global memory. TMA loads run ahead across documents
and phases: a stage holds whatever its step reads. Documents that a split boundary cuts are done by
state_apply.py.

Bytes: 4 tensors, the memory-bound limit, though all rows of each tile are read. 70 KiB of shared memory and
three CTAs per SM (171 KiB and one where W = 128). Measured on an H200 with 16 heads and 1,000 documents of
65,536 tokens: 0.125 ms for those of more than one tile, which hold three quarters of all tokens.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from cosformer.ops.hopper.bf16x2 import relu_phase
from cosformer.ops.hopper.partial_sums import PARTIALS, divide_by_den, partials_layout, row_selector
from cosformer.ops.hopper.state import alloc_state, index_state, zero_state
from cosformer.ops.hopper.tile_access import tile_at, uncut_tiles
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
    phases,
    row_slice,
    store_tile,
    sync,
    write_out_tile,
)
from cosformer.ops.hopper.varlen_tiles import (
    RUNTIME,
    add_tile_to_state,
    load_first_steps,
    load_next_step,
    store_state_to_smem,
)


@gluon.jit
def compute_o(
    o, o_ptr, den_ptr, tile, out_tiles, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile, token, before, rest,
    head, angle_step, eps, HEADS: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(CHUNK, WARPS)
    q_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(OUT)))
    o_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    zero_parts = gl.zeros([CHUNK, PARTIALS], gl.float32, ROW_PARTIALS)
    cos, sin = phases(before + q_rows, angle_step)
    x = tile.load(dot_operand(OUT))
    q_cos = relu_phase(x, cos)
    q_sin = relu_phase(x, sin)
    acc = warpgroup_mma(q_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
    acc = warpgroup_mma(q_sin, s_sin_tile, acc, is_async=True)
    q_cos_z = gl.convert_layout(q_cos, dot_operand(ROW_PARTIALS))
    q_sin_z = gl.convert_layout(q_sin, dot_operand(ROW_PARTIALS))
    den_parts = warpgroup_mma(q_cos_z, z_cos_tile, zero_parts, use_acc=False, is_async=True)
    den_parts = warpgroup_mma(q_sin_z, z_sin_tile, den_parts, is_async=True)
    acc, den_parts, q_cos, q_sin = warpgroup_mma_wait(num_outstanding=0, deps=[acc, den_parts, q_cos, q_sin])
    result, den = divide_by_den(acc, den_parts, eps, OUT)
    write_out_tile(out_tiles, result)
    store_tile(o, o_ptr, out_tiles, 0, token, rest, head, HEADS, DV, coalesced(W, WARPS), True)
    gl.store(den_ptr + token + o_rows, den, mask=o_rows < rest)


@gluon.jit(do_not_specialize=RUNTIME)
def varlen_bidir_fwd(
    q, k, v, o, o_ptr, den_ptr, tile_list, splits, angle_step, eps, tokens, HEADS: gl.constexpr,
    GROUP: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: query heads."""
    KEY_HEADS: gl.constexpr = HEADS // GROUP
    pid = gl.program_id(0)
    key_head = pid % KEY_HEADS
    i, end = uncut_tiles(tile_list, pid // KEY_HEADS, splits)

    x_tiles = alloc_tiles(STAGES, CHUNK, W)
    y_tiles = alloc_tiles(STAGES, CHUNK, W)
    out_tiles = alloc_tiles(1, CHUNK, W)
    k_sin_smem = alloc_smem(CHUNK, W)
    state_smem = alloc_state(W)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(STAGES)
    load_tile, phase, at, before, rest, token, length = load_first_steps(
        i, end, tile_list, q, k, v, q, q, x_tiles, y_tiles, y_tiles, bars, key_head, GROUP, STAGES, False
    )
    step = 0
    while i < end:
        tiles = (length + CHUNK - 1) // CHUNK
        i += tiles
        token_next, _, length_next = tile_at(gl.minimum(i, end - 1), tile_list, 0, 0, 0, True)
        s_cos, s_sin, z_cos, z_sin = zero_state(W, WARPS)
        for t in range(tiles):
            stage = step % STAGES
            tile = as_matrix(x_tiles.index(stage))
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            zero = opaque_zero(t)
            s_cos, s_sin, z_cos, z_sin = add_tile_to_state(
                tile, as_matrix(y_tiles.index(stage)), tile, k_sin_smem.index(zero),
                selector_smem.index(zero), s_cos, s_sin, z_cos, z_sin, t * CHUNK, length - t * CHUNK,
                angle_step, W, WARPS,
            )  # fmt: skip
            sync()
            load_tile, phase, at, before, rest = load_next_step(
                load_tile, phase, at, before, rest, end, tile_list, q, k, v, q, q, x_tiles.index(stage),
                y_tiles.index(stage), y_tiles.index(stage), bars.index(stage), key_head, GROUP, False,
            )  # fmt: skip
            step += 1
        store_state_to_smem(s_cos, s_sin, z_cos, z_sin, state_smem)
        for t in range(tiles * GROUP):
            stage = step % STAGES
            zero = opaque_zero(t)
            head = key_head * GROUP + t // tiles
            tile_begin = t % tiles * CHUNK
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            compute_o(
                o, o_ptr, den_ptr + head.to(gl.int64) * tokens, as_matrix(x_tiles.index(stage)),
                out_tiles.index(0), *index_state(state_smem, zero), token + tile_begin, tile_begin,
                length - tile_begin, head, angle_step, eps, HEADS, DV, W, WARPS,
            )  # fmt: skip
            load_tile, phase, at, before, rest = load_next_step(
                load_tile, phase, at, before, rest, end, tile_list, q, k, v, q, q, x_tiles.index(stage),
                y_tiles.index(stage), y_tiles.index(stage), bars.index(stage), key_head, GROUP, False,
            )  # fmt: skip
            step += 1
        token, length = token_next, length_next
    tma.store_wait(0)
