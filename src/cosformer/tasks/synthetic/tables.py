"""Shared by the synthetic tasks: a table of tokens in memory, generators, sizes of splits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer import memory
from cosformer.ops.checks import positive_int
from cosformer.tasks.base import SPLITS, Row, Rows, Split, Task, checked_split, row_number


class TableRows(Rows):
    """Rows of one table of tokens int [N, T], and which of them are asked for, bool [N, T]."""

    def __init__(self, tokens: Tensor, asked: Tensor):
        self.tokens, self.asked = tokens, asked

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        ids = self.tokens[index].to(torch.int64)
        return {"input_ids": ids, "labels": ids.masked_fill(~self.asked[index], -100)}


@dataclass(frozen=True, kw_only=True)
class GeneratedTask(Task):
    """Three splits of random rows, each with random numbers of its own; the model predicts tokens.

    Args:
        train_rows, valid_rows, test_rows: sizes of the splits.
        seed: of all random numbers.
    """

    train_rows: int = 100_000
    valid_rows: int = 3_000
    test_rows: int = 3_000
    seed: int = 0

    num_labels = None


def generator(seed: int, split: Split) -> np.random.Generator:
    """Of its own for each split."""
    return np.random.default_rng([seed, SPLITS.index(split)])


def sizes(task: Any, split: Split) -> int:
    """`train_rows`, `valid_rows` or `test_rows` of a task."""
    name = f"{checked_split(split)}_rows"
    rows = positive_int(name, getattr(task, name))
    memory.refuse_beyond(rows * task.length, f"{name}={rows:.6g} with texts of {task.length:.6g} tokens")
    return rows
