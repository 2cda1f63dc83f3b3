"""Copying: what a state of constant size can hold, in its plainest form."""

from dataclasses import dataclass

import numpy as np
import torch

from cosformer.ops.checks import positive_int
from cosformer.tasks.base import Split
from cosformer.tasks.metrics import TokenAccuracy
from cosformer.tasks.registry import register
from cosformer.tasks.synthetic.tables import GeneratedTask, TableRows, generator, sizes

START, AGAIN, SYMBOLS = 0, 1, 2


@register("copy")
@dataclass(frozen=True)
class Copy(GeneratedTask):
    """A sequence of random symbols, a sign, and the sequence once more (as in Graves et al., 2014,
    arXiv:1410.5401).

        input_ids   < 7 3 9 3 | 7 3 9 3
        labels      . . . . . . 7 3 9 3        (. is -100: not predicted)

    Provenance: generated. Three splits with their own seeds, `train_rows` / `valid_rows` / `test_rows`
    (100,000 / 3,000 / 3,000). Symbols are sampled with equal probability, so nothing but the copy itself can
    be learned.

    Args:
        length: tokens of a row, even: two signs, and (length - 2) / 2 symbols twice.
        vocab_size: tokens: two signs, the others are symbols.
        train_rows, valid_rows, test_rows, seed: as of `GeneratedTask`.
    """

    length: int = 128
    vocab_size: int = 66

    title = "Copy"
    head = "causal_lm"
    metric = TokenAccuracy()
    pad_token_id = None

    def __post_init__(self) -> None:
        if positive_int("length", self.length) % 2 or self.length < 4:
            raise ValueError(f"length must be even and at least 4, but got {self.length}.")
        if positive_int("vocab_size", self.vocab_size) < SYMBOLS + 2:
            raise ValueError(
                f"vocab_size must be at least {SYMBOLS + 2}, two signs and two symbols, but got "
                f"{self.vocab_size}."
            )

    def dataset(self, split: Split) -> TableRows:
        count, half = sizes(self, split), self.length // 2
        symbols = generator(self.seed, split).integers(
            SYMBOLS, self.vocab_size, (count, half - 1), dtype=np.int32
        )
        tokens = np.empty((count, self.length), dtype=np.int32)
        tokens[:, 0], tokens[:, half] = START, AGAIN
        tokens[:, 1:half] = tokens[:, half + 1 :] = symbols
        asked = np.zeros(tokens.shape, dtype=bool)
        asked[:, half + 1 :] = True
        return TableRows(torch.from_numpy(tokens), torch.from_numpy(asked))

    def example(self) -> str:
        row = Copy(length=16, vocab_size=12, train_rows=1, seed=self.seed).dataset("train")[0]
        signs = {-100: ".", START: "<", AGAIN: "|"}
        return "\n".join(
            f"{key:>9}  " + " ".join(signs.get(t, str(t - SYMBOLS)) for t in row[key].tolist())
            for key in ("input_ids", "labels")
        )
