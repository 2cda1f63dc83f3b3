"""Reversing a sequence: the smallest task that needs cross-attention to look at the right place."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from cosformer.ops.checks import positive_int
from cosformer.tasks.base import Row, Rows, Split, padded, row_number
from cosformer.tasks.metrics import TokenAccuracy
from cosformer.tasks.registry import register
from cosformer.tasks.synthetic.tables import GeneratedTask, generator, sizes

PAD, START, END, LETTERS = 0, 1, 2, 3


class Exact(TokenAccuracy):
    """The share of sequences without a single mistake, and of right tokens.

    Every token is predicted from the right ones before it; so a sequence has no mistake here exactly if
    greedy generation gives it.
    """

    name = "exact"
    shift = 0

    def score(self, rows: Tensor) -> dict[str, float]:
        return dict(reversed(super().score(rows).items()))


@register("reverse")
@dataclass(frozen=True)
class Reverse(GeneratedTask):
    """Letters, and the same letters from the end, for an encoder-decoder.

        input_ids   c a b . .      (. is padding)
        labels      b a c END

    Provenance: generated; letters and lengths with equal probability. Three splits with their own seeds,
    `train_rows` / `valid_rows` / `test_rows` (100,000 / 500 / 500).

    Args:
        letters: how many there are.
        shortest, longest: lengths of a sequence.
        train_rows, valid_rows, test_rows, seed: as of `GeneratedTask`.
    """

    letters: int = 16
    shortest: int = 4
    longest: int = 12
    _: KW_ONLY
    valid_rows: int = 500
    test_rows: int = 500

    title = "Reversing"
    head = "conditional_generation"
    metric = Exact()
    pad_token_id = PAD

    def __post_init__(self) -> None:
        for name in ("letters", "shortest", "longest"):
            positive_int(name, getattr(self, name))
        if self.longest < self.shortest:
            raise ValueError(f"longest must be at least shortest {self.shortest}, but got {self.longest}.")

    @property
    def vocab_size(self) -> int:
        return LETTERS + self.letters

    @property
    def length(self) -> int:
        return self.longest + 1

    def dataset(self, split: Split) -> "_Reversed":
        count, rng = sizes(self, split), generator(self.seed, split)
        lengths = rng.integers(self.shortest, self.longest + 1, count)
        letters = rng.integers(LETTERS, self.vocab_size, (count, self.longest), dtype=np.uint8)
        return _Reversed(torch.from_numpy(letters), torch.from_numpy(lengths))

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        ids, mask = padded([row["input_ids"] for row in rows], PAD, self.length)
        labels, _ = padded([row["labels"] for row in rows], -100, self.length)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def example(self) -> str:
        row = self.dataset("train")[0]
        signs = {END: "END"}
        return "\n".join(
            f"{key:>9}  " + " ".join(signs.get(t, chr(ord("a") + t - LETTERS)) for t in row[key].tolist())
            for key in ("input_ids", "labels")
        )


class _Reversed(Rows):
    def __init__(self, letters: Tensor, lengths: Tensor):
        self.letters, self.lengths = letters, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        ids = self.letters[index, : int(self.lengths[index])].to(torch.int64)
        return {"input_ids": ids, "labels": torch.cat([ids.flip(0), torch.tensor([END])])}
