"""Two documents, and whether they belong together: what Retrieval and its stand-in share."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cosformer.ops.checks import positive_int
from cosformer.tasks.base import Row, Rows, Split, checked_split, row_number
from cosformer.tasks.io.ragged import Ragged, load_numbers
from cosformer.tasks.io.tokens import Bytes, Tokenised, Vocabulary
from cosformer.tasks.metrics import Accuracy


class PairRows(Rows):
    """Pairs of documents, each of which is stored once: [i] reads documents first[i] and second[i]."""

    def __init__(self, folder: Path, split: Split, length: int):
        self.documents, self.length = Ragged(folder, "documents"), length
        self.first = load_numbers(folder, f"{split}.first")
        self.second = load_numbers(folder, f"{split}.second")
        self.labels = load_numbers(folder, f"{split}.labels")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        return {
            "input_ids": self.documents.row(int(self.first[index]), self.length),
            "pair_input_ids": self.documents.row(int(self.second[index]), self.length),
            "labels": torch.tensor(int(self.labels[index])),
        }


def save_pairs(folder: Path, split: Split, pairs: Sequence[tuple[int, int, int]]) -> None:
    """(first document, second document, label) of each pair."""
    columns = np.array(pairs, np.int32).reshape(-1, 3).T
    for name, column in zip(("first", "second", "labels"), columns, strict=True):
        np.save(folder / f"{split}.{name}.npy", column)


@dataclass(frozen=True)
class DocumentPairs(Tokenised):
    """Two documents, each read by itself, byte by byte unless a task offers other tokens.

    Args:
        length: the most tokens of each document; what is behind is left out.
    """

    length: int = 4000

    head = "pair_classification"
    metric = Accuracy()
    num_labels = 2

    def __post_init__(self) -> None:
        positive_int("length", self.length)

    @property
    def _vocabulary(self) -> Vocabulary:
        return Bytes()

    @abstractmethod
    def folder(self, split: Split) -> Path:
        """Where the pairs of a split are cached."""

    def dataset(self, split: Split) -> PairRows:
        return PairRows(self.folder(checked_split(split)), split, self.length)

    def example(self) -> str:
        row = self.dataset("valid")[0]
        texts = [self._vocabulary.decode(row[name][:70].tolist()) for name in ("input_ids", "pair_input_ids")]
        return "\n".join([*(f"  text  {text!r} ..." for text in texts), f"labels  {int(row['labels'])}"])
