"""How sequences are cut into pieces, so that few long ones keep the whole GPU at work."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# Tokens: below this a piece's state weighs as much as its rows.
SHORTEST = 256
# Programs a multiprocessor: a row is cut where they stay below, into as many pieces as do not exceed it
# (one more, and the last would run alone after all others). A walk holds so many registers that two fit.
WALKS = 2
SUMS = 3  # programs that sum up states, which hold fewer
ROWS = 8  # applying a state takes few
_MULTIPROCESSORS = 128  # where there is no GPU to ask


@dataclass(frozen=True)
class Pieces:
    """`size` tokens a piece, `each` pieces a row, `count` of them in all, `slots` with a state.

    With packing (`cu` [N+2], its last bound twice) tables say for each piece which document it belongs
    to and which slot its state has (-1: none), and for each document which piece is its first. They
    are made on the device, from bounds nobody has to look at: pieces that are not there have no rows.
    """

    size: int
    each: int
    count: int
    slots: int
    cu: Tensor | None = None
    document: Tensor | None = None
    first: Tensor | None = None
    slot: Tensor | None = None

    @property
    def tables(self) -> tuple[Tensor | None, ...]:
        return self.cu, self.document, self.first, self.slot

    @property
    def single(self) -> bool:
        """Every row is one piece."""
        return self.cu is None and self.each == 1

    def divided(self, parts: int) -> "Pieces":
        """The same tokens in so many times as many pieces."""
        if parts == 1:
            return self
        return Pieces(self.size // parts, self.each * parts, self.count * parts, self.slots * parts)


def size_of_pieces(rows: int, length: int, programs: int, wanted: int, device: torch.device) -> int:
    """Tokens, when a piece keeps so many programs busy and a multiprocessor wants so many."""
    n = torch.sym_min(
        wanted * multiprocessors(device) // torch.sym_max(1, rows * programs), length // SHORTEST
    )
    return -(-length // n // 64) * 64 if n > 1 else torch.sym_max(1, length)


def parts_of(pieces: Pieces, heads: int, programs: int) -> int:
    """How many states are summed up for each piece of a walk, so that as many programs as fit (`programs`) do
    so: the last piece of a row has no need of its own."""
    parts, there = 1, pieces.count - pieces.count // max(1, pieces.each)
    while (
        pieces.cu is None and 2 * parts * there * heads <= programs
        and pieces.size % (2 * parts * 64) == 0 and pieces.size // (2 * parts) >= SHORTEST
    ):  # fmt: skip
        parts *= 2
    return parts


def states_to_keep(rows: int, length: int, heads: int, device: torch.device) -> int:
    """How many pieces of a walk have states that its backward needs again; none where nothing is cut.
    Sizes may be symbolic: a compiled graph asks before there are any."""
    if 2 * rows * heads > WALKS * multiprocessors(device) or length < 2 * SHORTEST:
        return 0
    return rows * -(-length // size_of_pieces(rows, length, heads, WALKS, device))


def cut(rows: int, length: int, size: int) -> Pieces:
    each = max(1, -(-length // size))
    return Pieces(size, each, rows * each, rows * each)


def cut_documents(cu_seqlens: Tensor, length: int, size: int, every: bool) -> Pieces:
    """`every`: each piece has a state, not only those of documents of several pieces. All tables are int32,
    whatever the bounds are: some kernels are compiled once for both."""
    documents = cu_seqlens.shape[0] - 1
    count = length // size + documents
    n = (cu_seqlens.diff() + (size - 1)) // size
    first = torch.cat((n.new_zeros(1), n.cumsum(0)))
    piece = torch.arange(count, device=n.device)
    document = torch.searchsorted(first[1:], piece, right=True)
    has = document < documents
    if not every:
        has = has & (n[document.clamp_max(documents - 1)] > 1)
    slot = torch.where(has, piece if every else has.cumsum(0) - 1, -1)
    return Pieces(
        size, 0, count, count if every else min(count, 2 * length // size + 1),
        torch.cat((cu_seqlens, cu_seqlens[-1:])).int(), document.int(), first.int(), slot.int(),
    )  # fmt: skip


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
