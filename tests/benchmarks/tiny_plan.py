"""A plan of tiny runs, as the tests of the scheduler run it: python -m tests.benchmarks.tiny_plan."""

import dataclasses

from benchmarks import time_slice
from benchmarks.plan import Entry

RECALL = {"length": 16, "pairs": 2, "vocab_size": 16, "train_rows": 30, "valid_rows": 11, "test_rows": 13}
MODEL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def _entry(row, *, attention="cosformer", seconds=1.0, tries=(), **overrides):
    settings = {
        "task_settings": RECALL, "model": MODEL, "steps": 12, "batch_size": 8, "learning_rate": 1e-3,
        "warmup": 2, "eval_every": 6, "save_every": 4, "log_every": 3, "device": "cpu",
    }  # fmt: skip
    return Entry(
        "tiny", "mqar", row, "mqar", attention, seconds, scale="tiny", tries=tries,
        overrides={**settings, **overrides},
    )  # fmt: skip


def three():
    """Of which the last takes the better learning rate of the first two."""
    first = [_entry("low"), _entry("high", attention="softmax", learning_rate=3e-3)]
    return [*first, _entry("chosen", tries=tuple(e.name for e in first))]


def failing():
    """The second one diverges, the third asks for data that are not there."""
    return [
        _entry("good"),
        _entry("bad", learning_rate=1e30, max_grad_norm=None),
        Entry("tiny", "enwik8", "no data", "enwik8", "cosformer", 1.0, scale="tiny"),
    ]


def cut():
    """One after the other, the second one trains long after its first checkpoint."""
    long = _entry("long", steps=4000, eval_every=4000, save_every=100, log_every=80)
    return [_entry("low"), long, _entry("high", seed=1)]


def chained():
    """The second one starts from the weights of the first."""
    first = dataclasses.replace(_entry("first"), keep=True)
    return [dataclasses.replace(_entry("second", seed=1), initial=first), first]


def endless():
    """Longer than anybody waits."""
    return [_entry("endless", seconds=1e5, steps=10**6, eval_every=10**6, save_every=10**6)]


PLANS = {"three": three, "failing": failing, "cut": cut, "chained": chained, "endless": endless}

if __name__ == "__main__":
    time_slice.main("tiny_plan", "Tiny runs.", PLANS)
