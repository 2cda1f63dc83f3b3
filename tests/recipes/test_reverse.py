"""Reversing: its data, its metric, and the record that it left."""

from pathlib import Path

import pytest
import torch

from cosformer import reading, tasks
from cosformer.models import CosformerForConditionalGeneration
from cosformer.tasks.synthetic.reverse import END, PAD
from cosformer.training import Run, best, recipes, train

RESULTS = Path(__file__).resolve().parents[2] / "results" / "reverse.jsonl"


def test_answers_are_the_sources_reversed():
    task = tasks.build("reverse", train_rows=200)
    data = task.dataset("train")
    rows = [data[i] for i in range(200)]
    batch = task.collate(rows)
    for source, real, answer in zip(
        batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True
    ):
        wanted = [*source[real].flip(0).tolist(), END]
        assert answer[: len(wanted)].tolist() == wanted
        assert (answer[len(wanted) :] == -100).all()
        assert (source[~real] == PAD).all()
    assert len({len(row["input_ids"]) for row in rows}) == 9, "all lengths occur"


def test_a_tiny_one_learns_what_it_then_generates(tmp_path):
    """The metric is about predictions from the right tokens; it equals the exact matches of generation, also
    where the model is not perfect."""
    settings = {"letters": 6, "longest": 4}
    run = recipes.build("reverse", scale="tiny", device="cpu", steps=100, task_settings=settings)
    record = train(run, tmp_path, progress=False, results=tmp_path / "results.jsonl")
    assert 0.2 < record["metric"]["test"]["exact"] < 1
    task = tasks.build("reverse", **run.task_settings)
    data = task.dataset("test")
    batch = task.collate([data[i] for i in range(len(data))])
    model = CosformerForConditionalGeneration.from_pretrained(best(tmp_path))
    labels = batch.pop("labels")
    made = model.generate(**batch, max_new_tokens=labels.shape[1], do_sample=False)[:, 1:]
    made = torch.nn.functional.pad(made, (0, labels.shape[1] - made.shape[1]), value=PAD)
    exact = ((made == labels) | (labels == -100)).all(1).double().mean()
    assert float(exact) == record["metric"]["test"]["exact"]


@pytest.mark.parametrize("record", reading.json_lines(RESULTS), ids=lambda record: record["mechanism"])
def test_recorded_runs_are_complete(record):
    assert record["metric"]["test"]["exact"] > 0.95
    assert record["commit"]["id"]
    assert not record["commit"]["dirty"]
    assert Run.from_dict(record["settings"]).recipe == "reverse"
