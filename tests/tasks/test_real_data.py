"""The official counts of every data set that is present under COSFORMER_DATA of the surroundings."""

import hashlib
import math
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cosformer import tasks
from cosformer.tasks.io import corpora, sources

DATA = os.environ.get("COSFORMER_DATA")

pytestmark = pytest.mark.skipif(
    not DATA, reason="COSFORMER_DATA is not set: there is no real data to look at"
)


@pytest.fixture(autouse=True)
def _real(monkeypatch, _own_folders):
    monkeypatch.setenv("COSFORMER_DATA", DATA)


def present(*names):
    try:
        return [sources.find(name, advice="") for name in names]
    except tasks.DataError as error:
        pytest.skip(str(error))


# Rows by label of train and dev. MRPC's training file may lack one pair.
GLUE = {
    "sst2": ("SST-2", {0: 29_780, 1: 37_569}, {0: 428, 1: 444}),
    "cola": ("CoLA", {0: 2_528, 1: 6_023}, {0: 322, 1: 721}),
    "mrpc": ("MRPC", {0: 1_194, 1: 2_474}, {0: 129, 1: 279}),
    "rte": ("RTE", {0: 1_249, 1: 1_241}, {0: 146, 1: 131}),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue(name):
    folder, *expected = GLUE[name]
    present(f"glue/{folder}/train.tsv", f"glue/{folder}/dev.tsv")
    task = tasks.build(name)
    for part, counts in zip(("train", "test"), expected, strict=True):
        labels = [int(label) for _, label in task.records(part)]
        assert len(labels) in task.count(part)
        missing = {label: n - labels.count(label) for label, n in counts.items()}
        assert sum(missing.values()) == sum(counts.values()) - len(labels)
        assert all(n in (0, 1) for n in missing.values())
    assert len(task.dataset("test")) == sum(expected[1].values())


def test_stsb():
    present("glue/STS-B/train.tsv", "glue/STS-B/dev.tsv")
    task = tasks.build("stsb")
    scores = {part: [score for _, score in task.records(part)] for part in ("train", "test")}
    assert {part: len(own) for part, own in scores.items()} == {"train": 5_749, "test": 1_500}
    assert all(0 <= s <= 5 for own in scores.values() for s in own)


@pytest.mark.parametrize(
    ("name", "folder", "train", "test"),
    [("qnli", "QNLI", 104_743, 5_463), ("qqp", "QQP", 363_846, 40_430), ("mnli", "MNLI", 392_702, 9_815)],
)
def test_larger_glue(name, folder, train, test):
    present(f"glue/{folder}/train.tsv")
    task = tasks.build(name)
    assert len(list(task.records("train"))) == train
    assert len(list(task.records("test"))) == test


def test_imdb():
    (path,) = present("imdb/labeled.jsonl")
    counts = Counter((r["split"], r["label"]) for _, r in sources.jsonl(path, {"text": str}))
    assert counts == {(part, label): 12_500 for part in ("train", "test") for label in (0, 1)}


def test_unlabelled_reviews():
    (path,) = present("imdb/unsup.jsonl")
    assert sum(piece.count(b"\n") for piece in sources.pieces(path)) == 50_000


@pytest.mark.parametrize("name", ["wikitext2", "wikitext103"])
def test_wikitext(name):
    task = tasks.build(name)
    folder = {"wikitext2": "wikitext-2", "wikitext103": "wikitext-103"}[name]
    present(*(f"{folder}/wiki.{split}.tokens" for split in ("train", "valid", "test")))
    words = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    if name == "wikitext103":
        words["train"] = 103_227_021
    assert {split: len(task.dataset(split).stream) for split in words} == words
    assert task.vocab_size == {"wikitext2": 33_278, "wikitext103": 267_735}[name]


def test_wikitext2_articles_and_lines():
    present(*(f"wikitext-2/wiki.{split}.raw" for split in ("train", "valid", "test")))
    for split, lines, articles in (("train", 36_718, 600), ("valid", 3_760, 60), ("test", 4_358, 60)):
        for kind in ("raw", "tokens"):
            assert sum(1 for _ in sources.lines(corpora.wikitext("wikitext2", split, kind))) == lines
        assert sum(1 for _ in corpora.documents("wikitext2", split)) == articles


def test_enwik8():
    (path,) = present("enwik8/enwik8")
    digest, size = hashlib.md5(usedforsecurity=False), 0
    for piece in sources.pieces(path):
        digest.update(piece)
        size += len(piece)
    assert size == 10**8
    assert digest.hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"


def test_image_labels():
    """The sheets themselves take some seconds each to read: `benchmarks.tasks` looks at them."""
    present("cifar10/labels.json")
    from cosformer.tasks.lra import image

    labels = image._labels(sources.find("cifar10/labels.json", advice=""), official=True)
    assert np.bincount(labels["train"]).tolist() == [5_000] * 10
    assert np.bincount(labels["test"]).tolist() == [1_000] * 10


def test_citations():
    present("citations/papers.jsonl", "citations/citations.tsv")
    task = tasks.build("citations")
    rows = {split: task.dataset(split) for split in ("train", "valid", "test")}
    seen = {split: set(own.first.tolist()) | set(own.second.tolist()) for split, own in rows.items()}
    assert not seen["train"] & seen["valid"]
    assert not seen["train"] & seen["test"]
    assert not seen["valid"] & seen["test"]
    for own in rows.values():
        assert own.labels.mean() == 0.5
    assert [len(own) for own in rows.values()] == [37_744, 2_142, 3_078]
    page = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
    assert "| 2 × 4,000 | 37,744 / 2,142 / 3,078 |" in page.read_text()


def test_how_far_shared_words_tell_citations():
    """The cosine of tf-idf, and the threshold that is best on train: as far in test."""
    present("citations/papers.jsonl", "citations/citations.tsv")
    task = tasks.build("citations")
    rows = {split: task.dataset(split) for split in ("train", "test")}
    chosen = {
        split: [(int(own.first[i]), int(own.second[i]), int(own.labels[i])) for i in range(0, len(own), step)]
        for (split, own), step in zip(rows.items(), (6, 2), strict=True)
    }
    papers = {p for own in chosen.values() for a, b, _ in own for p in (a, b)}
    texts = {p: bytes(rows["train"].documents.row(p, task.length).tolist()).lower() for p in papers}
    words = {p: Counter(re.findall(rb"[a-z]{3,}", text)) for p, text in texts.items()}
    seen = Counter(word for own in words.values() for word in own)

    def vector(paper):
        weights = {
            word: (1 + math.log(n)) * math.log(len(papers) / seen[word]) for word, n in words[paper].items()
        }
        norm = math.hypot(*weights.values())
        return {word: x / norm for word, x in weights.items()}

    vectors = {p: vector(p) for p in papers}
    told = {
        split: (
            np.array(
                [sum(x * vectors[b].get(word, 0.0) for word, x in vectors[a].items()) for a, b, _ in own]
            ),
            np.array([label for *_, label in own]),
        )
        for split, own in chosen.items()
    }
    cosines, labels = told["train"]
    threshold = max(cosines, key=lambda x: ((cosines > x) == labels).mean())
    shares = {split: ((own > threshold) == label).mean() for split, (own, label) in told.items()}
    assert 0.78 < shares["train"] < 0.86
    assert abs(shares["test"] - shares["train"]) < 0.03


def test_what_the_bytes_of_wikitext_2_give_by_themselves():
    """docs/results.md says what a masked language model has to be better than."""
    train, valid = (
        np.bincount(np.frombuffer(sources.opened(path).read(), np.uint8), minlength=256)
        for path in present("wikitext-2/wiki.train.raw", "wikitext-2/wiki.valid.raw")
    )
    known = (train + 1) / (train + 1).sum()
    assert np.exp(-(valid / valid.sum() * np.log(known)).sum()) == pytest.approx(23.9, abs=0.05)
