"""Starts what documents.py has: the list of packed documents, and sums over its pieces."""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.hopper.documents import CHAINED, COUNTED, EACH, LISTED, count_tiles, list_tiles
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan
from cosformer.ops.hopper.partition import CHUNK, tile_list_rows


def list_documents(
    plan: HopperLaunchPlan, cu: Tensor, tokens: int, pieces: int, grouped: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The list, as the float32 that an op keeps: with the same bits. `grouped`: without documents of one
    tile; and these in groups, and where the document of each token begins and ends."""
    documents = cu.shape[0] - 1
    length = tile_list_rows(tokens, documents)
    first, tiles = plan.empty((documents + 1,), torch.int32), plan.empty((length, 4))
    groups = bounds = None
    programs, more = -(-length // LISTED), -(-(pieces + 1) // LISTED)
    if grouped:
        groups, bounds = (plan.empty(n, torch.int32) for n in ((2, documents + 1, 2), (tokens, 2)))
        more += -(-tokens // LISTED)
    plan.launch(
        count_tiles, 1, cu, first, groups, documents, CHUNK=CHUNK, BLOCK=COUNTED, EACH=EACH, num_warps=4
    )
    plan.launch(
        list_tiles, programs + more, cu, first, tiles.view(torch.int32), bounds, documents, length, pieces,
        programs, tokens, CHUNK=CHUNK, BLOCK=LISTED, num_warps=4,
    )  # fmt: skip
    return tiles, None if groups is None or bounds is None else (groups, bounds)


def add_up(
    plan: HopperLaunchPlan, kernel: Any, states: tuple[Tensor, ...], tiles: Tensor | None, pieces: int,
    most: int,
    **options: Any,
) -> None:  # fmt: skip
    """`chain` or `join`, for a list of so many pieces, `most` at most."""
    _, heads, size = states[0].shape
    most = 1 << (most - 1).bit_length()
    block = max(1, CHAINED // most)
    plan.launch(
        kernel, -(-size // block) * heads, *states, tiles, pieces, HEADS=heads, SIZE=size, CHUNK=CHUNK,
        MOST=most, BLOCK=block, num_warps=1, **options,
    )  # fmt: skip
