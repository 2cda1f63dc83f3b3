"""Pairs of papers, pictures, and sequences for fine-tuning: what a row is made of."""

import numpy as np
import pytest
import torch

from cosformer import tasks
from cosformer.tasks.glue.finetuning import FOLDS, _framed, held_out
from cosformer.tasks.io.tokens import Bytes
from tests.tasks import tiny

B, S, E = Bytes.bos, Bytes.sep, Bytes.eos


def texts(rows):
    return [
        (bytes(r["input_ids"].tolist()), bytes(r["pair_input_ids"].tolist()), int(r["labels"])) for r in rows
    ]


def test_no_paper_is_in_two_splits():
    tiny.papers()
    task = tasks.build("citations", official=False)
    pairs = {split: texts(task.dataset(split)) for split in ("train", "valid", "test")}
    papers = {split: {p for a, b, _ in own for p in (a, b)} for split, own in pairs.items()}
    assert all(papers.values())
    assert not papers["train"] & papers["valid"]
    assert not papers["train"] & papers["test"]
    assert not papers["valid"] & papers["test"]
    numbers = {tiny.sentence(i, 120).encode(): i for i in range(60)}
    assert all(len(text) > 500 for text in numbers)
    for own in pairs.values():
        assert sum(label for _, _, label in own) * 2 == len(own), "balanced"
        for a, b, label in own:
            distance = numbers[b] - numbers[a]
            assert (distance in (1, 3)) == (label == 1)
            assert abs(distance) not in (1, 3) or label == 1, "a pair of label 0 cites in neither direction"


def test_short_papers_are_left_out():
    tiny.papers()
    rows = tasks.build("citations", official=False).dataset("train")
    before = len(rows.documents)
    lines = [f'{{"id": "p{i}", "text": "{"short" if i == 7 else tiny.sentence(i, 120)}"}}' for i in range(60)]
    tiny.write("citations/papers.jsonl", lines)
    assert len(tasks.build("citations", official=False).dataset("train").documents) == before - 1


def test_papers_in_pairs_of_bytes():
    """The same pairs, in fewer tokens, that say the same."""
    tiny.papers()
    tiny.wikitext("wikitext-2")
    plain = tasks.build("citations", official=False)
    paired = tasks.build("citations", official=False, tokens="bpe", bpe_size=300)
    assert plain.vocab_size < paired.vocab_size
    assert plain.pad_token_id != paired.pad_token_id
    for row, expected in zip(paired.dataset("valid"), plain.dataset("valid"), strict=True):
        assert row["labels"] == expected["labels"]
        for name in ("input_ids", "pair_input_ids"):
            text = paired._vocabulary.decode(row[name].tolist())
            assert text.encode() == bytes(expected[name].tolist())
            assert len(row[name]) < len(expected[name])
    with pytest.raises(ValueError, match="tokens must be one of bytes, bpe, but got 'words'"):
        tasks.build("citations", tokens="words")


def test_a_paper_that_is_there_twice():
    tiny.papers()
    tiny.write(
        "citations/papers.jsonl", ['{"id": "a", "text": "x"}', '{"id": "b", "text": "' + "x" * 600 + '"}'] * 2
    )
    with pytest.raises(tasks.DataError, match=r"papers.jsonl, line 4: paper 'b' is there twice"):
        tasks.build("citations", official=False).dataset("train")


def test_retrieval_keeps_a_text_once():
    tiny.aan()
    rows = tasks.build("retrieval", official=False, length=10).dataset("valid")
    assert len(rows) == 20
    assert len(rows.documents) == 21
    expected = [
        (tiny.sentence(i).encode()[:10], tiny.sentence(i + 1).encode()[:10], i % 2) for i in range(20)
    ]
    assert texts(rows) == expected


def test_image_order():
    tiny.cifar()
    task = tasks.build("image", official=False)
    train, valid, test = (task.dataset(s) for s in ("train", "valid", "test"))
    assert [len(train), len(valid), len(test)] == [18, 2, 4]
    first = [int(row["input_ids"][0]) for rows in (train, valid) for row in rows]
    assert first == list(range(20)), "row by row, sheet by sheet"
    assert [int(row["labels"]) for row in test] == [0, 1, 2, 3]
    assert train[0]["input_ids"].shape == (1024,)


@pytest.mark.parametrize("side", [8, 16])
def test_smaller_pictures_are_means_of_blocks(side):
    tiny.cifar()
    small = tasks.build("image", side=side, official=False)
    rows, original = small.dataset("test"), tasks.build("image", official=False).dataset("test")
    assert small.length == side**2
    block = 32 // side
    for row, picture in zip(rows, original.pictures, strict=True):
        found = row["input_ids"].reshape(side, side).numpy()
        assert found[1, 2] == int(picture[block : 2 * block, 2 * block : 3 * block].mean())
    with pytest.raises(ValueError, match="side must be a divisor of 32, but got 12"):
        tasks.build("image", side=12)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2], [3], [B, 1, 2, S, 3, E]),
        ([1] * 9, [3], [B, 1, 1, 1, 1, S, 3, E]),
        ([1], [3] * 9, [B, 1, S, 3, 3, 3, 3, E]),
        ([1] * 9, [3] * 9, [B, 1, 1, 1, S, 3, 3, E]),
        ([], [3] * 5, [B, S, 3, 3, 3, 3, 3, E]),
    ],
)
def test_the_longer_text_is_cut_first(first, second, expected):
    assert _framed([first, second], Bytes(), 8) == expected


