"""Bidirectional and cross attention: queries times a finished state, which stays in shared memory.

    [o d, d] = phi(q) [S, z]

One CTA takes one head of one split.

Bytes: q read, o written; with the pass that sums S (chunk_state.py, 2 tensors) 4 tensors, the memory-bound
limit. Measured as in chunk_fwd.py: 0.078 ms (limit of these tensors 0.063); W = 128 as in chunk_state.py.
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

from cosformer.ops.hopper.bf16x2 import relu_phase
from cosformer.ops.hopper.partial_sums import PARTIALS, divide_by_den, load_z_rows, load_z_rows_sum
from cosformer.ops.hopper.state import alloc_state_z_rows, index_state
from cosformer.ops.hopper.tile_access import locate_part
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_tiles,
    as_matrix,
    coalesced,
    dot_operand,
    load_sum,
    matrix_pointers,
    mma_layout,
    opaque_zero,
    phases,
    row_slice,
    store_rows,
    sync,
    tma_load,
    tma_store,
)

RUNTIME = [
    "origin", "length", "splits_per_row", "split_size", "angle_step", "eps", "tokens", "h0_stride",
    "z0_stride", "states_per_row",
]  # fmt: skip


@gluon.jit
def load_state_sum_to_smem(
    h0, z0, count, state_stride, smem, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    COALESCED: gl.constexpr,
):  # fmt: skip
    """As `load_state_to_smem`, for the sum of `count` states, `state_stride` elements apart."""
    at, in_state = matrix_pointers(h0, D, DV, W, COALESCED)
    smem[0].index(0).store(load_sum(at, in_state, count, state_stride).to(gl.bfloat16))
    smem[1].index(0).store(load_sum(at + D * DV, in_state, count, state_stride).to(gl.bfloat16))
    smem[2].index(0).store(
        load_z_rows_sum(z0, count, state_stride, PARTIALS, D, W, COALESCED).to(gl.bfloat16)
    )
    smem[3].index(0).store(
        load_z_rows_sum(z0 + D, count, state_stride, PARTIALS, D, W, COALESCED).to(gl.bfloat16)
    )
    fence_async_shared()


@gluon.jit
def load_state_to_smem(
    h0, z0, index, h0_stride, z0_stride, smem, SHARES: gl.constexpr, D: gl.constexpr, DV: gl.constexpr,
    W: gl.constexpr, COALESCED: gl.constexpr,
):  # fmt: skip
    """A state from global to shared memory, in bfloat16; z as PARTIALS equal rows, of which SHARES add up to
    z."""
    index = index.to(gl.int64)
    at, in_state = matrix_pointers(h0 + index * h0_stride, D, DV, W, COALESCED)
    smem[0].index(0).store(gl.load(at, mask=in_state, other=0.0).to(gl.bfloat16))
    smem[1].index(0).store(gl.load(at + D * DV, mask=in_state, other=0.0).to(gl.bfloat16))
    smem[2].index(0).store(
        load_z_rows(z0 + index * z0_stride, PARTIALS, SHARES, D, W, COALESCED).to(gl.bfloat16)
    )
    smem[3].index(0).store(
        load_z_rows(z0 + index * z0_stride + D, PARTIALS, SHARES, D, W, COALESCED).to(gl.bfloat16)
    )
    fence_async_shared()


@gluon.jit(do_not_specialize=RUNTIME)
def state_apply_o(
    q, o, o_ptr, den_ptr, positions_ptr, h0, z0, cu_seqlens, split_doc, doc_first_split, split_slot,
    tile_list, origin, length, splits_per_row, split_size, angle_step, eps, tokens, h0_stride, z0_stride,
    states_per_row, HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr,
    W: gl.constexpr, IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr, HAS_POSITIONS: gl.constexpr,
    SUM_INITIAL_STATES: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """SUM_INITIAL_STATES: the sum of `states_per_row` states is applied."""
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    ROW_PARTIALS: gl.constexpr = mma_layout(CHUNK, PARTIALS, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    STAGE_BYTES: gl.constexpr = CHUNK * W * 2
    pid = gl.program_id(0)
    head = pid % HEADS
    row, batch, row_start, begin, end, _ = locate_part(
        pid // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length, splits_per_row,
        split_size, IS_VARLEN, TILE_LIST,
    )  # fmt: skip
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    q_tiles = alloc_tiles(STAGES, CHUNK, W)
    out_tiles = alloc_tiles(2, CHUNK, W)
    state_smem = alloc_state_z_rows(W)
    bars = alloc_barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            mbarrier.expect(bars.index(i), STAGE_BYTES)
            tma_load(q, q_tiles.index(i), bars.index(i), batch, row_start + begin + i * CHUNK, head)
    if chunks > 0:
        if HAS_POSITIONS:
            origin += gl.load(positions_ptr + row).to(gl.int32)
        if SUM_INITIAL_STATES:
            state_stride = (HEADS // GROUP) * h0_stride.to(gl.int64)
            first_state = row * states_per_row * state_stride + head // GROUP * h0_stride
            load_state_sum_to_smem(
                h0 + first_state, z0 + first_state, states_per_row, state_stride, state_smem, D, DV, W,
                COALESCED,
            )  # fmt: skip
        else:
            load_state_to_smem(
                h0, z0, row * (HEADS // GROUP) + head // GROUP, h0_stride, z0_stride, state_smem, PARTIALS, D,
                DV, W, COALESCED,
            )  # fmt: skip
    q_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(OUT)))
    o_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    zero_parts = gl.zeros([CHUNK, PARTIALS], gl.float32, ROW_PARTIALS)
    for t in range(chunks):
        stage = t % STAGES
        before = begin + t * CHUNK
        token = row_start + before
        zero = opaque_zero(t)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        cos, sin = phases(origin + before + q_rows, angle_step)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        x = as_matrix(q_tiles.index(stage)).load(dot_operand(OUT))
        q_cos = relu_phase(x, cos)
        q_sin = relu_phase(x, sin)
        acc = warpgroup_mma(q_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
        acc = warpgroup_mma(q_sin, s_sin_tile, acc, is_async=True)
        q_cos_z = gl.convert_layout(q_cos, dot_operand(ROW_PARTIALS))
        q_sin_z = gl.convert_layout(q_sin, dot_operand(ROW_PARTIALS))
        den_parts = warpgroup_mma(
            q_cos_z, z_cos_tile.permute((1, 0)), zero_parts, use_acc=False, is_async=True
        )
        den_parts = warpgroup_mma(q_sin_z, z_sin_tile.permute((1, 0)), den_parts, is_async=True)
        acc, den_parts, q_cos, q_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[acc, den_parts, q_cos, q_sin]
        )
        result, den = divide_by_den(acc, den_parts, eps, OUT)
        tma.store_wait(1)
        sync()
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), STAGE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, token + STAGES * CHUNK, head)
        as_matrix(out_tiles.index(t % 2)).store(result)
        fence_async_shared()
        sync()
        if IS_VARLEN and before + CHUNK > end:
            store_rows(
                o_ptr + head * DV, HEADS * DV, token, end - before, as_matrix(out_tiles.index(t % 2)), DV,
                COALESCED,
            )  # fmt: skip
        else:
            tma_store(o, out_tiles.index(t % 2), batch, token, head)
        den_pointers = den_ptr + (batch * HEADS + head).to(gl.int64) * tokens + token + o_rows
        gl.store(den_pointers, den, mask=before + o_rows < end)
    tma.store_wait(0)
