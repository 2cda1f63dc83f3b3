"""Pretraining on a task's own data (Amos et al., 2023, arXiv:2310.02980): its labels are not looked at, its
inputs have holes to be filled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer.tasks.base import Row, Rows, Split, Task, padded, row_number, stacked
from cosformer.tasks.language.masking import hide
from cosformer.tasks.metrics import MaskedPerplexity
from cosformer.tasks.registry import build, register

_TEXTS = {"classification": ("input_ids",), "pair_classification": ("input_ids", "pair_input_ids")}


class MaskedInputs(Rows):
    """The inputs of another task's rows, a share of their tokens hidden; both texts of a pair, one after the
    other. Which tokens are hidden follows from (seed, epoch, index) and nothing else; the epoch lies in
    shared memory, so that a loader's workers know it."""

    def __init__(
        self, rows: Rows, texts: Sequence[str], mask: int, probability: float, seed: int, fixed: bool
    ):
        self.rows, self.texts, self.mask = rows, texts, mask
        self.probability, self.seed, self.fixed = probability, seed, fixed
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.rows) * len(self.texts)

    def set_epoch(self, epoch: int) -> None:
        """Other masks for the training rows; those of valid and test stay."""
        if not self.fixed:
            self.epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        row, text = divmod(index, len(self.texts))
        ids = self.rows[row][self.texts[text]].numpy()
        rng = np.random.default_rng([self.seed, int(self.epoch), index])
        hidden, labels = hide(
            ids, np.arange(len(ids)), self.probability, self.mask, lambda count: rng.choice(ids, count), rng
        )
        return {"input_ids": torch.from_numpy(hidden), "labels": torch.from_numpy(labels)}


@register("masked")
@dataclass(frozen=True)
class Masked(Task):
    """The hidden tokens of another task's inputs: what a model can learn from them before it sees a label.

        input_ids   0 # 17 84 #  ... 0     (of pathfinder; # is a token more than that task has)
        labels      . 0  .  . 31 ... .

    where . is -100.

    Provenance: the inputs of a task that classifies texts, or pairs of them, split by split. Of the tokens to
    be found again 80 % are hidden, 10 % are another token of the same text and 10 % stay. Which ones is
    sampled in each epoch of train, and is fixed in valid and test. `cosformer.training.pretraining` makes the
    run that pretrains the model of another.

    Args:
        of: the name of the task.
        settings: its settings, where they differ from the defaults.
        probability: that a token is to be found again.
        seed: of the masks.
    """

    of: str = "pathfinder"
    settings: dict[str, Any] = field(default_factory=dict)
    probability: float = 0.3
    seed: int = 0

    title = "Masked inputs"
    head = "masked_lm"
    metric = MaskedPerplexity()
    num_labels = None

    def __post_init__(self) -> None:
        if not isinstance(self.settings, dict):
            raise TypeError(f"settings must be an object of settings, but got {self.settings!r}.")
        if not 0 < self.probability < 1:
            raise ValueError(f"probability must be between 0 and 1, but got {self.probability}.")
        if self.task.head not in _TEXTS:
            raise ValueError(
                f"of must be a task that classifies texts or pairs of them, but {self.of!r} is none."
            )

    @cached_property
    def task(self) -> Task:
        """The other task."""
        return build(self.of, **self.settings)

    @property
    def mask_token_id(self) -> int:
        """The first token that the other task has not."""
        return self.task.vocab_size

    @property
    def vocab_size(self) -> int:
        return -(-(self.mask_token_id + 1) // 8) * 8

    @property
    def length(self) -> int:
        return self.task.length

    @property
    def pad_token_id(self) -> int | None:
        return self.task.pad_token_id

    def dataset(self, split: Split) -> MaskedInputs:
        rows, texts = self.task.dataset(split), _TEXTS[self.task.head]
        return MaskedInputs(rows, texts, self.mask_token_id, self.probability, self.seed, split != "train")

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        if self.pad_token_id is None:
            return stacked(rows)
        ids, mask = padded([row["input_ids"] for row in rows], self.pad_token_id, self.length)
        labels, _ = padded([row["labels"] for row in rows], -100, self.length)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def example(self) -> str:
        row = {name: column[:24].tolist() for name, column in self.dataset("valid")[0].items()}
        special = {self.mask_token_id: "#", -100: "."}
        return "\n".join(
            f"{name:>12}  " + " ".join(special.get(t) or str(t) for t in column)
            for name, column in row.items()
        )
