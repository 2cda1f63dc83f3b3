"""The benchmark of the generated tasks: what it measures, what it finds wrong, what it renders."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import listops_judge
from benchmarks import tasks as benchmark
from cosformer import tasks
from cosformer.report.render import markdown
from cosformer.report.sections.generators import document

REPORTS = sorted((Path(__file__).parents[2] / "benchmarks/reports").glob("tasks-*.json"))


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path))
    monkeypatch.setenv("COSFORMER_WORKERS", "1")
    monkeypatch.setattr(benchmark, "REGROWN", 5)


def listops(**settings):
    sizes = {"train_rows": 40, "valid_rows": 5, "test_rows": 5}
    return tasks.build("listops", min_length=10, max_length=60, **sizes | settings)


def test_distributions_are_those_of_the_trees():
    found = benchmark.listops(min_length=10, max_length=60, train_rows=300, valid_rows=20, test_rows=20)
    task = tasks.build("listops", min_length=10, max_length=60, train_rows=300, valid_rows=20, test_rows=20)
    rows = [row for split in ("train", "valid", "test") for row in task.dataset(split)]
    texts = [" ".join(benchmark.SYMBOLS[t] for t in row["input_ids"].tolist()) for row in rows]
    ours = found["distributions"]
    assert ours["trees"] == 340
    for depth, share in ours["depth shares"].items():
        assert share == pytest.approx(
            np.mean([listops_judge.depth(t) == int(depth) for t in texts]), abs=1e-4
        )
    for label, share in enumerate(ours["label shares"]):
        assert share == pytest.approx(np.mean([int(r["labels"]) == label for r in rows]), abs=1e-4)
    assert ours["length deciles"][0] == min(len(t.split()) for t in texts)
    assert found["judged"] == {"labels": 340, "denied": 0}


def test_wrong_labels_are_denied(monkeypatch):
    task = listops()
    real = type(task).dataset

    def wrong(self, split):
        rows = real(self, split)
        rows.labels = (np.asarray(rows.labels) + (np.arange(len(rows)) == 0)) % 10
        return rows

    monkeypatch.setattr(type(task), "dataset", wrong)
    assert benchmark.judged(task, 50) == {"labels": 50, "denied": 3}, "the first of each split"


def test_trees_of_the_published_rules_keep_the_limits():
    texts, grown = listops_judge.published(random.Random(1), 5)
    assert grown > 5
    for text in texts:
        assert 500 < len(text.split()) < 2000
        assert 2 <= listops_judge.depth(text) <= 10
        assert 0 <= listops_judge.value(text) <= 9


@pytest.mark.parametrize("record", REPORTS, ids=lambda path: path.stem)
def test_reports_are_rendered_from_their_records(record):
    data = json.loads(record.read_text())
    assert record.with_suffix(".md").read_text() == markdown(document(data))
    assert not data["commit"]["dirty"]
    assert data["tasks"]["listops"]["judged"] == {"labels": 10_000, "denied": 0}
    assert sum(data["tasks"]["pathfinder"]["rows"].values()) == 200_000
