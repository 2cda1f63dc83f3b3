"""The benchmarks of training: what they measure, and what they render."""

import pytest
import torch

from benchmarks import learning, recall, training
from cosformer import tasks
from cosformer.training import files
from tests.training.conftest import _toy  # noqa: F401 (a fixture)
from tests.training.toy import recall as tiny_recall
from tests.training.toy import toy


def test_the_trainer_is_measured_beside_the_bare_model(tmp_path):
    measured = training.measure(toy(workers=0, recipe="toy", steps=20, log_every=4), seconds=0.02)
    assert measured["share"] == measured["tokens_per_s"] / measured["bare_tokens_per_s"]
    assert measured["tokens_per_s"] > 0
    data = {
        "scale": "tiny", "measured": [measured], "absent": {"enwik8": "no such file"},
        "hardware": {"cpu": "x"}, "versions": {"torch": "2"}, "commit": {"id": "abc"}, "date": "today",
    }  # fmt: skip
    text = training.to_markdown(data)
    assert f"The lowest share is {measured['share']:.0%}; at least 40% was promised." in text
    assert "no such file" in text


def test_the_sweep_counts_states_and_renders_records(tmp_path):
    planned = recall.runs("tiny", ["cosformer", "softmax"], [32, 64], seed=3)
    assert len(planned) == 8
    assert {(r.task, r.seed) for r in planned} == {("mqar", 3), ("copy", 3)}
    sizes = {(r.attention, r.model["hidden_size"]): recall.state_size(r) for r in planned if r.task == "mqar"}
    heads, layers, length = 2, 2, 32
    for width in (32, 64):
        d = width // heads
        assert sizes["cosformer", width] == layers * heads * 2 * (d * d + d), "numerators and denominators"
        assert sizes["softmax", width] == layers * heads * 2 * d * length, "keys and values"
    for number, run in enumerate([*planned, planned[0]]):
        metric = {"test": {"accuracy": number / 10, "exact": 0.0}}
        record = {"id": str(number), "settings": run.to_dict(), "metric": metric}
        files.append_once(tmp_path / f"{run.task}.jsonl", record, "id")
    found = recall.points(tmp_path, "tiny")
    assert len(found) == 8
    newest = next(p for p in found if (p["task"], p["attention"], p["width"]) == ("mqar", "cosformer", 32))
    assert newest["accuracy"] == 0.8, "of two records of the same run the later one counts"
    recall.render(tmp_path, "tiny", tmp_path)
    assert "| softmax | 64 |" in (tmp_path / "recall-tiny.md").read_text().replace("  ", " ")
    assert (tmp_path / "recall-tiny.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="no record at scale paper"):
        recall.render(tmp_path, "paper", tmp_path)


def test_chance_is_what_counting_scores():
    task = tasks.build("toy", rows=101)
    data = task.dataset("test")
    ones = sum(int(data[i]["labels"]) for i in range(101)) / 101
    train_ones = sum(int(task.dataset("train")[i]["labels"]) for i in range(101)) / 101
    assert learning.chance(task)["accuracy"] == pytest.approx(ones if train_ones > 0.5 else 1 - ones)
    run = tiny_recall()
    by_counting = learning.chance(tasks.build("mqar", **run.task_settings))
    assert 0 < by_counting["accuracy"] < 0.5
    for name, better in (("accuracy", 0.3), ("bits", 0.1)):
        record = {
            "metric": {"name": name, "higher_is_better": name == "accuracy", "test": {name: better}},
            "chance": {name: 0.2},
        }
        assert learning.learned(record)
        record["metric"]["test"][name] = 0.2
        assert not learning.learned(record)


def test_chance_of_a_language_model_is_its_unigram_entropy(tiny_text):
    """Equal frequencies of four letters: two bits each."""
    task = tasks.build("enwik8", official=False, length=32)
    assert learning.chance(task)["bits_per_character"] == pytest.approx(2, abs=0.05)


@pytest.fixture
def tiny_text(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    (tmp_path / "enwik8").mkdir()
    letters = torch.randint(4, (40_000,), generator=torch.Generator().manual_seed(0))
    (tmp_path / "enwik8" / "enwik8").write_bytes(bytes((letters + 97).tolist()))
