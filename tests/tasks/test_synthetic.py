"""Associative recall and copying: what is asked for is to be had from what stands before."""

import pytest
import torch

from cosformer import tasks


def recall(row, pairs):
    """The answers to all queries, looked up in the text: {column: value}."""
    ids = row["input_ids"].tolist()
    known = dict(zip(ids[: 2 * pairs : 2], ids[1 : 2 * pairs : 2], strict=True))
    assert len(known) == pairs, "keys are distinct"
    return {t + 1: known[ids[t]] for t in range(2 * pairs, len(ids) - 1) if ids[t] in known}


@pytest.mark.parametrize(("length", "pairs", "vocab_size"), [(64, 16, 64), (32, 3, 1024), (64, 16, 32)])
def test_recall_is_answered_by_the_pairs(length, pairs, vocab_size):
    task = tasks.build("mqar", length=length, pairs=pairs, vocab_size=vocab_size, train_rows=50)
    for row in task.dataset("train"):
        asked = {t: v for t, v in enumerate(row["labels"].tolist()) if v != -100}
        assert asked == recall(row, pairs)
        assert len(asked) == pairs
        assert int(row["input_ids"].max()) < vocab_size


def test_gaps_follow_the_power_law():
    near = tasks.build("mqar", length=256, pairs=4, train_rows=400).dataset("train")
    far = tasks.build("mqar", length=256, pairs=4, train_rows=400, power=1.0).dataset("train")
    columns = [torch.stack([r["labels"] != -100 for r in d]).nonzero()[:, 1].float() for d in (near, far)]
    assert columns[0].median() < 40 < 100 < columns[1].median() < 164, "power 1 is uniform"


@pytest.mark.parametrize("name", ["mqar"])
def test_seeds_and_splits(name):
    def text(split, **settings):
        sizes = {"train_rows": 20, "valid_rows": 20, "test_rows": 20}
        return torch.stack([r["input_ids"] for r in tasks.build(name, **sizes | settings).dataset(split)])

    assert torch.equal(text("train"), text("train"))
    others = [text("train", seed=1), text("valid"), text("test")]
    assert not any(torch.equal(text("train"), other) for other in others)
    with pytest.raises(ValueError, match="split must be one of train, valid, test, but got 'dev'"):
        tasks.build(name).dataset("dev")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 63}, "length must be even and at least four times pairs 16"),
        ({"length": 62}, "length must be even and at least four times pairs 16"),
        ({"vocab_size": 30}, "vocab_size must be even and at least twice pairs 16"),
        ({"pairs": 0}, "pairs must be a positive int"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        tasks.build("mqar", **settings)
