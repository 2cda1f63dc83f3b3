"""The smallest task there is, and runs of it: which of two letters is the more frequent, in texts of
different lengths."""

from dataclasses import dataclass

import torch

from cosformer.tasks import Rows, Task
from cosformer.tasks.base import padded
from cosformer.tasks.metrics import Accuracy
from cosformer.training import Run

LETTERS, PAD = 2, 2


class _Texts(Rows):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1000 + index)
        length = 2 * int(torch.randint(2, 9, (), generator=generator)) + 1
        ids = torch.randint(LETTERS, (length,), generator=generator)
        return {"input_ids": ids, "labels": (ids.double().mean() > 0.5).long()}


class _Changing(_Texts):
    """Other texts in each epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return _Texts(self.count, self.seed + 100 * self.epoch)[index]


@dataclass(frozen=True)
class Toy(Task):
    """Letters and which is more frequent.

    a b a . .   0
    b b a b b   1
    """

    rows: int = 23
    changing: bool = False

    name = "toy"
    title = "Toy"
    head = "classification"
    metric = Accuracy()
    vocab_size = 3
    num_labels = 2
    length = 20
    pad_token_id = PAD

    def dataset(self, split):
        return (_Changing if self.changing else _Texts)(self.rows, ("train", "valid", "test").index(split))

    def collate(self, rows):
        ids, mask = padded([row["input_ids"] for row in rows], PAD, self.length)
        labels = torch.stack([row["labels"] for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def example(self):
        return str(self.dataset("train")[0])


MODEL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.25}
RECALL = {
    "length": 16, "pairs": 2, "vocab_size": 16, "train_rows": 30, "valid_rows": 11, "test_rows": 13,
}  # fmt: skip


def toy(**changes):
    """Twelve steps with everything on that could spoil a resumed run."""
    model = {**MODEL, "dropout": 0.2, **changes.pop("model", {})}
    settings = {
        "task": "toy", "steps": 12, "batch_size": 8, "accumulation": 2, "learning_rate": 3e-3, "warmup": 2,
        "weight_decay": 0.1, "eval_every": 6, "save_every": 4, "log_every": 5, "workers": 2, "device": "cpu",
    }  # fmt: skip
    return Run(model=model, **settings | changes)


def recall(**changes):
    """A language model, likewise."""
    return toy(task="mqar", task_settings=RECALL, **changes)
