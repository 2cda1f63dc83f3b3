"""Rows of different lengths in flat files: written as a stream, read memory-mapped."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer.tasks.base import Row, Rows, row_number

Tokens = np.ndarray[Any, np.dtype[Any]]


class Ragged:
    """Rows of numbers, all in one memory-mapped file, with the place where each begins."""

    def __init__(self, folder: Path, name: str):
        (path,) = folder.glob(f"{name}.values.*")
        self.offsets: Tokens = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")
        dtype = np.dtype(path.suffix[1:])
        # An empty file cannot be mapped.
        self.values: Tokens = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int, limit: int | None = None) -> Tensor:
        """int64, cut off behind `limit`."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        if limit is not None:
            end = min(end, start + limit)
        return torch.from_numpy(self.values[start:end].astype(np.int64))


class RaggedWriter:
    """Appends rows to a file, so that no more than one of them is held in memory."""

    def __init__(self, folder: Path, name: str, largest: int):
        """`largest` is the greatest number that may come."""
        self.dtype = np.min_scalar_type(largest)
        self.folder, self.name = folder, name
        self.file = (folder / f"{name}.values.{self.dtype.name}").open("wb")
        self.ends = [0]

    def add(self, row: bytes | Tokens | list[int]) -> None:
        if isinstance(row, bytes):
            row = np.frombuffer(row, np.uint8)
        row = np.asarray(row, dtype=self.dtype)
        self.file.write(row.tobytes())  # tofile says nothing of a full disk
        self.ends.append(self.ends[-1] + len(row))

    def __enter__(self) -> "RaggedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        np.save(self.folder / f"{self.name}.offsets.npy", np.array(self.ends, dtype=np.int64))


def save_numbers(folder: Path, name: str, numbers: Iterable[float], dtype: Any) -> None:
    """A column of numbers, such as labels."""
    np.save(folder / f"{name}.npy", np.fromiter(numbers, dtype))


def load_numbers(folder: Path, name: str) -> Tokens:
    return np.load(folder / f"{name}.npy", mmap_mode="r")


class LabelledRows(Rows):
    """One sequence (or two) and a label for each row.

    Args:
        sequences: under the names of the model's arguments, as {"input_ids": ragged}.
        labels: [rows of the files]; float for a regression.
        length: the most tokens of a sequence; what is behind is left out.
        chosen: which rows of the files the split has, and in which order; None: all.
    """

    def __init__(
        self, sequences: dict[str, Ragged], labels: Tokens, length: int, chosen: Tokens | None = None
    ):
        self.sequences, self.labels, self.length = sequences, labels, length
        self.chosen = np.arange(len(labels)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Row:
        at = int(self.chosen[row_number(index, len(self))])
        row = {name: ragged.row(at, self.length) for name, ragged in self.sequences.items()}
        kind = torch.float32 if self.labels.dtype.kind == "f" else torch.int64
        return row | {"labels": torch.tensor(self.labels[at].item(), dtype=kind)}
