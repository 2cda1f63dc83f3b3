"""Metrics of a whole split, from statistics of each sample: a score cannot depend on the batch size.

`rows` turns a batch into float64 [samples, k]; `score` reads the rows of all samples of a split, in any
order.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


class Metric(ABC):
    """A frozen dataclass; `score` gives `name` first, then what else is usually told with it."""

    name: ClassVar[str]
    higher_is_better: ClassVar[bool]

    @abstractmethod
    def rows(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Statistics of each sample, float64 [samples, k], of the model's logits for a batch of `collate`."""

    @abstractmethod
    def score(self, rows: Tensor) -> dict[str, float]:
        """Of all rows of a split."""


def _some(rows: Tensor) -> Tensor:
    if rows.dim() != 2 or len(rows) == 0:
        raise ValueError(f"rows must be [samples, k] with at least one sample, but got {list(rows.shape)}.")
    return rows.to(torch.float64)


class _Classes(Metric):
    """Statistics (predicted class, label)."""

    def rows(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([logits.argmax(-1), batch["labels"]], -1).to(torch.float64)


@dataclass(frozen=True)
class Accuracy(_Classes):
    """The share of samples whose class is right."""

    name = "accuracy"
    higher_is_better = True

    def score(self, rows: Tensor) -> dict[str, float]:
        rows = _some(rows)
        return {"accuracy": float((rows[:, 0] == rows[:, 1]).double().mean())}


@dataclass(frozen=True)
class AccuracyAndF1(_Classes):
    """Accuracy, and F1 = 2 tp / (2 tp + fp + fn) of class 1 (0 where neither is ever seen): MRPC, QQP."""

    name = "accuracy"
    higher_is_better = True

    def score(self, rows: Tensor) -> dict[str, float]:
        predicted, label = _some(rows).unbind(-1)
        tp = float(((predicted == 1) & (label == 1)).sum())
        wrong = float(((predicted == 1) != (label == 1)).sum())
        return {
            "accuracy": float((predicted == label).double().mean()),
            "f1": 2 * tp / (2 * tp + wrong) if tp else 0.0,
        }


@dataclass(frozen=True)
class Matthews(_Classes):
    """Matthews' correlation of two classes, 0 where a margin is empty: CoLA.

    (tp tn - fp fn) / sqrt((tp + fp)(tp + fn)(tn + fp)(tn + fn))
    """

    name = "matthews"
    higher_is_better = True

    def score(self, rows: Tensor) -> dict[str, float]:
        predicted, label = (_some(rows) == 1).unbind(-1)
        tp, tn = float((predicted & label).sum()), float((~predicted & ~label).sum())
        fp, fn = float((predicted & ~label).sum()), float((~predicted & label).sum())
        margins = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return {
            "matthews": (tp * tn - fp * fn) / math.sqrt(margins) if margins else 0.0,
            "accuracy": (tp + tn) / len(rows),
        }


@dataclass(frozen=True)
class Correlation(Metric):
    """Pearson's correlation of predictions and labels, and Spearman's, that of their ranks: STS-B.

    Ties share the mean of their ranks; a constant column has correlation 0.
    """

    name = "pearson"
    higher_is_better = True

    def rows(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Statistics (prediction, label) of logits [B, 1]."""
        return torch.stack([logits.flatten(), batch["labels"]], -1).to(torch.float64)

    def score(self, rows: Tensor) -> dict[str, float]:
        x, y = _some(rows).unbind(-1)
        return {"pearson": _pearson(x, y), "spearman": _pearson(_ranks(x), _ranks(y))}


def _pearson(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    norms = float(x.norm() * y.norm())
    return float(x @ y) / norms if norms else 0.0


def _ranks(x: Tensor) -> Tensor:
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).to(torch.float64)
    return (last - (counts - 1) / 2)[inverse]


def _places(labels: Tensor) -> slice | Tensor:
    """Of one sample's labels [T], on the CPU: where a loss is wanted; a slice where nothing lies between."""
    (found,) = torch.nonzero(labels != -100, as_tuple=True)
    if not len(found):
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last + 1 - first == len(found) else found


@dataclass(frozen=True)
class TokenAccuracy(Metric):
    """The share of right tokens among those asked for, and that of rows without a mistake.

    A row that asks for nothing counts in neither. shift: logits of a column are about the one so far behind
    it, 1 of a causal model, 0 of a decoder, whose inputs are the labels moved by one.
    """

    name = "accuracy"
    higher_is_better = True
    shift: ClassVar[int] = 1

    def rows(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Statistics (right tokens, tokens asked for) of logits [B, T, V]."""
        labels = batch["labels"][:, self.shift :]
        wanted = labels != -100
        right = (logits[:, : labels.shape[1]].argmax(-1) == labels) & wanted
        return torch.stack([right.sum(1), wanted.sum(1)], -1).to(torch.float64)

    def score(self, rows: Tensor) -> dict[str, float]:
        rows = _some(rows)
        rows = _some(rows[rows[:, 1] > 0])
        right, asked = rows.unbind(-1)
        return {
            "accuracy": float(right.sum() / asked.sum()),
            "exact": float((right == asked).double().mean()),
        }


def _nll(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none").to(torch.float64)


class _Tokens(Metric):
    """Statistics (nats, tokens, right) of logits [B, T, V]: of a causal model, whose logits of a column are
    about the next one (shift 1), or of a masked one (0)."""

    higher_is_better = False
    shift: ClassVar[int]

    def rows(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return _token_statistics(logits, batch["labels"], self.shift)


@dataclass(frozen=True)
class BitsPerCharacter(_Tokens):
    """The mean of -log2 p(byte | bytes before it), and of how often the likeliest byte is right."""

    name = "bits_per_character"
    shift = 1

    def score(self, rows: Tensor) -> dict[str, float]:
        nats, count, right = _some(rows).sum(0).tolist()
        return {"bits_per_character": nats / count / math.log(2), "accuracy": right / count}


@dataclass(frozen=True)
class MaskedPerplexity(_Tokens):
    """exp of the mean -log p(token) over the masked places, and how often the likeliest token is right."""

    name = "perplexity"
    shift = 0

    def score(self, rows: Tensor) -> dict[str, float]:
        nats, count, right = _some(rows).sum(0).tolist()
        return {"perplexity": _exp(nats / count), "loss": nats / count, "accuracy": right / count}


def _exp(nats: float) -> float:
    """Infinite where no float is large enough: of a model that has diverged."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _token_statistics(logits: Tensor, labels: Tensor, shift: int) -> Tensor:
    """(nats, tokens, right) of each sample; one at a time, for a vocabulary may be large. A causal model's
    logits of a column are about the next one (shift 1)."""
    logits, labels = logits[:, : logits.shape[1] - shift], labels[:, shift:]
    out = []
    # The device is waited for once a batch, and not at every sample.
    for own, targets, known in zip(logits, labels, labels.cpu(), strict=True):
        places = _places(known)
        if not isinstance(places, slice):
            places = places.to(labels.device)
        scores, targets = own[places], targets[places]
        right = (scores.argmax(-1) == targets).sum().to(torch.float64)
        count = torch.full_like(right, len(targets))
        out.append(torch.stack([_nll(scores, targets).sum(), count, right]))
    return torch.stack(out)


@dataclass(frozen=True, eq=False)
class WordPerplexity(Metric):
    """exp(nats / words): perplexity per word, also where a word is several tokens.

    Attributes:
        words: [V], how many words begin with each token; None: every token is a word.
    """

    words: Tensor | None = None
    name = "perplexity"
    higher_is_better = False

    def rows(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Statistics (nats, tokens, right, words) of a causal model's logits [B, T, V]."""
        labels = batch["labels"]
        statistics = _token_statistics(logits, labels, shift=1)
        if self.words is None:
            return torch.cat([statistics, statistics[:, 1:2]], -1)
        targets = labels[:, 1:]
        words = self.words.to(labels.device, torch.float64)[targets.clamp_min(0)] * (targets != -100)
        return torch.cat([statistics, words.sum(1, keepdim=True)], -1)

    def score(self, rows: Tensor) -> dict[str, float]:
        nats, tokens, right, words = _some(rows).sum(0).tolist()
        return {"perplexity": _exp(nats / words), "loss": nats / tokens, "accuracy": right / tokens}
