"""Fine-tuning: a sentence, or two, and what is to be said about them. What the tasks of this kind share."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from cosformer.ops.checks import flag, positive_int
from cosformer.tasks import cache, sources
from cosformer.tasks.base import Row, Split, Task, checked_split, sequences
from cosformer.tasks.ragged import LabelledRows, Ragged, RaggedWriter, load_numbers, save_numbers
from cosformer.tasks.tokens import Vocabulary, vocabulary
from cosformer.tasks.tokens import checked as checked_tokens
from cosformer.tasks.tokens import identity as tokens_identity

Part = Literal["train", "test"]
_MOST_HELD_OUT = 5_000


def held_out(rows: int, share: float, split: Split) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The rows of the official training part that are train, and those that are valid: always the same ones.
    Test is the other part, whole (None)."""
    if split == "test":
        return None
    count = max(1, min(round(rows * share), _MOST_HELD_OUT))
    order = np.random.default_rng(0).permutation(rows)
    return np.sort(order[:count] if split == "valid" else order[count:])


def checked_share(share: Any) -> None:
    if not isinstance(share, float) or not 0 < share < 1:
        raise ValueError(
            f"held_out must be a share of the training rows, between 0 and 1, but got {share!r}."
        )


@dataclass(frozen=True)
class FineTuning(Task):
    """Sequences <bos> text <eos>, or <bos> text <sep> second text <eos>, and a label.

    The official labels of test are mostly secret. So valid is held out from the official training rows,
    always the same, and test is the official development set, on which published figures are mostly given.

    Args:
        length: the most tokens; of two texts, the longer one is cut first.
        tokens: "bytes", or "bpe": byte-pair encoding, as `mlm` has it with the same settings.
        bpe_size: its tokens.
        bpe_corpus: what it is learned from.
        held_out: the share of the official training rows that is valid, at most 5,000 rows.
        official: whether the files must have the official counts.
    """

    length: int = 512
    tokens: str = "bytes"
    bpe_size: int = 16_384
    bpe_corpus: str = "wikitext2"
    held_out: float = 0.1
    official: bool = True

    head = "classification"
    texts: ClassVar[int] = 1
    counts: ClassVar[dict[Part, tuple[int, ...]]] = {}

    def __post_init__(self) -> None:
        if positive_int("length", self.length) < 8:
            raise ValueError(f"length must be at least 8, but got {self.length}.")
        checked_tokens(self.tokens, self.bpe_size)
        flag("official", self.official)
        checked_share(self.held_out)

    @abstractmethod
    def path(self, part: Part) -> Path:
        """The file of the official training part, or of the one that is tested on."""

    @abstractmethod
    def records(self, part: Part) -> Iterator[tuple[tuple[str, ...], float]]:
        """Texts and label of each row of a part."""

    def count(self, part: Part) -> tuple[int, ...]:
        """How many rows a part officially has; empty where nothing is official."""
        return self.counts.get(part, ())

    @property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary(self.tokens, self.bpe_size, self.bpe_corpus)

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def pad_token_id(self) -> int:
        return self._vocabulary.pad

    def dataset(self, split: Split) -> LabelledRows:
        part: Part = "test" if checked_split(split) == "test" else "train"
        key = {
            "version": 1,
            "part": part,
            "file": sources.identity(self.path(part)),
            "tokens": tokens_identity(self.tokens, self.bpe_size, self.bpe_corpus),
            "length": self.length,
            "official": self.official,
        }
        folder = cache.entry(self.name, key, partial(_build, self, part))
        labels = load_numbers(folder, "labels")
        chosen = held_out(len(labels), self.held_out, split)
        return LabelledRows({"input_ids": Ragged(folder, "texts")}, labels, self.length, chosen)

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return sequences(rows, self.pad_token_id, self.length)

    def example(self) -> str:
        texts, label = next(self.records("train"))
        return "\n".join([*(f"  text  {text!r}" for text in texts), f"labels  {label}"])


def _build(task: FineTuning, part: Part, folder: Path) -> None:
    vocabulary, labels = task._vocabulary, []

    def texts() -> Iterator[str]:
        for row, label in task.records(part):
            labels.append(label)
            yield from row

    encoded = vocabulary.encode(texts())
    with RaggedWriter(folder, "texts", vocabulary.vocab_size) as writer:
        for first in encoded:
            pair = [first, next(encoded)] if task.texts == 2 else [first]
            writer.add(_framed(pair, vocabulary, task.length))
    sources.counted(task.path(part), len(labels), task.count(part) if task.official else ())
    save_numbers(folder, "labels", labels, np.float32 if task.num_labels == 1 else np.uint8)


def _framed(texts: list[list[int]], vocabulary: Vocabulary, length: int) -> list[int]:
    room = length - 1 - len(texts)
    if len(texts) == 1:
        return [vocabulary.bos, *texts[0][:room], vocabulary.eos]
    first, second = texts
    first = first[: max(room - len(second), room - room // 2)]
    return [vocabulary.bos, *first, vocabulary.sep, *second[: room - len(first)], vocabulary.eos]
