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
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.bf16x2 import relu_phase, relu_phase_or_zero, zero_rows
from cosformer.ops.hopper.partial_sums import PARTIALS, divide_by_den, partials_layout, row_selector
from cosformer.ops.hopper.state import add_to_state, alloc_state, copy_state_to_smem, index_state, zero_state
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
    tma_load,
    write_out_tile,
)

RUNTIME = ["splits", "angle_step", "eps", "tokens"]


@gluon.jit
def load_tiles(x, y, z, x_tiles, y_tiles, z_tiles, bar, token, head, N: gl.constexpr):
    """Starts TMA loads of the first N of three tiles."""
    mbarrier.expect(bar, N * CHUNK * x_tiles.shape[3] * 2)
    tma_load(x, x_tiles, bar, 0, token, head)
    if N > 1:
        tma_load(y, y_tiles, bar, 0, token, head)
    if N > 2:
        tma_load(z, z_tiles, bar, 0, token, head)


@gluon.jit
def load_next_step(
    i, phase, token, before, rest, end, tile_list, q, k, v, g, o, x_tiles, y_tiles, z_tiles, bar, key_head,
    GROUP: gl.constexpr, BACKWARD: gl.constexpr,
):  # fmt: skip
    """Starts the loads of the step at tile i in this phase, if i < end. Returns tile and phase of the step
    after it, and that tile's row of the list: a document is gone through once for each phase."""
    LAST: gl.constexpr = GROUP + 1 if BACKWARD else GROUP
    if i < end:
        if (phase == 0) | (phase > GROUP):
            load_tiles(k, v, v, x_tiles, y_tiles, y_tiles, bar, token, key_head, 2)
        elif BACKWARD:
            load_tiles(q, g, o, x_tiles, y_tiles, z_tiles, bar, token, key_head * GROUP + phase - 1, 3)
        else:
            load_tiles(q, q, q, x_tiles, y_tiles, y_tiles, bar, token, key_head * GROUP + phase - 1, 1)
        ends = rest <= CHUNK
        i = gl.where(ends & (phase < LAST), i - before // CHUNK, i + 1)
        phase = gl.where(ends, gl.where(phase < LAST, phase + 1, 0), phase)
        token, before, rest = tile_at(gl.minimum(i, end - 1), tile_list, 0, 0, 0, True)
    return i, phase, token, before, rest


@gluon.jit
def load_first_steps(
    i, end, tile_list, q, k, v, g, o, x_tiles, y_tiles, z_tiles, bars, key_head, GROUP: gl.constexpr,
    STAGES: gl.constexpr, BACKWARD: gl.constexpr,
):  # fmt: skip
    """Starts the loads of the first STAGES steps. Returns what `load_next_step` does, and the first token and
    the length of the first document."""
    phase = i * 0
    token, before, length = tile_at(gl.where(i < end, i, 0), tile_list, 0, 0, 0, True)
    at, rest = token, length
    for n in gl.static_range(STAGES):
        i, phase, at, before, rest = load_next_step(
            i, phase, at, before, rest, end, tile_list, q, k, v, g, o, x_tiles.index(n), y_tiles.index(n),
            z_tiles.index(n), bars.index(n), key_head, GROUP, BACKWARD,
        )  # fmt: skip
    return i, phase, at, before, rest, token, length


@gluon.jit
def add_tile_to_state(
    tile_k, tile_v, k_cos, k_sin, selector, s_cos, s_sin, z_cos, z_sin, before, rest, angle_step,
    W: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The state plus one tile of keys."""
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    k_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    keep = k_rows < rest
    cos, sin = phases(before + k_rows, angle_step)
    if rest < CHUNK:
        zero_rows(tile_v, keep, COALESCED)
    x = tile_k.load(COALESCED)
    k_cos.store(relu_phase_or_zero(x, gl.where(keep, cos, 0.0)))
    k_sin.store(relu_phase_or_zero(x, gl.where(keep, sin, 0.0)))
    fence_async_shared()
    s_cos, s_sin, z_cos, z_sin = add_to_state(
        k_cos, k_sin, tile_v, selector, s_cos, s_sin, z_cos, z_sin, True
    )
    s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(num_outstanding=0, deps=[s_cos, s_sin, z_cos, z_sin])
    return s_cos, s_sin, z_cos, z_sin


@gluon.jit
def store_state_to_smem(s_cos, s_sin, z_cos, z_sin, smem):
    """A finished state from registers to shared memory, in bfloat16."""
    s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(smem, 0)
    copy_state_to_smem(s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile)
    fence_async_shared()


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
