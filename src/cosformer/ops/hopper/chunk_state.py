"""The state of each split: what splits of a causal sequence start from, and what bidirectional attention
knows of its keys.

    S = sum_j phi(b_j) c_j^T [2, D, Dv],     z = sum_j w_j phi(b_j) [2, D]

with b = k', c = v, w = 1 ("o") or b = inv_den q', c = g, w = delta ("dv"). One CTA takes one head of one
split. S is in registers, c goes from TMA straight into matrix products. gpu/state_scan.py sums over splits.

Bytes: b and c read, and 8 D (Dv + 1) written for each split. Measured as in chunk_fwd.py: 0.076 ms
(memory-bound limit 0.063); W = 128, with state_apply.py, 0.386 ms (0.252).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.bf16x2 import relu_phase, relu_phase_or_zero, zero_rows
from cosformer.ops.hopper.partial_sums import (
    alloc_selector,
    partials_layout,
    selector_layout,
    weighted_selector,
)
from cosformer.ops.hopper.state import add_to_state, zero_state
from cosformer.ops.hopper.tile_access import locate_cut_document, locate_part
from cosformer.ops.hopper.tiles import (
    CHUNK,
    alloc_barriers,
    alloc_smem,
    alloc_tiles,
    as_matrix,
    coalesced,
    matrix_pointers,
    mma_layout,
    opaque_zero,
    phases,
    row_slice,
    sync,
    tma_load_pair,
)

RUNTIME = [
    "origin", "length", "splits_per_row", "split_size", "unused_splits", "unused_first", "angle_step",
    "tokens", "mask_stride",
]  # fmt: skip


@gluon.jit
def store_state(
    h_ptr, index, s_cos, s_sin, z_cos, z_sin, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Stores S, followed by z. index < 0: nothing is stored."""
    h_ptr += index.to(gl.int64) * (2 * D * DV + 2 * D)
    at, in_state = matrix_pointers(h_ptr, D, DV, W, mma_layout(W, W, WARPS))
    in_state = in_state & (index >= 0)
    gl.store(at, s_cos, mask=in_state)
    gl.store(at + D * DV, s_sin, mask=in_state)
    feature = gl.arange(0, W, layout=row_slice(partials_layout(W, WARPS)))
    z_pointers = h_ptr + 2 * D * DV + feature
    inside_z = (feature < D) & (index >= 0)
    gl.store(z_pointers, gl.sum(z_cos, axis=1), mask=inside_z)
    gl.store(z_pointers + D, gl.sum(z_sin, axis=1), mask=inside_z)