def test_one_text():
    assert _framed([[1, 2]], Bytes(), 8) == [B, 1, 2, E]
    assert _framed([[1] * 20], Bytes(), 8) == [B, 1, 1, 1, 1, 1, 1, E]


def entailment():
    tiny.glue(
        "RTE", ["index", "sentence1", "sentence2", "label"], ["entailment", "not_entailment"], (1, 2), 3
    )


def test_rows_of_a_pair_task():
    entailment()
    rows = tasks.build("rte", official=False).dataset("test")
    for i, row in enumerate(rows):
        expected = [B, *tiny.sentence(i + 1).encode(), S, *tiny.sentence(i + 2).encode(), E]
        assert row["input_ids"].tolist() == expected
        assert int(row["labels"]) == i % 2


def test_two_texts_apart():
    """Each framed and cut by itself, under the names that the head for pairs takes; the labels stay."""
    entailment()
    whole, apart = (tasks.build("rte", official=False, apart=a) for a in (False, True))
    assert (whole.head, apart.head) == ("classification", "pair_classification")
    for i, (row, other) in enumerate(zip(apart.dataset("test"), whole.dataset("test"), strict=True)):
        assert row["input_ids"].tolist() == [B, *tiny.sentence(i + 1).encode(), E]
        assert row["pair_input_ids"].tolist() == [B, *tiny.sentence(i + 2).encode(), E]
        assert row["labels"] == other["labels"]
        assert other.keys() == {"input_ids", "labels"}
    short = tasks.build("rte", official=False, apart=True, length=8).dataset("test")[0]
    assert short["pair_input_ids"].tolist() == [B, *tiny.sentence(2).encode()[:6], E]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sst2", {"apart": True}, "apart=True is for tasks of two texts, and sst2 has one: leave it out"),
        ("rte", {"apart": "yes"}, "apart must be True or False, but got 'yes'"),
        ("rte", {"fold": 5}, "fold must be a number from 0 to 4, or None for the official parts, but got 5"),
        ("rte", {"fold": -1}, "fold must be a number from 0 to 4"),
        ("rte", {"fold": True}, "fold must be a number from 0 to 4"),
        ("rte", {"fold": 1.0}, "fold must be a number from 0 to 4"),
    ],
)
def test_mistakes_in_settings(name, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tasks.build(name, **settings)


def test_folds():
    """Every training row is tested on in one fold, and there in one split."""
    tested = []
    for fold in range(FOLDS):
        train, valid, test = (held_out(1003, 0.1, split, fold) for split in ("train", "valid", "test"))
        assert sorted([*train, *valid, *test]) == list(range(1003))
        assert (len(valid), len(test)) == (80, 201 if fold < 3 else 200)
        tested += test.tolist()
    assert sorted(tested) == list(range(1003))


@pytest.mark.parametrize("apart", [False, True])
def test_a_fold_needs_no_development_set(apart, tmp_path):
    entailment()
    (development,) = tmp_path.rglob("dev.tsv")
    development.unlink()
    task = tasks.build("rte", official=False, fold=1, apart=apart)
    for split in ("train", "valid", "test"):
        expected = [tiny.sentence(i + 1).encode() for i in held_out(20, 0.1, split, 1)]
        found = [row["input_ids"].tolist() for row in task.dataset(split)]
        assert [bytes(ids[1 : 1 + len(text)]) for ids, text in zip(found, expected, strict=True)] == expected


def test_held_out_rows():
    train, valid = held_out(1000, 0.1, "train"), held_out(1000, 0.1, "valid")
    assert len(valid) == 100
    assert sorted([*train, *valid]) == list(range(1000))
    assert np.array_equal(valid, held_out(1000, 0.1, "valid"))
    assert len(held_out(400_000, 0.1, "valid")) == 5000
    assert held_out(1000, 0.1, "test") is None
    for share in (0.0, 1.0, 3, "some"):
        with pytest.raises(ValueError, match="held_out must be a share of the training rows"):
            tasks.build("sst2", held_out=share)


def test_the_same_bpe_as_in_pretraining():
    tiny.wikitext("wikitext-2")
    tiny.glue("SST-2", ["sentence", "label"], ["0", "1"], (0,), 1)
    settings = {"tokens": "bpe", "bpe_size": 300}
    fine, pre = tasks.build("sst2", official=False, **settings), tasks.build("mlm", **settings)
    assert fine.vocab_size == pre.vocab_size
    row = fine.dataset("test")[0]["input_ids"].tolist()
    assert pre._vocabulary.decode(row) == tiny.sentence(0)
    assert len(row) < len(tiny.sentence(0).encode())
    assert torch.equal(fine.dataset("test")[0]["input_ids"], torch.tensor(row))
