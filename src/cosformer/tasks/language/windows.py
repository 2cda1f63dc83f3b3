"""A text as windows of a fixed length, for models that predict the next token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer.tasks.base import Row, Rows, padded, row_number, stacked

Stream = np.ndarray[Any, np.dtype[Any]]


class Windows(Rows):
    """Windows over a stream of tokens, which may be memory-mapped. Every token is predicted exactly once:
    the first one too, from a token put before the stream; and those of the last window, however short it is.

        stream a b c d e f g, start <, length 4, overlap 1

        input_ids   < a b c     c d e f     f g
        labels      . a b c     . d e f     . g        (. is -100)

    Args:
        stream: int [N].
        start: the token before it.
        length: tokens of a window.
        overlap: tokens that a window shares with the one before, and does not predict: at least the one
            from which its first prediction is made. More of them give each prediction more to go by.
    """

    def __init__(self, stream: Stream, start: int, length: int, overlap: int = 1):
        if not 1 <= overlap < length:
            raise ValueError(f"overlap must be at least 1 and below length {length}, but got {overlap}.")
        self.stream, self.start, self.length, self.overlap = stream, start, length, overlap

    def __len__(self) -> int:
        return max(0, -(-(len(self.stream) + 1 - self.overlap) // (self.length - self.overlap)))

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        begin = index * (self.length - self.overlap)
        # Column 0 of the whole is the token before the stream, so column c is the stream's c - 1.
        own = self.stream[max(0, begin - 1) : begin - 1 + self.length].astype(np.int64)
        ids = torch.from_numpy(own if index else np.concatenate([[self.start], own]))
        labels = ids.clone()
        labels[: self.overlap if index else 1] = -100
        return {"input_ids": ids, "labels": labels}

    def columns(self) -> dict[str, Tensor] | None:
        """As `collate_windows` makes them of all rows; int16 [N, length], or bytes where the stream is."""
        if not len(self) or np.iinfo(self.stream.dtype).max > np.iinfo(np.int16).max:
            return None
        step = self.length - self.overlap
        whole = np.zeros((len(self) - 1) * step + self.length, self.stream.dtype)
        whole[0] = self.start
        whole[1 : len(self.stream) + 1] = self.stream
        ids = np.lib.stride_tricks.sliding_window_view(whole, self.length)[::step]
        labels = ids.astype(np.int16)
        labels[:, : self.overlap] = -100
        labels[0, 1 : self.overlap] = ids[0, 1 : self.overlap]
        labels[-1, len(self.stream) + 1 - (len(self) - 1) * step :] = -100
        return {"input_ids": torch.from_numpy(ids.copy()), "labels": torch.from_numpy(labels)}


def collate_windows(rows: Sequence[Row], length: int) -> dict[str, Tensor]:
    """Rows of one length, or padded on the right: there a causal model's tokens do not see it, so that no
    mask is needed."""
    if len({len(row["input_ids"]) for row in rows}) == 1:
        return stacked(rows)
    return {
        "input_ids": padded([row["input_ids"] for row in rows], 0, length)[0],
        "labels": padded([row["labels"] for row in rows], -100, length)[0],
    }
