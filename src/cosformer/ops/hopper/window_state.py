"""The state of each segment of a head with a wide window (window_tiles.py): chunk_state.py, with phases
within the block of W tokens that the segment lies in."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait

from cosformer.ops.hopper.bf16x2 import relu_phase, relu_phase_or_zero
from cosformer.ops.hopper.chunk_state import store_state
from cosformer.ops.hopper.partial_sums import alloc_selector, selector_layout, weighted_selector
from cosformer.ops.hopper.state import add_to_state, zero_state
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_smem,
    alloc_tiles,
    as_matrix,
    coalesced,
    opaque_zero,
    phases,
    row_slice,
    sync,
    tma_load_pair,
)
from cosformer.ops.hopper.window_tiles import locate_segment

RUNTIME = [
    "heads", "length", "first", "per_row", "segments", "segment", "window", "angle_step", "row_b", "row_h"
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def window_state(
    b, c, inv_den_ptr, delta_ptr, h_ptr, table, heads, length, first, per_row, segments, segment, window,
    angle_step, row_b, row_h, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, F: gl.constexpr,
    OUTPUT: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """OUTPUT as in chunk_state.py; `heads` are those of b and c, GROUP of them for each in the table."""
    COALESCED: gl.constexpr = coalesced(F, WARPS)
    head, _, entry, batch, index, begin, end = locate_segment(
        gl.program_id(0), table, heads, first, per_row, length, segment, GROUP
    )
    chunks = (end - begin + CHUNK - 1) // CHUNK
    block_begin = begin // window * window

    b_tiles = alloc_tiles(STAGES, CHUNK, F)
    c_tiles = alloc_tiles(STAGES, CHUNK, F)
    b_cos_smem = alloc_smem(CHUNK, F)
    b_sin_smem = alloc_smem(CHUNK, F)
    selector_smem = alloc_selector(OUTPUT == "dv", WARPS)
    bars = alloc_barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            tma_load_pair(
                b, c, b_tiles.index(i), c_tiles.index(i), bars.index(i), batch, begin + i * CHUNK, head
            )
    s_cos, s_sin, z_cos, z_sin = zero_state(F, WARPS)
    b_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    delta_rows = gl.arange(0, CHUNK, layout=row_slice(selector_layout(WARPS)))
    vec_offset = batch.to(gl.int64) * row_b + head.to(gl.int64) * row_h
    if OUTPUT == "dv":
        inv_den = gl.load(inv_den_ptr + vec_offset + begin + b_rows, mask=begin + b_rows < end, other=0.0)
        delta = gl.load(delta_ptr + vec_offset + begin + delta_rows, mask=begin + delta_rows < end, other=0.0)
    for t in range(chunks):
        stage = t % STAGES
        token = begin + t * CHUNK
        zero = opaque_zero(t)
        b_cos = b_cos_smem.index(zero)
        b_sin = b_sin_smem.index(zero)
        cos, sin = phases(token - block_begin + b_rows, angle_step)
        if OUTPUT == "dv":
            cos = cos * inv_den
            sin = sin * inv_den
            weighted_selector(delta, selector_smem.index(zero), WARPS)
            ahead = token + CHUNK + b_rows
            inv_den = gl.load(inv_den_ptr + vec_offset + ahead, mask=ahead < end, other=0.0)
            delta_ahead = token + CHUNK + delta_rows
            delta = gl.load(delta_ptr + vec_offset + delta_ahead, mask=delta_ahead < end, other=0.0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_c = as_matrix(c_tiles.index(stage))
        x = as_matrix(b_tiles.index(stage)).load(COALESCED)
        if OUTPUT == "dv":
            b_cos.store(relu_phase_or_zero(x, cos))
            b_sin.store(relu_phase_or_zero(x, sin))
        else:
            b_cos.store(relu_phase(x, cos))
            b_sin.store(relu_phase(x, sin))
        fence_async_shared()
        selector = selector_smem.index(zero)
        s_cos, s_sin, z_cos, z_sin = add_to_state(
            b_cos, b_sin, tile_c, selector, s_cos, s_sin, z_cos, z_sin, True
        )
        s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(num_outstanding=0, deps=[s_cos, s_sin, z_cos, z_sin])
        sync()
        if t + STAGES < chunks:
            tma_load_pair(
                b, c, b_tiles.index(stage), c_tiles.index(stage), bars.index(stage), batch,
                token + STAGES * CHUNK, head,
            )  # fmt: skip
    store_state(
        h_ptr, (batch * segments + index) * heads + entry, s_cos, s_sin, z_cos, z_sin, D, DV, F, WARPS
    )
