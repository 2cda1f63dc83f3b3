"""Fetching: the rows of `datasets` come out in the files that the loaders read."""

import sys
import types

import pytest

from cosformer import tasks
from tests.tasks import tiny

SPLITS = {"validation": 3, "test": 3, "validation_matched": 3, "validation_mismatched": 3}


@pytest.fixture
def home(monkeypatch):
    """A stand-in for the package, with three rows a split (twelve in train)."""
    asked = []

    def load_dataset(*arguments, split):
        asked.append((*arguments, split))
        name = arguments[-1]
        rows = range(SPLITS.get(split, 12))
        single = ["text", "sentence", "question", "premise", "hypothesis"]
        fields = [*single, "sentence1", "sentence2", "question1", "question2"]
        labels = 3 if name == "mnli" else 2
        return [
            {f: f"{f} {i}\twith a tab" if f != "text" else f" {f} {i} \n" for f in fields}
            | {"label": 2.5 if name == "stsb" else i % labels}
            for i in rows
        ]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


@pytest.mark.parametrize("name", ["sst2", "cola", "mrpc", "rte", "stsb", "qnli", "qqp", "mnli"])
def test_glue(name, home):
    written = tasks.fetch(name)
    assert len(written) == (3 if name == "mnli" else 2)
    task = tasks.build(name, official=False)
    rows = task.dataset("train"), task.dataset("valid"), task.dataset("test")
    assert [len(r) for r in rows] == [11, 1, 3]
    (first, *_), label = next(task.records("test"))
    assert first.endswith("0 with a tab")
    assert label == (2.5 if name == "stsb" else 0)
    assert home[0][:2] == ("nyu-mll/glue", name)
    assert tasks.fetch(name) == [], "what is there is not fetched again"


def test_imdb_and_wikitext(home):
    assert [p.name for p in tasks.fetch("imdb")] == ["labeled.jsonl", "unsup.jsonl"]
    assert len(tasks.build("text", official=False).dataset("test")) == 3
    assert len(tasks.fetch("wikitext2")) == 6
    assert len(tasks.build("wikitext2", official=False, length=8).dataset("valid")) > 0


def test_what_is_under_cosformer_data_is_not_fetched(home):
    tiny.reviews()
    assert [p.name for p in tasks.fetch("imdb")] == ["unsup.jsonl"]


def test_a_failure_leaves_nothing(home, monkeypatch, tmp_path):
    def broken(*arguments, split):
        yield {"text": "one", "label": 0}
        raise ConnectionError("gone")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", broken)
    with pytest.raises(ConnectionError):
        tasks.fetch("imdb")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(tasks.DataError, match=r"needs the package `datasets` \(pip install datasets\)"):
        tasks.fetch("imdb")


def test_what_cannot_be_fetched():
    with pytest.raises(ValueError, match="'amazon' cannot be fetched: known are cola, imdb, mnli"):
        tasks.fetch("amazon")
