"""What a task is: data, a metric and the kind of head. It holds no loop and knows no model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cosformer.tasks.metrics import Metric

Split = Literal["train", "valid", "test"]
Head = Literal["causal_lm", "masked_lm", "classification", "pair_classification", "conditional_generation"]
Row = dict[str, Tensor]

SPLITS: tuple[Split, ...] = get_args(Split)


class Rows(Dataset[Row], ABC):
    """The examples of a split by number: the same row each time, memory-mapped or cut from one tensor."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Row: ...

    def set_epoch(self, epoch: int) -> None:
        """Rows that change from epoch to epoch (random masks) follow from (seed, epoch, index)
        alone; all others stay as they are."""

    def columns(self) -> dict[str, Tensor] | None:
        """All rows as one batch, integers as narrow as they may be, where that is made faster than row by
        row; else None."""
        return None


class Task(ABC):
    """A frozen dataclass of settings, all with defaults.

    Attributes:
        name: in the registry.
        title: for tables and plots.
        head: the kind of model; a regression is a classification with one label.
        metric: how a split is scored.
        vocab_size: tokens, padding included.
        num_labels: classes, 1 for a regression, None for language models.
        length: the most tokens an example has.
        pad_token_id: None where no row is ever padded.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @property
    def tokenizer(self) -> Any:
        """Of transformers, kept beside the weights of a language model; None where there is none to keep."""
        return None

    @property
    @abstractmethod
    def head(self) -> Head: ...

    @property
    @abstractmethod
    def metric(self) -> Metric: ...

    @property
    @abstractmethod
    def vocab_size(self) -> int: ...

    @property
    @abstractmethod
    def num_labels(self) -> int | None: ...

    @property
    @abstractmethod
    def length(self) -> int: ...

    @property
    @abstractmethod
    def pad_token_id(self) -> int | None: ...

    @abstractmethod
    def dataset(self, split: Split) -> Rows:
        """The examples of a split; a missing or damaged file raises `DataError`."""

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Rows as one batch: the keyword arguments of the model's forward, labels included."""
        return stacked(rows) if self.pad_token_id is None else sequences(rows, self.pad_token_id, self.length)

    @abstractmethod
    def example(self) -> str:
        """One row, as text."""


def checked_split(split: Any) -> Split:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, but got {split!r}.")
    return split


def row_number(index: int, count: int) -> int:
    """An index as a list would take it."""
    if not -count <= index < count:
        raise IndexError(f"row {index} was asked for, but the split has {count} rows.")
    return index % count


def stacked(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Rows of the same lengths as one batch."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def padded(columns: Sequence[Tensor], value: int, limit: int, multiple: int = 8) -> tuple[Tensor, Tensor]:
    """Tensors [T_i] as one [B, T], padded on the right, and the mask int64 [B, T] of what is real.

    T is the greatest T_i rounded up to a multiple, which kernels like; but at most `limit`.
    """
    longest = max(len(c) for c in columns)
    width = max(longest, min(limit, -(-longest // multiple) * multiple))
    out = torch.full((len(columns), width), value, dtype=columns[0].dtype)
    mask = torch.zeros(len(columns), width, dtype=torch.int64)
    for i, column in enumerate(columns):
        out[i, : len(column)] = column
        mask[i, : len(column)] = 1
    return out, mask


def sequences(rows: Sequence[Row], pad: int, limit: int) -> dict[str, Tensor]:
    """Rows with a sequence, or two of them, and a label: padded, with their masks."""
    batch = {"labels": torch.stack([row["labels"] for row in rows])}
    for name in ("input_ids", "pair_input_ids"):
        if name in rows[0]:
            ids, mask = padded([row[name] for row in rows], pad, limit)
            batch |= {name: ids, name.replace("input_ids", "attention_mask"): mask}
    return batch
