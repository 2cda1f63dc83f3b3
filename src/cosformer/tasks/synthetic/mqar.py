"""Multi-query associative recall (Arora et al., 2023, "Zoology", arXiv:2312.04927)."""

from dataclasses import dataclass

import numpy as np
import torch

from cosformer.ops.checks import positive, positive_int
from cosformer.tasks.base import Split
from cosformer.tasks.metrics import TokenAccuracy
from cosformer.tasks.registry import register
from cosformer.tasks.synthetic.tables import GeneratedTask, TableRows, generator, sizes


@register("mqar")
@dataclass(frozen=True)
class Mqar(GeneratedTask):
    """Pairs of a key and a value, then the keys once more: each asks for its value.

        input_ids   k1 v1 k2 v2 k3 v3 | k2 v2 .  .  k1 v1 .  .  k3 v3
        labels       .  .  .  .  .  . |  . v2 .  .   . v1 .  .   . v3        (. a random value; -100)

    Provenance: generated, as in the paper's code. Keys are distinct tokens of the lower half of the
    vocabulary, values are from the upper half; how far behind the pairs a key is asked for follows the power
    law p(gap) ~ power gap^(power - 1). Columns that hold neither hold random values, never a key. Three
    splits of their own seeds, `train_rows` / `valid_rows` / `test_rows` (100,000 / 3,000 / 3,000).

    Args:
        length: tokens of a row, even; at least four for each pair.
        pairs: keys and values of a row.
        vocab_size: tokens, even.
        power: of the gaps; small is near.
        train_rows, valid_rows, test_rows, seed: as of `GeneratedTask`.
    """

    length: int = 256
    pairs: int = 16
    vocab_size: int = 8192
    power: float = 0.01

    title = "Associative recall"
    head = "causal_lm"
    metric = TokenAccuracy()
    pad_token_id = None

    def __post_init__(self) -> None:
        for name in ("length", "pairs", "vocab_size"):
            positive_int(name, getattr(self, name))
        positive("power", self.power)
        if self.length % 2 or self.length < 4 * self.pairs:
            raise ValueError(
                f"length must be even and at least four times pairs {self.pairs} (each pair stands there "
                f"twice), but got {self.length}."
            )
        if self.vocab_size % 2 or self.vocab_size < 2 * self.pairs:
            raise ValueError(
                f"vocab_size must be even and at least twice pairs {self.pairs} (keys are distinct), but got "
                f"{self.vocab_size}."
            )

    def dataset(self, split: Split) -> TableRows:
        count = sizes(self, split)
        rng = generator(self.seed, split)
        half, pairs, slots = self.vocab_size // 2, self.pairs, (self.length - 2 * self.pairs) // 2
        tokens = rng.integers(half, 2 * half, (count, self.length), dtype=np.int32)
        asked = np.zeros((count, self.length), dtype=bool)
        gap = np.arange(1, slots + 1, dtype=np.float64)
        law = np.log(self.power) + (self.power - 1) * np.log(gap)
        for start in range(0, count, 1024):  # bounded memory: the draws below are as wide as the vocabulary
            rows = np.arange(start, min(start + 1024, count))[:, None]
            keys = _distinct(rng, len(rows), half, pairs)
            values = half + rng.integers(0, half, (len(rows), pairs), dtype=np.int32)
            # The greatest of law + Gumbel noise: places without repetition, by their weights.
            place = np.argpartition(-(law + rng.gumbel(size=(len(rows), slots))), pairs - 1, -1)[:, :pairs]
            query = 2 * pairs + 2 * rng.permuted(place, axis=1)
            tokens[rows, np.arange(0, 2 * pairs, 2)] = keys
            tokens[rows, np.arange(1, 2 * pairs, 2)] = values
            tokens[rows, query] = keys
            tokens[rows, query + 1] = values
            asked[rows, query + 1] = True
        return TableRows(torch.from_numpy(tokens), torch.from_numpy(asked))

    def example(self) -> str:
        small = Mqar(length=24, pairs=3, vocab_size=20, train_rows=1, seed=self.seed)
        row = small.dataset("train")[0]
        return "\n".join(
            f"{key:>9}  " + " ".join(" ." if t == -100 else f"{t:>2}" for t in row[key].tolist())
            for key in ("input_ids", "labels")
        )


def _distinct(rng: np.random.Generator, count: int, limit: int, size: int) -> np.ndarray:
    """[count, size] numbers below a limit, distinct in each row, in random order: Floyd's algorithm would
    loop over rows, so all are drawn and rows with a repetition are drawn again, or cut from permutations
    where repetitions are the rule."""
    if size * size > limit:
        everything = np.broadcast_to(np.arange(limit, dtype=np.int32), (count, limit))
        return rng.permuted(everything, axis=1)[:, :size]
    drawn = rng.integers(0, limit, (count, size), dtype=np.int32)
    while True:
        ordered = np.sort(drawn, 1)
        again = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(1))
        if not len(again):
            return drawn
        drawn[again] = rng.integers(0, limit, (len(again), size), dtype=np.int32)
