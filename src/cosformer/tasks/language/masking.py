"""Documents packed to rows of one length, and masks that are sampled in each epoch."""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cosformer.tasks.base import Row, Rows, row_number
from cosformer.tasks.io.ragged import Ragged
from cosformer.tasks.io.tokens import Vocabulary

Array = np.ndarray[Any, np.dtype[Any]]


def packed(offsets: Array, length: int) -> list[list[tuple[int, int]]]:
    """Rows of at most `length` tokens, each a list of pieces (first, behind the last) of the documents at
    offsets.

    A document that fits into a row is never cut; a longer one is cut into full rows and a rest. Pieces are
    put, longest first, where the least room is left that will do, so that little remains empty.
    """
    pieces = [
        (at, min(at + length, end))
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        for at in range(start, end, length)
    ]
    pieces.sort(key=lambda piece: (piece[0] - piece[1], piece[0]))
    rows: list[list[tuple[int, int]]] = []
    rooms: list[int] = []  # sorted: what is left in rows that are not full
    with_room: dict[int, list[int]] = {}
    for start, end in pieces:
        size = end - start
        at = bisect_left(rooms, size)
        if at == len(rooms):
            row, room = len(rows), length
            rows.append([])
        else:
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                del rooms[at], with_room[room]
        rows[row].append((start, end))
        room -= size
        if room and room not in with_room:
            insort(rooms, room)
        if room:
            with_room.setdefault(room, []).append(row)
    return rows


class MaskedRows(Rows):
    """Rows of packed documents; a share of their tokens is hidden, and to be found again.

    Which ones (`hide`) follows from (seed, epoch, index) and nothing else; the epoch lies in shared memory,
    so that a loader's workers know it.

    A row has input_ids, labels and position_ids, which begin at 0 with each document, and again with the
    padding behind the last one.
    """

    def __init__(
        self,
        documents: Ragged,
        vocabulary: Vocabulary,
        length: int,
        probability: float,
        seed: int,
        fixed: bool,
    ):
        self.documents, self.vocabulary, self.length = documents, vocabulary, length
        self.probability, self.seed, self.fixed = probability, seed, fixed
        self.pieces = packed(documents.offsets, length)
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.pieces)

    def set_epoch(self, epoch: int) -> None:
        """Other masks for the training rows; those of valid and test stay."""
        if not self.fixed:
            self.epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        pieces = self.pieces[index]
        parts = [self.documents.values[start:end].astype(np.int64) for start, end in pieces]
        padding = self.length - sum(len(part) for part in parts)
        positions = [np.arange(size) for size in (*(len(part) for part in parts), padding)]
        ids = np.concatenate([*parts, np.full(padding, self.vocabulary.pad)])
        first, last = self.vocabulary.ordinary
        rng = np.random.default_rng([self.seed, int(self.epoch), index])
        hidden, labels = hide(
            ids, np.flatnonzero((ids >= first) & (ids < last)), self.probability, self.vocabulary.mask,
            lambda count: rng.integers(first, last, count), rng,
        )  # fmt: skip
        return {
            "input_ids": torch.from_numpy(hidden),
            "labels": torch.from_numpy(labels),
            "position_ids": torch.from_numpy(np.concatenate(positions)),
        }


def hide(
    ids: Array, text: Array, probability: float, mask: int, other: Callable[[int], Array],
    rng: np.random.Generator,
) -> tuple[Array, Array]:  # fmt: skip
    """Hides a share of the tokens at the places `text` of a row, and returns it with its labels: 80 % of them
    become the token `mask`, 10 % one of `other(count)`, 10 % stay (Devlin et al., 2018)."""
    labels = np.full_like(ids, -100)
    # The share is met on average to the token; a row without a single label would have no loss.
    count = min(len(text), max(1, int(probability * len(text) + rng.random())))
    chosen = rng.choice(text, count, replace=False)
    labels[chosen] = ids[chosen]
    kind = rng.random(count)
    hidden = ids.copy()
    hidden[chosen[kind < 0.8]] = mask
    changed = chosen[kind >= 0.9]
    hidden[changed] = other(len(changed))
    return hidden, labels
