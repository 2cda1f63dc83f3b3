"""Prefix sums of the states of splits: what each split starts from, and the sum over a row.

Each program takes BLOCK numbers of one head's state and goes through all splits of one row.
"""

import triton
import triton.language as tl
from torch import Tensor

from cosformer.ops.gpu.carried_state import NO_STATE, State
from cosformer.ops.gpu.launch_plan import LaunchPlan
from cosformer.ops.gpu.partition import Splits

BLOCK = 256  # numbers of a state a program sums


@triton.jit
def _state_pointers(
    h_ptr, slot, i, count, head, n, HEADS: tl.constexpr, SIZE: tl.constexpr, REVERSE: tl.constexpr
):
    if REVERSE:
        i = count - 1 - i
    return h_ptr + ((slot + i).to(tl.int64) * HEADS + head) * SIZE + n


@triton.jit
def _store_prefix(h_prefix, slot, i, count, subdivision, head, n, total, in_state, HEADS: tl.constexpr,
SIZE: tl.constexpr,
          REVERSE: tl.constexpr):  # fmt: skip
    """The sum before split i, if i is the first of `subdivision` splits."""
    pointers = _state_pointers(
        h_prefix, slot // subdivision, i // subdivision, count // subdivision, head, n, HEADS, SIZE, REVERSE
    )
    tl.store(pointers, total, mask=in_state & (i < count) & (i % subdivision == 0))


@triton.jit(do_not_specialize=["splits_per_row", "subdivision"])
def state_scan(
    h_ptr, h_prefix, h0, z0, ht, zt, doc_first_split, split_slot, splits_per_row, subdivision, h0_stride,
    z0_stride, ht_stride,
    zt_stride,
    HEADS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, IS_VARLEN: tl.constexpr,
    USE_INITIAL_STATE: tl.constexpr,
    STORE_FINAL_STATE: tl.constexpr, STORE_PREFIX: tl.constexpr, REVERSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h [slots, HEADS, 2 D (Dv + 1)]: S, then z, of each split. STORE_PREFIX: h0 plus the states before each
    split (after it, if REVERSE) goes to h_prefix, which may be h; of every `subdivision` splits, the first
    only. STORE_FINAL_STATE: the sum over all goes to ht, zt.

    Prefixes are never computed by subtracting a split from a total: queries that attend to no key give a
    state that is a million times larger (1 / eps) than its neighbours.
    """
    MATRIX: tl.constexpr = 2 * D * DV
    SIZE: tl.constexpr = MATRIX + 2 * D
    STATE_BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    head = pid // STATE_BLOCKS % HEADS
    row = pid // (STATE_BLOCKS * HEADS)
    if IS_VARLEN:
        first = tl.load(doc_first_split + row)
        count = tl.load(doc_first_split + row + 1) - first
        slot = tl.load(split_slot + first, mask=count > 0, other=0)
        count = tl.where(slot >= 0, count, 0)
    else:
        slot = row * splits_per_row
        count = splits_per_row
    n = pid % STATE_BLOCKS * BLOCK + tl.arange(0, BLOCK)
    in_matrix = n < MATRIX
    in_vector = (n >= MATRIX) & (n < SIZE)
    index = (row * HEADS + head).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    if USE_INITIAL_STATE:
        total += tl.load(h0 + index * h0_stride + n, mask=in_matrix, other=0.0)
        total += tl.load(z0 + index * z0_stride + n - MATRIX, mask=in_vector, other=0.0)
    in_state = n < SIZE
    for i in range(0, count, 4):  # four loads in flight
        p0 = _state_pointers(h_ptr, slot, i, count, head, n, HEADS, SIZE, REVERSE)
        p1 = _state_pointers(h_ptr, slot, i + 1, count, head, n, HEADS, SIZE, REVERSE)
        p2 = _state_pointers(h_ptr, slot, i + 2, count, head, n, HEADS, SIZE, REVERSE)
        p3 = _state_pointers(h_ptr, slot, i + 3, count, head, n, HEADS, SIZE, REVERSE)
        x0 = tl.load(p0, mask=in_state, other=0.0)
        x1 = tl.load(p1, mask=in_state & (i + 1 < count), other=0.0)
        x2 = tl.load(p2, mask=in_state & (i + 2 < count), other=0.0)
        x3 = tl.load(p3, mask=in_state & (i + 3 < count), other=0.0)
        if STORE_PREFIX:
            y1 = total + x0
            y2 = y1 + x1
            _store_prefix(
                h_prefix, slot, i, count, subdivision, head, n, total, in_state, HEADS, SIZE, REVERSE
            )
            _store_prefix(
                h_prefix, slot, i + 1, count, subdivision, head, n, y1, in_state, HEADS, SIZE, REVERSE
            )
            _store_prefix(
                h_prefix, slot, i + 2, count, subdivision, head, n, y2, in_state, HEADS, SIZE, REVERSE
            )
            _store_prefix(
                h_prefix, slot, i + 3, count, subdivision, head, n, y2 + x2, in_state, HEADS, SIZE, REVERSE
            )
        total = total + x0 + x1 + x2 + x3
    if STORE_FINAL_STATE:
        tl.store(ht + index * ht_stride + n, total, mask=in_matrix)
        tl.store(zt + index * zt_stride + n - MATRIX, total, mask=in_vector)


def launch_state_scan(
    plan: LaunchPlan, states: Tensor, splits: Splits, initial_state: State | None, final_state: State | None,
    rows: int, dims: tuple[int, int], *, prefixes: Tensor | None = None, reverse: bool = False,
    subdivision: int = 1,
) -> None:  # fmt: skip
    """`states` [slots, heads, 2 D (Dv + 1)] of `splits`, which have `subdivision` splits for each one that
    `prefixes` has a state for."""
    heads, h0, ht = states.shape[1], initial_state or NO_STATE, final_state or NO_STATE
    plan.launch(
        state_scan, -(-states.shape[-1] // BLOCK) * heads * rows,
        states, prefixes, *h0[:2], *ht[:2], splits.doc_first_split, splits.split_slot, splits.per_row,
        subdivision, *h0[2:], *ht[2:], HEADS=heads, D=dims[0], DV=dims[1],
        IS_VARLEN=splits.cu_seqlens is not None, USE_INITIAL_STATE=initial_state is not None,
        STORE_FINAL_STATE=final_state is not None, STORE_PREFIX=prefixes is not None, REVERSE=reverse,
        BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
