"""Packed documents that lie in one split: the loads of their steps, and their state.

Both directions (varlen_bidir_fwd.py, varlen_bidir_bwd.py) go through the tiles of a document once for each
phase; a step is one tile in one phase.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from cosformer.ops.hopper.bf16x2 import relu_phase_or_zero, zero_rows
from cosformer.ops.hopper.state import add_to_state, copy_state_to_smem, index_state
from cosformer.ops.hopper.tile_access import tile_at
from cosformer.ops.hopper.tiles import CHUNK, coalesced, phases, row_slice, tma_load

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
