"""Holes in the inputs of another task: what was there, where, and how often; of every task that has such
inputs."""

import pytest
import torch

from cosformer import tasks
from tests.tasks.tiny import TASKS

CLASSIFY = sorted(
    name for name, (_, own) in TASKS.items() if tasks.build(name, **own).head.endswith("classification")
)


@pytest.fixture
def masked():
    def make(name, **changes):
        write, settings = TASKS[name]
        if write is not None:
            write()
        return tasks.build("masked", of=name, settings=settings, **changes)

    return make


def clean(row):
    return torch.where(row["labels"] == -100, row["input_ids"], row["labels"])


def test_there_are_such_tasks():
    assert {"citations", "image", "listops", "pathfinder", "sst2", "stsb", "text"} <= set(CLASSIFY)


@pytest.mark.parametrize("name", CLASSIFY)
def test_the_inputs_are_those_of_the_task(name, masked):
    task = masked(name)
    for split in ("train", "test"):
        own, inner = task.dataset(split), task.task.dataset(split)
        texts = [row[key] for row in inner for key in ("input_ids", "pair_input_ids") if key in row]
        assert len(own) == len(texts)
        for row, text in zip(own, texts, strict=True):
            assert torch.equal(clean(row), text)
            assert (row["labels"] != -100).any()
    batch = task.collate([own[0], own[len(own) - 1]])
    assert ("attention_mask" in batch) == (task.pad_token_id is not None)
    assert task.vocab_size > task.mask_token_id == task.task.vocab_size
    assert int(batch["input_ids"].max()) < task.vocab_size
    if "attention_mask" in batch:
        assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_shares(masked):
    rows = masked("pathfinder", probability=0.4).dataset("train")
    chosen = hidden = kept = places = 0
    for epoch in range(8):
        rows.set_epoch(epoch)
        for row in rows:
            found = row["labels"] != -100
            places += found.numel()
            chosen += int(found.sum())
            hidden += int((row["input_ids"] == rows.mask).sum())
            kept += int((row["input_ids"] == row["labels"])[found].sum())
    assert chosen / places == pytest.approx(0.4, abs=0.001)
    assert hidden / chosen == pytest.approx(0.8, abs=0.01)
    assert 0.1 < kept / chosen < 0.2, "most pixels are black: what is put there instead is often the same"


def test_holes_follow_from_seed_epoch_and_index(masked):
    rows, again = masked("pathfinder").dataset("train"), masked("pathfinder").dataset("train")
    other = masked("pathfinder", seed=1).dataset("train")
    rows.set_epoch(3)
    row = rows[1]
    assert not torch.equal(row["labels"], again[1]["labels"]), "another epoch"
    assert not torch.equal(other[1]["labels"], again[1]["labels"]), "another seed"
    again.set_epoch(3)
    list(again)
    assert torch.equal(row["input_ids"], again[1]["input_ids"]), "whatever was read in between"
    valid = masked("pathfinder").dataset("valid")
    before = valid[0]
    valid.set_epoch(5)
    assert torch.equal(before["labels"], valid[0]["labels"]), "scores are of the same holes"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probability": 1.0}, "probability must be between 0 and 1"),
        ({"of": "mqar"}, "of must be a task that classifies texts or pairs of them, but 'mqar' is none"),
        ({"of": "masked"}, "but 'masked' is none"),
        ({"of": "pathfnder"}, "Did you mean 'pathfinder'"),
        ({"settings": {"sides": 8}}, "Did you mean 'side'"),
        ({"settings": [8]}, "settings must be an object"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tasks.build("masked", **settings)
