"""Launches the kernels of tile_list.py."""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.hopper.launch_plan import HopperLaunchPlan
from cosformer.ops.hopper.partition import CHUNK, tile_list_rows
from cosformer.ops.hopper.tile_list import (
    COUNT_BLOCK,
    DOCS_PER_LANE,
    LIST_BLOCK,
    SCAN_NUMBERS,
    count_tiles,
    list_tiles,
)


def make_tile_list(
    plan: HopperLaunchPlan, cu_seqlens: Tensor, tokens: int, splits: int, group_short: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The list, int32 viewed as float32 (the op keeps it for its backward with float32 states).
    `group_short`: without documents of one tile; these are returned in groups, with the bounds of each
    token's document."""
    documents = cu_seqlens.shape[0] - 1
    length = tile_list_rows(tokens, documents)
    first, tiles = plan.empty((documents + 1,), torch.int32), plan.empty((length, 4))
    groups = bounds = None
    tile_programs, more = -(-length // LIST_BLOCK), -(-(splits + 1) // LIST_BLOCK)
    if group_short:
        groups, bounds = (plan.empty(n, torch.int32) for n in ((2, documents + 1, 2), (tokens, 2)))
        more += -(-tokens // LIST_BLOCK)
    plan.launch(
        count_tiles, 1, cu_seqlens, first, groups, documents, CHUNK=CHUNK, BLOCK=COUNT_BLOCK,
        DOCS_PER_LANE=DOCS_PER_LANE, num_warps=4,
    )  # fmt: skip
    plan.launch(
        list_tiles, tile_programs + more, cu_seqlens, first, tiles.view(torch.int32), bounds, documents,
        length, splits, tile_programs, tokens, CHUNK=CHUNK, BLOCK=LIST_BLOCK, num_warps=4,
    )  # fmt: skip
    return tiles, None if groups is None or bounds is None else (groups, bounds)


def launch_over_splits(
    plan: HopperLaunchPlan, kernel: Any, states: tuple[Tensor, ...], tile_list: Tensor | None, splits: int,
    max_splits: int, **options: Any,
) -> None:  # fmt: skip
    """`tile_list_state_scan` or `tile_list_state_sum`, for a list of at most `max_splits` splits."""
    _, heads, size = states[0].shape
    max_splits = 1 << (max_splits - 1).bit_length()
    block = max(1, SCAN_NUMBERS // max_splits)
    plan.launch(
        kernel, -(-size // block) * heads, *states, tile_list, splits, HEADS=heads, SIZE=size, CHUNK=CHUNK,
        MAX_SPLITS=max_splits, BLOCK=block, num_warps=1, **options,
    )  # fmt: skip
