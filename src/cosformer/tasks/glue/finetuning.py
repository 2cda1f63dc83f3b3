"""Shared by the fine-tuning tasks: one sentence or two, and a label or a score."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from cosformer.ops.checks import flag, positive_int
from cosformer.tasks.base import Head, Split, checked_split
from cosformer.tasks.io import cache, sources
from cosformer.tasks.io.ragged import LabelledRows, Ragged, RaggedWriter, load_numbers, save_numbers
from cosformer.tasks.io.tokens import Tokenised, Vocabulary, vocabulary
from cosformer.tasks.io.tokens import checked as checked_tokens
from cosformer.tasks.io.tokens import identity as tokens_identity

Part = Literal["train", "test"]
FOLDS = 5
_MOST_HELD_OUT = 5_000


def held_out(
    rows: int, share: float, split: Split, fold: int | None = None
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The rows of the official training part that are train, and those that are valid: always the same ones.
    Test is the other part, whole (None); with a fold, it is that one of the folds of the training part, and
    the others are train and valid."""
    order = np.random.default_rng(0).permutation(rows)
    if fold is not None:
        if split == "test":
            return np.sort(order[fold::FOLDS])
        order = np.delete(order, np.s_[fold::FOLDS])
    elif split == "test":
        return None
    count = max(1, min(round(len(order) * share), _MOST_HELD_OUT))
    return np.sort(order[:count] if split == "valid" else order[count:])


def checked_share(share: Any) -> None:
    if not isinstance(share, float) or not 0 < share < 1:
        raise ValueError(
            f"held_out must be a share of the training rows, between 0 and 1, but got {share!r}."
        )


def _checked_fold(fold: Any) -> None:
    if fold is not None and (type(fold) is not int or not 0 <= fold < FOLDS):
        raise ValueError(
            f"fold must be a number from 0 to {FOLDS - 1}, or None for the official parts, but got {fold!r}."
        )


@dataclass(frozen=True)
class FineTuning(Tokenised):
    """Sequences <bos> text <eos>, or <bos> text <sep> second text <eos>, and a label.

    Two texts may also be read apart, <bos> text <eos> each, by the same model, with a classifier over both:
    so the baselines of GLUE compare them (Wang et al., 2018, arXiv:1804.07461).

    The official labels of test are mostly secret. So valid is held out from the official training rows,
    always the same, and test is the official development set, on which published figures are mostly given.

    Args:
        length: the most tokens; of two texts, the longer one is cut first. Read apart, each has this length.
        tokens: "bytes", or "bpe": byte-pair encoding, as `mlm` has it with the same settings.
        bpe_size: its tokens.
        bpe_corpus: what it is learned from.
        held_out: the share of the official training rows (with a fold: of those left) that is valid, at most
            5,000 rows.
        official: whether the files must have the official counts.
        apart: read two texts apart.
        fold: for cross-validation, where the development set is too small to tell anything: test is this
            fifth of the official training rows (0 to 4), and train and valid are what is left of them.
    """

    length: int = 512
    tokens: str = "bytes"
    bpe_size: int = 16_384
    bpe_corpus: str = "wikitext2"
    held_out: float = 0.1
    official: bool = True
    apart: bool = False
    fold: int | None = None

    texts: ClassVar[int] = 1
    counts: ClassVar[dict[Part, tuple[int, ...]]] = {}

    def __post_init__(self) -> None:
        if positive_int("length", self.length) < 8:
            raise ValueError(f"length must be at least 8, but got {self.length}.")
        checked_tokens(self.tokens, self.bpe_size)
        flag("official", self.official)
        checked_share(self.held_out)
        _checked_fold(self.fold)
        if flag("apart", self.apart) and self.texts != 2:
            raise ValueError(f"apart=True is for tasks of two texts, and {self.name} has one: leave it out.")

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
    def head(self) -> Head:
        return "pair_classification" if self.apart else "classification"

    @property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary(self.tokens, self.bpe_size, self.bpe_corpus)

    @property
    def columns(self) -> tuple[str, ...]:
        """The sequences of a row, under the names of the model's arguments."""
        return ("input_ids", "pair_input_ids") if self.apart else ("input_ids",)

    def dataset(self, split: Split) -> LabelledRows:
        part: Part = "test" if checked_split(split) == "test" and self.fold is None else "train"
        key = {
            "version": 2,
            "part": part,
            "file": sources.identity(self.path(part)),
            "tokens": tokens_identity(self.tokens, self.bpe_size, self.bpe_corpus),
            "length": self.length,
            "official": self.official,
            "apart": self.apart,
        }
        folder = cache.entry(self.name, key, partial(_build, self, part))
        labels = load_numbers(folder, "labels")
        chosen = held_out(len(labels), self.held_out, split, self.fold)
        texts = {name: Ragged(folder, name) for name in self.columns}
        return LabelledRows(texts, labels, self.length, chosen)

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
    with ExitStack() as stack:
        writers = [
            stack.enter_context(RaggedWriter(folder, name, vocabulary.vocab_size)) for name in task.columns
        ]
        for first in encoded:
            row = [first, next(encoded)] if task.texts == 2 else [first]
            for writer, own in zip(writers, [[text] for text in row] if task.apart else [row], strict=True):
                writer.add(_framed(own, vocabulary, task.length))
    sources.counted(task.path(part), len(labels), task.count(part) if task.official else ())
    save_numbers(folder, "labels", labels, np.float32 if task.num_labels == 1 else np.uint8)


def _framed(texts: list[list[int]], vocabulary: Vocabulary, length: int) -> list[int]:
    room = length - 1 - len(texts)
    if len(texts) == 1:
        return [vocabulary.bos, *texts[0][:room], vocabulary.eos]
    first, second = texts
    first = first[: max(room - len(second), room - room // 2)]
    return [vocabulary.bos, *first, vocabulary.sep, *second[: room - len(first)], vocabulary.eos]
