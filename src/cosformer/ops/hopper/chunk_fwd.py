"""Causal attention: chunk by chunk, the state in registers.

One CTA of 4 warps (8 where heads are wider than 64) takes one head of one split and goes through it in chunks
of 64 tokens. What is where, for W = 64 (128 in brackets):

    registers       S, cos and sin, [W, W] fp32: 64 a thread (128); the partial sums of z: 16
    shared memory   two stages of q, k, v as TMA left them; phi(k); S and z in bfloat16; o; with a mask, v
                    with masked rows zeroed (over v itself)
                    94 KiB, or 102, and two CTAs per SM (222 KiB and one)

and for each chunk:

    1. S and z of the chunks before -> bfloat16 -> shared memory
    2. k -> phi(k) -> shared memory; q -> phi(q) -> registers, as first operands (W = 128: both are written
       over their own tiles, because the registers are full)
    3. P = phi(q) phi(k)^T; rounded and masked, while S += phi(k)^T v runs
    4. o = (phi(q) S + P v) / d, d = phi(q) z + P 1
    5. o -> shared memory -> TMA store, while z is summed (W = 128: S too); TMA loads of the next q, k, v

With TILE_LIST packed documents are one list of tiles (tile_list.py), and a CTA goes from one document to the
next: the first tile of a document leaves out S and z (step 1, and half of step 4).

Bytes: q, k, v read and o written once (the memory-bound limit), and d, 3 % of a tensor. Measured on an H200
with 16 heads and 32 rows of 2,048 tokens: 0.142 ms, the kernel alone in a profile (limit 0.126); W = 128,
from the record, 0.556 ms (limit 0.252). 1,000 documents of 65,536 tokens, 1.56 times as many tiles: 0.219 ms.
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

from cosformer.ops.hopper.bf16x2 import mask_rows, relu_phase, relu_phase_or_zero, tril, zero_rows
from cosformer.ops.hopper.partial_sums import (
    PARTIALS,
    divide_by_den,
    load_z_columns_sum,
    partials_layout,
    row_selector,
)
from cosformer.ops.hopper.state import (
    alloc_state,
    copy_state_to_smem,
    index_state,
    initial_state,
    store_final_state,
)
from cosformer.ops.hopper.tile_access import locate_split_tiles, tile_at
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_smem,
    alloc_tiles,
    as_matrix,
    coalesced,
    column_slice,
    dot_operand,
    load_sum,
    matrix_pointers,
    mma_layout,
    opaque_zero,
    phases,
    row_slice,
    store_tile,
    tma_load,
    write_out_tile,
)

RUNTIME = [
    "origin", "length", "splits_per_row", "split_size", "angle_step", "eps", "tokens", "mask_stride",
    "h0_stride", "z0_stride", "ht_stride", "zt_stride", "states_per_split",
]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def chunk_fwd(
    q, k, v, o, o_ptr, den_ptr, key_mask_ptr, positions_ptr, h0, z0, ht, zt, cu_seqlens, split_doc,
    doc_first_split, split_slot, tile_list, origin, length, splits_per_row, split_size, angle_step, eps,
    tokens, mask_stride, h0_stride, z0_stride, ht_stride, zt_stride, states_per_split, HEADS: gl.constexpr,
    GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, IS_VARLEN: gl.constexpr,
    TILE_LIST: gl.constexpr, HAS_MASK: gl.constexpr, HAS_POSITIONS: gl.constexpr,
    USE_INITIAL_STATE: gl.constexpr, SUM_INITIAL_STATES: gl.constexpr, STORE_FINAL_STATE: gl.constexpr,
    STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """q, k, v, o: TMA descriptors; o_ptr: o as a pointer. h0, z0: the state each split starts from or, with
    SUM_INITIAL_STATES, `states_per_split` states that each split adds. ht, zt: the state after the last
    chunk."""
    SCORES: gl.constexpr = mma_layout(CHUNK, CHUNK, WARPS)
    OUT: gl.constexpr = mma_layout(CHUNK, W, WARPS)
    ROW_PARTIALS: gl.constexpr = partials_layout(CHUNK, WARPS)
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    IN_PLACE: gl.constexpr = W == 128
    STAGE_BYTES: gl.constexpr = 3 * CHUNK * W * 2

    pid = gl.program_id(0)
    head = pid % HEADS
    key_head = head // GROUP
    row, batch, row_start, begin, end, slot, chunks = locate_split_tiles(
        pid // HEADS, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length, splits_per_row,
        split_size, IS_VARLEN, TILE_LIST,
    )  # fmt: skip
    if HAS_POSITIONS:
        origin += gl.load(positions_ptr + row, mask=chunks > 0, other=0)
    token, before, rest = tile_at(0, tile_list, row_start, begin, end, TILE_LIST)
    if HAS_MASK:
        key_mask_ptr += batch.to(gl.int64) * mask_stride

    q_tiles = alloc_tiles(STAGES, CHUNK, W)
    k_tiles = alloc_tiles(STAGES, CHUNK, W)
    v_tiles = alloc_tiles(STAGES, CHUNK, W)
    out_tiles = alloc_tiles(1, CHUNK, W)
    if not IN_PLACE:
        k_cos_smem = alloc_smem(CHUNK, W)
        if HAS_MASK:
            v_smem = alloc_smem(CHUNK, W)
    else:
        q_sin_smem = alloc_smem(CHUNK, W)
    k_sin_smem = alloc_smem(CHUNK, W)
    state_smem = alloc_state(W)
    selector_smem = row_selector(WARPS)
    bars = alloc_barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at, _, _ = tile_at(i, tile_list, row_start, begin, end, TILE_LIST)
            mbarrier.expect(bars.index(i), STAGE_BYTES)
            tma_load(q, q_tiles.index(i), bars.index(i), batch, at, head)
            tma_load(k, k_tiles.index(i), bars.index(i), batch, at, key_head)
            tma_load(v, v_tiles.index(i), bars.index(i), batch, at, key_head)

    if USE_INITIAL_STATE and TILE_LIST:
        slot = gl.where((chunks > 0) & (before > 0), slot, -1)
    if USE_INITIAL_STATE and SUM_INITIAL_STATES:
        preceding = begin // split_size
        slot = (slot - preceding) * states_per_split
        preceding *= states_per_split
        index = (slot * (HEADS // GROUP) + key_head).to(gl.int64)
        at, in_state = matrix_pointers(h0 + index * h0_stride, D, DV, W, mma_layout(W, W, WARPS))
        in_state = in_state & (slot >= 0)
        state_stride = (HEADS // GROUP) * h0_stride.to(gl.int64)
        z_pointers = z0 + index * z0_stride
        s_cos = load_sum(at, in_state, preceding, state_stride)
        s_sin = load_sum(at + D * DV, in_state, preceding, state_stride)
        z_cos = load_z_columns_sum(z_pointers, preceding, state_stride, D, W, WARPS)
        z_sin = load_z_columns_sum(z_pointers + D, preceding, state_stride, D, W, WARPS)
    else:
        z_cos, z_sin, s_cos, s_sin = initial_state(
            h0, z0, slot, key_head, h0_stride, z0_stride, HEADS // GROUP, D, DV, W, USE_INITIAL_STATE, WARPS
        )

    q_rows = gl.arange(0, CHUNK, layout=row_slice(dot_operand(SCORES)))
    k_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    o_rows = gl.arange(0, CHUNK, layout=row_slice(OUT))
    i = gl.arange(0, CHUNK, layout=row_slice(SCORES))
    j = gl.arange(0, CHUNK, layout=column_slice(SCORES))
    mask_shift = 16 * (i[:, None] - j[None, :] + 1)
    zero_scores = gl.zeros([CHUNK, CHUNK], gl.float32, SCORES)
    zero_out = gl.zeros([CHUNK, W], gl.float32, OUT)
    zero_parts = gl.zeros([CHUNK, PARTIALS], gl.float32, ROW_PARTIALS)
    if HAS_MASK:
        mask_tile = gl.load(key_mask_ptr + before + k_rows, mask=k_rows < rest, other=0)
    for t in range(chunks):
        stage = t % STAGES
        token_ahead, _, _ = tile_at(
            gl.minimum(t + STAGES, chunks - 1), tile_list, row_start, begin, end, TILE_LIST
        )
        if not TILE_LIST:
            token, before, rest = tile_at(t, tile_list, row_start, begin, end, TILE_LIST)
            has_prev: gl.constexpr = True
        else:
            token_next, before_next, rest_next = tile_at(
                gl.minimum(t + 1, chunks - 1), tile_list, 0, begin, 0, True
            )
            has_prev = before > 0
        zero = opaque_zero(t)
        s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile = index_state(state_smem, zero)
        selector = selector_smem.index(zero)
        if has_prev:
            copy_state_to_smem(
                s_cos, s_sin, z_cos, z_sin, s_cos_tile, s_sin_tile, z_cos_tile, z_sin_tile
            )  # fmt: skip
        cos, sin = phases(origin + before + k_rows, angle_step)
        keep = k_rows < rest
        if HAS_MASK:
            keep = mask_tile != 0
            mask_tile = gl.load(key_mask_ptr + before + CHUNK + k_rows, mask=k_rows < rest - CHUNK, other=0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_k = as_matrix(k_tiles.index(stage))
        tile_q = as_matrix(q_tiles.index(stage))
        tile_v = as_matrix(v_tiles.index(stage))
        x = tile_k.load(COALESCED)
        if HAS_MASK or IS_VARLEN:
            phi_cos = relu_phase_or_zero(x, gl.where(keep, cos, 0.0))
            phi_sin = relu_phase_or_zero(x, gl.where(keep, sin, 0.0))
            if HAS_MASK and not IN_PLACE:  # in place, one more barrier would be needed
                x = mask_rows(tile_v.load(COALESCED), keep)
                tile_v = v_smem.index(zero)
                tile_v.store(x)
            elif HAS_MASK or rest < CHUNK:
                zero_rows(tile_v, keep, COALESCED)
        else:
            phi_cos = relu_phase(x, cos)
            phi_sin = relu_phase(x, sin)
        if IN_PLACE:
            k_cos = tile_k
        else:
            k_cos = k_cos_smem.index(zero)
        k_sin = k_sin_smem.index(zero)
        k_cos.store(phi_cos)
        k_sin.store(phi_sin)
        if IN_PLACE:
            y = tile_q.load(COALESCED)
            q_cos = tile_q
            q_sin = q_sin_smem.index(zero)
            q_cos.store(relu_phase(y, cos))
            q_sin.store(relu_phase(y, sin))
        else:
            y = tile_q.load(dot_operand(SCORES))
            cos_q, sin_q = phases(origin + before + q_rows, angle_step)
            q_cos = relu_phase(y, cos_q)
            q_sin = relu_phase(y, sin_q)
        fence_async_shared()
        p = warpgroup_mma(q_cos, k_cos.permute((1, 0)), zero_scores, use_acc=False, is_async=True)
        p = warpgroup_mma(q_sin, k_sin.permute((1, 0)), p, is_async=True)
        if IN_PLACE:
            p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
        else:
            s_cos_next = warpgroup_mma(k_cos.permute((1, 0)), tile_v, s_cos, use_acc=has_prev, is_async=True)
            s_sin_next = warpgroup_mma(k_sin.permute((1, 0)), tile_v, s_sin, use_acc=has_prev, is_async=True)
            p = warpgroup_mma_wait(num_outstanding=2, deps=[p])
        p = tril(p, mask_shift)
        p_out = gl.convert_layout(p, dot_operand(OUT))
        p_parts = gl.convert_layout(p, dot_operand(ROW_PARTIALS))
        acc = zero_out
        den_parts = zero_parts
        if has_prev:
            if IN_PLACE:
                acc = warpgroup_mma(q_cos, s_cos_tile, zero_out, use_acc=False, is_async=True)
                acc = warpgroup_mma(q_sin, s_sin_tile, acc, is_async=True)
                den_parts = warpgroup_mma(q_cos, z_cos_tile, zero_parts, use_acc=False, is_async=True)
                den_parts = warpgroup_mma(q_sin, z_sin_tile, den_parts, is_async=True)
            else:
                q_cos_out = gl.convert_layout(q_cos, dot_operand(OUT))
                q_sin_out = gl.convert_layout(q_sin, dot_operand(OUT))
                acc = warpgroup_mma(q_cos_out, s_cos_tile, zero_out, use_acc=False, is_async=True)
                acc = warpgroup_mma(q_sin_out, s_sin_tile, acc, is_async=True)
                q_cos_z = gl.convert_layout(q_cos, dot_operand(ROW_PARTIALS))
                q_sin_z = gl.convert_layout(q_sin, dot_operand(ROW_PARTIALS))
                den_parts = warpgroup_mma(q_cos_z, z_cos_tile, zero_parts, use_acc=False, is_async=True)
                den_parts = warpgroup_mma(q_sin_z, z_sin_tile, den_parts, is_async=True)
            if TILE_LIST:
                acc, den_parts = warpgroup_mma_wait(num_outstanding=0, deps=[acc, den_parts])
        acc = warpgroup_mma(p_out, tile_v, acc, is_async=True)
        den_parts = warpgroup_mma(p_parts, selector, den_parts, is_async=True)
        if IN_PLACE:
            s_cos_next = warpgroup_mma(k_cos.permute((1, 0)), tile_v, s_cos, use_acc=has_prev, is_async=True)
            s_sin_next = warpgroup_mma(k_sin.permute((1, 0)), tile_v, s_sin, use_acc=has_prev, is_async=True)
        z_cos_next = warpgroup_mma(k_cos.permute((1, 0)), selector, z_cos, use_acc=has_prev, is_async=True)
        z_sin_next = warpgroup_mma(k_sin.permute((1, 0)), selector, z_sin, use_acc=has_prev, is_async=True)
        if IN_PLACE:
            acc, den_parts, p_out, p_parts = warpgroup_mma_wait(
                num_outstanding=4, deps=[acc, den_parts, p_out, p_parts]
            )
        else:
            acc, den_parts, p_out, p_parts, q_cos, q_sin = warpgroup_mma_wait(
                num_outstanding=2, deps=[acc, den_parts, p_out, p_parts, q_cos, q_sin]
            )
        result, den = divide_by_den(acc, den_parts, eps, OUT)
        write_out_tile(out_tiles.index(0), result)
        s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(
            num_outstanding=0, deps=[s_cos_next, s_sin_next, z_cos_next, z_sin_next]
        )
        store_tile(o, o_ptr, out_tiles.index(0), batch, token, rest, head, HEADS, DV, COALESCED, IS_VARLEN)
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), STAGE_BYTES)
            tma_load(q, q_tiles.index(stage), bars.index(stage), batch, token_ahead, head)
            tma_load(k, k_tiles.index(stage), bars.index(stage), batch, token_ahead, key_head)
            tma_load(v, v_tiles.index(stage), bars.index(stage), batch, token_ahead, key_head)
        den_pointers = den_ptr + (batch * HEADS + head).to(gl.int64) * tokens + token + o_rows
        gl.store(den_pointers, den, mask=o_rows < rest)
        if TILE_LIST:
            token, before, rest = token_next, before_next, rest_next
    tma.store_wait(0)
    if STORE_FINAL_STATE:
        store_final_state(
            ht, zt, slot * (HEADS // GROUP) + key_head, ht_stride, zt_stride, s_cos, s_sin, z_cos, z_sin, D,
            DV, W, WARPS,
        )  # fmt: skip
