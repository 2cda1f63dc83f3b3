"""One token a row, for heads with a window: the last W - 1 keys and values are read once, moved up by one
place, and written once.

    o = sum_r c(W - 1 - r) (q' . k'_r) v_r / max(sum_r c(W - 1 - r) (q' . k'_r), eps)       r = 0 ... W - 1

where rows 0 ... W - 2 are those stored, the oldest first, and row W - 1 is the new token. One program takes
one key head of one row, and BR places at a time from the oldest on: what it has read it writes one place
further up, so a tile overwrites the last place of the tile before it and its own, which have been read. A
window of up to SMALL places is one tile of that many.
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import phases, relu


@triton.jit
def places(KEYS, r, columns, last, new, WIDTH: tl.constexpr):
    """A tile of what is stored, the new token behind it, in their own type."""
    stored = tl.load(
        KEYS + r.to(tl.int64)[:, None] * WIDTH + columns[None, :],
        mask=(r < last)[:, None] & (columns < WIDTH)[None, :], other=0.0,
    )  # fmt: skip
    return tl.where((r == last)[:, None], new[None, :], stored)


@triton.jit
def move_up(KEYS, r, columns, last, tile, WIDTH: tl.constexpr):
    tl.store(
        KEYS + (r.to(tl.int64) - 1)[:, None] * WIDTH + columns[None, :], tile,
        mask=((r >= 1) & (r <= last))[:, None] & (columns < WIDTH)[None, :],
    )  # fmt: skip


@triton.jit
def attend(
    Q, OUT, KEYS, VALUES, new_k, new_v, window, eps, q_h, o_h, GROUP: tl.constexpr, GROUPS: tl.constexpr,
    D: tl.constexpr, DV: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One key head of one row, all queries of its group."""
    last = window - 1
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    groups = tl.arange(0, GROUPS)
    acc = tl.zeros((GROUPS, BV), tl.float32)
    total = tl.zeros((GROUPS,), tl.float32)
    for i in range(tl.cdiv(window, BR)):
        r = i * BR + tl.arange(0, BR)
        k = places(KEYS, r, of_d, last, new_k, D)
        v = places(VALUES, r, of_v, last, new_v, DV)
        c, _ = phases(tl.where(r <= last, last - r, window), window.to(tl.float32), tl.float32)
        rectified = relu(k)
        wide_v = v.to(tl.float32)
        for g in range(GROUP):
            q = relu(tl.load(Q + g * q_h + of_d, mask=of_d < D, other=0.0))
            w = tl.sum(rectified * q[None, :], 1) * c
            mine = groups == g
            total += tl.where(mine, tl.sum(w, 0), 0.0)
            acc += tl.where(mine[:, None], tl.sum(w[:, None] * wide_v, 0)[None, :], 0.0)
        tl.debug_barrier()  # every thread has read its part of the tile
        move_up(KEYS, r, of_d, last, k, D)
        move_up(VALUES, r, of_v, last, v, DV)
    acc *= (1.0 / tl.maximum(total, eps, propagate_nan=tl.PropagateNan.ALL))[:, None]
    to = OUT + groups[:, None] * o_h + of_v[None, :]
    tl.store(to, acc.to(OUT.dtype.element_ty), mask=(groups < GROUP)[:, None] & (of_v < DV)[None, :])


@triton.jit(do_not_specialize=["heads", "mask_stride"])
def window_step(
    Q, K, V, OUT, KEYS, VALUES, MASK, TABLE, heads, eps, q_b, q_h, k_b, k_h, v_b, v_h, o_b, o_h, keys_b,
    values_b, mask_stride, GROUP: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    MASKED: tl.constexpr, BR: tl.constexpr, SMALL: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """KEYS [B, R, D] and VALUES [B, R, DV]; TABLE [n, 3]: key head, window, and first place of each of n =
    `heads` heads, the longest windows first, so that the programs that begin last are short. GROUPS: the
    power of two from GROUP on."""
    pid = tl.program_id(0).to(tl.int64)
    batch = tl.num_programs(0) // heads
    entry = pid // batch
    row = pid % batch
    head = tl.load(TABLE + 3 * entry).to(tl.int64)
    window = tl.load(TABLE + 3 * entry + 1)
    place = tl.load(TABLE + 3 * entry + 2).to(tl.int64)
    of_d = tl.arange(0, BD)
    of_v = tl.arange(0, BV)
    there = tl.load(MASK + row * mask_stride) != 0 if MASKED else True
    new_k = tl.load(K + row * k_b + head * k_h + of_d, mask=(of_d < D) & there, other=0.0)
    new_v = tl.load(V + row * v_b + head * v_h + of_v, mask=(of_v < DV) & there, other=0.0)
    KEYS += row * keys_b + place * D
    VALUES += row * values_b + place * DV
    Q += row * q_b + head * GROUP * q_h
    OUT += row * o_b + head * GROUP * o_h
    if window <= SMALL:
        attend(
            Q, OUT, KEYS, VALUES, new_k, new_v, window, eps, q_h, o_h, GROUP, GROUPS, D, DV, SMALL, BD, BV
        )  # fmt: skip
    else:
        attend(
            Q, OUT, KEYS, VALUES, new_k, new_v, window, eps, q_h, o_h, GROUP, GROUPS, D, DV, BR, BD, BV
        )  # fmt: skip
