"""Starts what documents.py has: the list of packed documents, and sums over its pieces."""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.hopper.cutting import CHUNK, of_full_list
from cosformer.ops.hopper.documents import CHAINED, COUNTED, EACH, LISTED, count_tiles, list_tiles
from cosformer.ops.hopper.tape import Tape


def list_documents(
    tape: Tape, cu: Tensor, tokens: int, pieces: int, grouped: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The list, as the float32 that an op keeps: with the same bits. `grouped`: without documents of one
    tile; and these in groups, and where the document of each token begins and ends."""
    documents = cu.shape[0] - 1
    length = of_full_list(tokens, documents)
    first, tiles = tape.empty((documents + 1,), torch.int32), tape.empty((length, 4))
    groups = bounds = None
    programs, more = -(-length // LISTED), -(-(pieces + 1) // LISTED)
    if grouped:
        groups, bounds = (tape.empty(n, torch.int32) for n in ((2, documents + 1, 2), (tokens, 2)))
        more += -(-tokens // LISTED)
    tape.launch(
        count_tiles, 1, cu, first, groups, documents, CHUNK=CHUNK, BLOCK=COUNTED, EACH=EACH, num_warps=4
    )
    tape.launch(
        list_tiles, programs + more, cu, first, tiles.view(torch.int32), bounds, documents, length, pieces,
        programs, tokens, CHUNK=CHUNK, BLOCK=LISTED, num_warps=4,
    )  # fmt: skip
    return tiles, None if groups is None or bounds is None else (groups, bounds)


def add_up(
    tape: Tape, kernel: Any, states: tuple[Tensor, ...], tiles: Tensor | None, pieces: int, most: int,
    **options: Any,
) -> None:  # fmt: skip
    """`chain` or `join`, for a list of so many pieces, `most` at most."""
    _, heads, size = states[0].shape
    most = 1 << (most - 1).bit_length()
    block = max(1, CHAINED // most)
    tape.launch(
        kernel, -(-size // block) * heads, *states, tiles, pieces, HEADS=heads, SIZE=size, CHUNK=CHUNK,
        MOST=most, BLOCK=block, num_warps=1, **options,
    )  # fmt: skip
