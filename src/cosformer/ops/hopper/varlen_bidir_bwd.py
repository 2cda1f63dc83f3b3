"""The gradients of bidirectional attention of packed documents that lie in one split: as varlen_bidir_fwd.py,
in three phases, with the equations of state_apply_bwd.py.

    k, v -> S;  for each query head q, g, o -> dq, R;  k, v -> dk, dv

S is summed in registers and used in shared memory, then R in the same places. k and v come from the L2 cache
the second time, where documents are short.

phi is written over k and q; its sines over o, which is no longer needed then, or into the place of o in the
steps that do not load it. So three stages fit (112 KiB and two CTAs per SM), two where W = 128 (204 KiB and
one).

Bytes: 8 tensors, the memory-bound limit. Measured as in varlen_bidir_fwd.py: 0.351 ms.
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

from cosformer.ops.hopper.bf16x2 import relu_phase, relu_phase_or_zero, where_positive, zero_rows
from cosformer.ops.hopper.partial_sums import (
    PARTIALS,
    alloc_partials,
    row_selector,
    selector_layout,
    weighted_selector,
)
from cosformer.ops.hopper.state import add_to_state, alloc_state, index_state, zero_state
from cosformer.ops.hopper.tile_access import tile_at, uncut_tiles
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
def compute_dq(
    dq, dq_ptr, tile_q, tile_g, tile_o, out_tiles, selector, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile,
    s_cos, s_sin, z_cos, z_sin, den, token, before, rest, head, angle_step, eps, HEADS: gl.constexpr,
    D: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Stores a tile of dq; returns R and its z plus this tile."""
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    cos, sin = phases(before + q_rows, angle_step)
    if rest < CHUNK:
        zero_rows(tile_g, q_rows < rest, COALESCED)
    inv_den, delta = inv_den_and_delta(tile_g, tile_o, den, eps, COALESCED)
    x = tile_q.load(COALESCED)
    tile_q.store(relu_phase_or_zero(x, cos * inv_den))
    tile_o.store(relu_phase_or_zero(x, sin * inv_den))
    weighted_selector(gl.convert_layout(delta, row_slice(selector_layout(WARPS))), selector, WARPS)
    zero_cols = gl.zeros([CHUNK, PARTIALS], gl.float32, dot_operand(OUT))
    delta_cols = (gl.convert_layout(delta, row_slice(dot_operand(OUT)))[:, None] + zero_cols).to(gl.bfloat16)
    fence_async_shared()
    x = warpgroup_mma(tile_g, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
    x = warpgroup_mma(delta_cols, z_cos_tile.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(tile_g, s_sin_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
    y = warpgroup_mma(delta_cols, z_sin_tile.permute((1, 0)), y, is_async=True)
    r_cos, r_sin, z_cos, z_sin = add_to_state(
        tile_q, tile_o, tile_g, selector, s_cos, s_sin, z_cos, z_sin, True
    )
    x, y, delta_cols = warpgroup_mma_wait(num_outstanding=4, deps=[x, y, delta_cols])
    cos_y, sin_y = phases(before + y_rows, angle_step)
    inv_den_y = gl.convert_layout(inv_den, row_slice(OUT))
    y = x * (cos_y * inv_den_y)[:, None] + y * (sin_y * inv_den_y)[:, None]
    y = where_positive(y, tile_q.load(OUT))
    s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(num_outstanding=0, deps=[r_cos, r_sin, z_cos, z_sin])
    write_out_tile(out_tiles, y)
    store_tile(dq, dq_ptr, out_tiles, 0, token, rest, head, HEADS, D, COALESCED, True)
    return s_cos, s_sin, z_cos, z_sin


@gluon.jit
def compute_dkv(
    dk, dv, dk_ptr, dv_ptr, tile_k, tile_v, out_tiles, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile, token,
    before, rest, head, angle_step, HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    k_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(OUT)))
    y_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    ones = gl.full([CHUNK, PARTIALS], 1.0, gl.float32, dot_operand(OUT)).to(gl.bfloat16)
    x = warpgroup_mma(tile_v, s_cos_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
    x = warpgroup_mma(ones, z_cos_tile.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(tile_v, s_sin_tile.permute((1, 0)), zero_out, use_acc=False, is_async=True)
    y = warpgroup_mma(ones, z_sin_tile.permute((1, 0)), y, is_async=True)
    cos, sin = phases(before + k_rows, angle_step)
    k_tile = tile_k.load(dot_operand(OUT))
    k_cos = relu_phase(k_tile, cos)
    k_sin = relu_phase(k_tile, sin)
    x, y = warpgroup_mma_wait(num_outstanding=0, deps=[x, y])
    cos_y, sin_y = phases(before + y_rows, angle_step)
    y = x * cos_y[:, None] + y * sin_y[:, None]
    y = where_positive(y, tile_k.load(OUT))
    dv_acc = warpgroup_mma(k_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
    dv_acc = warpgroup_mma(k_sin, s_sin_tile, dv_acc, is_async=True)
    write_out_tile(out_tiles.index(0), y)
    store_tile(dk, dk_ptr, out_tiles.index(0), 0, token, rest, head, HEADS, D, COALESCED, True)
    dv_acc, k_cos, k_sin = warpgroup_mma_wait(num_outstanding=0, deps=[dv_acc, k_cos, k_sin])
    as_matrix(out_tiles.index(1)).store(dv_acc.to(gl.bfloat16))
    store_tile(dv, dv_ptr, out_tiles.index(1), 0, token, rest, head, HEADS, DV, COALESCED, True)


@gluon.jit(do_not_specialize=RUNTIME)
def varlen_bidir_bwd(
    q, k, v, o, g, dq, dk, dv, dq_ptr, dk_ptr, dv_ptr, den_ptr, tile_list, splits, angle_step, eps, tokens,
    HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: query heads."""
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    KEY_HEADS: gl.constexpr = HEADS // GROUP
    pid = gl.program_id(0)
    key_head = pid % KEY_HEADS
    i, end = uncut_tiles(tile_list, pid // KEY_HEADS, splits)

    x_tiles = alloc_tiles(STAGES, CHUNK, W)
    y_tiles = alloc_tiles(STAGES, CHUNK, W)
    o_tiles = alloc_tiles(STAGES, CHUNK, W)
    out_tiles = alloc_tiles(2, CHUNK, W)
    state_smem = alloc_state(W)
    selector_smem = row_selector(WARPS)
    delta_smem = alloc_partials(CHUNK)
    bars = alloc_barriers(STAGES)
    load_tile, phase, at, before, rest, token, length = load_first_steps(
        i, end, tile_list, q, k, v, g, o, x_tiles, y_tiles, o_tiles, bars, key_head, GROUP, STAGES, True
    )
    q_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    step = 0
    while i < end:
        tiles = (length + CHUNK - 1) // CHUNK
        i += tiles
        token_next, _, length_next = tile_at(gl.minimum(i, end - 1), tile_list, 0, 0, 0, True)
        den_pointers = den_ptr + (key_head * GROUP).to(gl.int64) * tokens + token + q_rows
        den = gl.load(den_pointers, mask=q_rows < length, other=1.0)
        s_cos, s_sin, z_cos, z_sin = zero_state(W, WARPS)
        for t in range(tiles):
            stage = step % STAGES
            zero = opaque_zero(t)
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            tile = as_matrix(x_tiles.index(stage + zero))
            s_cos, s_sin, z_cos, z_sin = add_tile_to_state(
                tile, as_matrix(y_tiles.index(stage)), tile, as_matrix(o_tiles.index(stage + zero)),
                selector_smem.index(zero), s_cos, s_sin, z_cos, z_sin, t * CHUNK, length - t * CHUNK,
                angle_step, W, WARPS,
            )  # fmt: skip
            sync()
            load_tile, phase, at, before, rest = load_next_step(
                load_tile, phase, at, before, rest, end, tile_list, q, k, v, g, o, x_tiles.index(stage),
                y_tiles.index(stage), o_tiles.index(stage), bars.index(stage), key_head, GROUP, True,
            )  # fmt: skip
            step += 1
        store_state_to_smem(s_cos, s_sin, z_cos, z_sin, state_smem)
        s_cos, s_sin, z_cos, z_sin = zero_state(W, WARPS)
        for t in range(tiles * GROUP):
            stage = step % STAGES
            zero = opaque_zero(t)
            head = key_head * GROUP + t // tiles
            tile_begin = t % tiles * CHUNK
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            s_cos, s_sin, z_cos, z_sin = compute_dq(
                dq, dq_ptr, as_matrix(x_tiles.index(stage + zero)), as_matrix(y_tiles.index(stage)),
                as_matrix(o_tiles.index(stage + zero)), out_tiles.index(0), delta_smem.index(zero),
                *index_state(state_smem, zero), s_cos, s_sin, z_cos, z_sin, den, token + tile_begin,
                tile_begin, length - tile_begin, head, angle_step, eps, HEADS, D, W, WARPS,
            )  # fmt: skip
            load_tile, phase, at, before, rest = load_next_step(
                load_tile, phase, at, before, rest, end, tile_list, q, k, v, g, o, x_tiles.index(stage),
                y_tiles.index(stage), o_tiles.index(stage), bars.index(stage), key_head, GROUP, True,
            )  # fmt: skip
            step += 1
            tile_begin = (t + 1) % tiles * CHUNK
            den_pointers = (
                den_ptr
                + (key_head * GROUP + (t + 1) // tiles).to(gl.int64) * tokens
                + token
                + tile_begin
                + q_rows
            )
            den = gl.load(
                den_pointers, mask=(q_rows < length - tile_begin) & (t + 1 < tiles * GROUP), other=1.0
            )
        store_state_to_smem(s_cos, s_sin, z_cos, z_sin, state_smem)
        for t in range(tiles):
            stage = step % STAGES
            zero = opaque_zero(t)
            tile_begin = t * CHUNK
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            compute_dkv(
                dk, dv, dk_ptr, dv_ptr, as_matrix(x_tiles.index(stage)), as_matrix(y_tiles.index(stage)),
                out_tiles, *index_state(state_smem, zero), token + tile_begin, tile_begin,
                length - tile_begin, key_head, angle_step, KEY_HEADS, D, DV, W, WARPS,
            )  # fmt: skip
            load_tile, phase, at, before, rest = load_next_step(
                load_tile, phase, at, before, rest, end, tile_list, q, k, v, g, o, x_tiles.index(stage),
                y_tiles.index(stage), o_tiles.index(stage), bars.index(stage), key_head, GROUP, True,
            )  # fmt: skip
            step += 1
        token, length = token_next, length_next
    tma.store_wait(0)