@gluon.jit(do_not_specialize=RUNTIME)
def chunk_state(
    b, c, inv_den_ptr, delta_ptr, key_mask_ptr, positions_ptr, h_ptr, cu_seqlens, split_doc, doc_first_split,
    split_slot, tile_list, origin, length, splits_per_row, split_size, unused_splits, unused_first,
    angle_step, tokens, mask_stride, HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    OUTPUT: gl.constexpr, IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr, CAUSAL: gl.constexpr,
    HAS_MASK: gl.constexpr, HAS_POSITIONS: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: those of b and c. h [slots, HEADS, 2 D (Dv + 1)]: S, then z. `unused_splits` splits of each row
    have no CTA, `unused_first` of them at its beginning."""
    COALESCED: gl.constexpr = coalesced(W, WARPS)
    pid = gl.program_id(0)
    head = pid % HEADS
    split = pid // HEADS
    if not IS_VARLEN:
        split += split // (splits_per_row - unused_splits) * unused_splits + unused_first
    if TILE_LIST and CAUSAL:
        row, batch, row_start, begin, end, slot = locate_cut_document(
            split, tile_list, splits_per_row, OUTPUT == "dv"
        )
    else:
        row, batch, row_start, begin, end, slot = locate_part(
            split, cu_seqlens, split_doc, doc_first_split, split_slot, tile_list, length, splits_per_row,
            split_size, IS_VARLEN, TILE_LIST,
        )  # fmt: skip
    if HAS_POSITIONS:
        origin += gl.load(positions_ptr + row, mask=begin < end, other=0)
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    chunks = gl.where(slot >= 0, chunks, 0)  # a document of one split does not need its state

    b_tiles = alloc_tiles(STAGES, CHUNK, W)
    c_tiles = alloc_tiles(STAGES, CHUNK, W)
    b_cos_smem = alloc_smem(CHUNK, W)
    b_sin_smem = alloc_smem(CHUNK, W)
    selector_smem = alloc_selector(OUTPUT == "dv", WARPS)
    bars = alloc_barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            token = row_start + begin + i * CHUNK
            tma_load_pair(b, c, b_tiles.index(i), c_tiles.index(i), bars.index(i), batch, token, head)
    s_cos, s_sin, z_cos, z_sin = zero_state(W, WARPS)
    b_rows = gl.arange(0, CHUNK, layout=row_slice(COALESCED))
    delta_rows = gl.arange(0, CHUNK, layout=row_slice(selector_layout(WARPS)))
    vec_offset = (batch * HEADS + head).to(gl.int64) * tokens + row_start
    # What TMA does not load is loaded one chunk ahead.
    if OUTPUT == "dv":
        inv_den = gl.load(inv_den_ptr + vec_offset + begin + b_rows, mask=begin + b_rows < end, other=0.0)
        delta = gl.load(delta_ptr + vec_offset + begin + delta_rows, mask=begin + delta_rows < end, other=0.0)
    elif HAS_MASK:
        key_mask_ptr += batch.to(gl.int64) * mask_stride
        mask_tile = gl.load(key_mask_ptr + begin + b_rows, mask=begin + b_rows < end, other=0)
    for t in range(chunks):
        stage = t % STAGES
        before = begin + t * CHUNK
        zero = opaque_zero(t)
        b_cos = b_cos_smem.index(zero)
        b_sin = b_sin_smem.index(zero)
        cos, sin = phases(origin + before + b_rows, angle_step)
        keep = before + b_rows < end
        if OUTPUT == "dv":
            cos = cos * inv_den
            sin = sin * inv_den
            weighted_selector(delta, selector_smem.index(zero), WARPS)
            next_rows = before + CHUNK + b_rows
            inv_den = gl.load(inv_den_ptr + vec_offset + next_rows, mask=next_rows < end, other=0.0)
            next_delta_rows = before + CHUNK + delta_rows
            delta = gl.load(delta_ptr + vec_offset + next_delta_rows, mask=next_delta_rows < end, other=0.0)
        else:
            if HAS_MASK:
                keep = mask_tile != 0
                mask_tile = gl.load(
                    key_mask_ptr + before + CHUNK + b_rows, mask=before + CHUNK + b_rows < end, other=0
                )
            if HAS_MASK or IS_VARLEN:
                cos = gl.where(keep, cos, 0.0)
                sin = gl.where(keep, sin, 0.0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_c = as_matrix(c_tiles.index(stage))
        if (HAS_MASK and OUTPUT == "o") or IS_VARLEN:
            if (HAS_MASK and OUTPUT == "o") or before + CHUNK > end:
                zero_rows(tile_c, keep, COALESCED)
        x = as_matrix(b_tiles.index(stage)).load(COALESCED)
        if HAS_MASK or IS_VARLEN or OUTPUT == "dv":
            b_cos.store(relu_phase_or_zero(x, cos))
            b_sin.store(relu_phase_or_zero(x, sin))
        else:
            b_cos.store(relu_phase(x, cos))
            b_sin.store(relu_phase(x, sin))
        fence_async_shared()
        s_cos, s_sin, z_cos, z_sin = add_to_state(
            b_cos, b_sin, tile_c, selector_smem.index(zero), s_cos, s_sin, z_cos, z_sin, True
        )
        s_cos, s_sin, z_cos, z_sin = warpgroup_mma_wait(num_outstanding=0, deps=[s_cos, s_sin, z_cos, z_sin])
        sync()
        if t + STAGES < chunks:
            token = row_start + before + STAGES * CHUNK
            tma_load_pair(
                b, c, b_tiles.index(stage), c_tiles.index(stage), bars.index(stage), batch, token, head
            )  # fmt: skip
    index = gl.where(slot >= 0, slot * HEADS + head, -1)
    store_state(h_ptr, index, s_cos, s_sin, z_cos, z_sin, D, DV, W, WARPS)
