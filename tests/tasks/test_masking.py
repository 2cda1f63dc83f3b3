"""Masked language modelling: whole documents, and masks that follow from (seed, epoch, index) alone."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from cosformer import tasks
from cosformer.tasks.io.tokens import Bytes
from cosformer.tasks.language.masking import packed
from tests.tasks import tiny


@pytest.mark.parametrize("length", [8, 64, 500])
def test_packing(length):
    sizes = np.random.default_rng(0).integers(1, 300, 200)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = packed(offsets, length)
    assert all(sum(end - start for start, end in row) <= length for row in rows)
    pieces = sorted(piece for row in rows for piece in row)
    assert [p for start, end in pieces for p in range(start, end)] == list(range(sizes.sum())), (
        "nothing is lost"
    )
    starts = set(offsets.tolist())
    for start, end in pieces:
        document = np.searchsorted(offsets, start, side="right") - 1
        assert end <= offsets[document + 1], "a piece is of one document"
        whole = sizes[document] <= length
        assert not whole or (start in starts and end == offsets[document + 1]), "what fits is not cut"
    assert sizes.sum() / (len(rows) * length) > 0.9


@pytest.fixture
def task():
    tiny.wikitext("wikitext-2")
    return tasks.build("mlm", length=200)


def clean(row):
    return torch.where(row["labels"] == -100, row["input_ids"], row["labels"])


def test_documents_are_whole_and_apart(task):
    rows = task.dataset("train")
    texts = []
    for row in rows:
        ids, positions = clean(row), row["position_ids"]
        starts = (positions == 0).nonzero().flatten().tolist()
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            assert positions[start:end].tolist() == list(range(end - start))
            texts.append(ids[start:end].tolist())
    joined = [t for t in texts if t[0] != Bytes.pad]
    assert sum(t[0] == Bytes.bos for t in joined) == sum(t[-1] == Bytes.eos for t in joined) == 3


def test_shares(task):
    rows = tasks.build("mlm", length=4000).dataset("train")
    chosen = kept = masked = text = 0
    for epoch in range(30):
        rows.set_epoch(epoch)
        for row in rows:
            hidden = row["labels"] != -100
            original = clean(row)
            text += int((original < 256).sum())
            chosen += int(hidden.sum())
            masked += int((row["input_ids"] == Bytes.mask).sum())
            kept += int((row["input_ids"][hidden] == original[hidden]).sum())
            assert (original[hidden] < 256).all(), "special tokens are not asked for"
            assert torch.equal(row["input_ids"][~hidden], original[~hidden])
    assert chosen / text == pytest.approx(0.15, abs=0.002)
    assert masked / chosen == pytest.approx(0.8, abs=0.02)
    assert kept / chosen == pytest.approx(0.1, abs=0.02)


def test_masks_follow_from_seed_epoch_and_index(task):
    rows, again = task.dataset("train"), task.dataset("train")
    other = tasks.build("mlm", length=200, seed=1).dataset("train")
    rows.set_epoch(3)
    row = rows[1]
    assert not torch.equal(row["input_ids"], again[1]["input_ids"]), "another epoch"
    assert not torch.equal(other[1]["input_ids"], again[1]["input_ids"]), "another seed"
    again.set_epoch(3)
    list(again)
    assert torch.equal(row["input_ids"], again[1]["input_ids"]), "whatever was read in between"
    assert torch.equal(clean(row), clean(other[1])), "the text is the same"


def test_masks_of_valid_are_fixed(task):
    rows = task.dataset("valid")
    before = rows[0]
    rows.set_epoch(5)
    assert torch.equal(before["input_ids"], rows[0]["input_ids"])


def test_workers_that_live_on_hear_of_the_epoch(task):
    rows = task.dataset("train")
    loader = DataLoader(rows, num_workers=1, persistent_workers=True, collate_fn=task.collate)
    list(loader)
    rows.set_epoch(2)
    there = torch.cat([batch["input_ids"] for batch in loader])
    assert torch.equal(there, torch.stack([row["input_ids"] for row in rows]))


def test_joined_documents_have_a_mask(task):
    joined = tasks.build("mlm", length=200, documents="joined")
    rows = joined.dataset("train")
    batch = joined.collate(list(rows))
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    assert torch.equal(batch["attention_mask"] == 0, batch["input_ids"] == Bytes.pad)


def test_bpe_is_learned_from_the_corpus():
    tiny.wikitext("wikitext-2")
    task = tasks.build("mlm", tokens="bpe", bpe_size=300, length=64)
    rows = task.dataset("valid")
    assert task.vocab_size == 304
    text = task._vocabulary.decode(clean(rows[0]).tolist())
    assert "Title" in text
    fine = tasks.build("mlm", tokens="bytes", length=64)
    assert len(rows) < len(fine.dataset("valid"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probability": 0}, "probability must be between 0 and 1"),
        ({"tokens": "words"}, "tokens must be one of bytes, bpe"),
        ({"documents": "mixed"}, "documents must be one of apart, joined"),
        ({"length": 4}, "length must be at least 8"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        tasks.build("mlm", **settings)
