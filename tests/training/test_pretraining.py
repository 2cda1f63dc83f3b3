"""Pretraining on the inputs of a run's own task, and what the run then begins with."""

import json

import pytest
import torch

from cosformer import tasks
from cosformer.cli import main
from cosformer.models import CosformerForMaskedLM, CosformerForSequenceClassification
from cosformer.training import best, model, pretraining, recipes, train
from tests.training.toy import recall, toy

COMMAND = [
    "train", "pathfinder", "--scale", "tiny", "--pretrain", "4", "steps=2", "eval_every=2", "warmup=0",
    "task_settings.train_rows=16", "task_settings.valid_rows=4", "task_settings.test_rows=4",
    "batch_size=4", "model.hidden_size=16", "device=cpu",
]  # fmt: skip


def test_a_run_starts_from_what_was_learned_from_its_inputs(tmp_path):
    run = toy(workers=0, steps=2, learning_rate=1e-9, weight_decay=0.0, group_by_length=True)
    before = pretraining(run, steps=8, learning_rate=3e-3)
    assert (before.task, before.steps, before.seed) == ("masked", 8, run.seed)
    assert before.task_settings == {"of": "toy", "settings": {}}
    results = tmp_path / "results.jsonl"
    train(before, tmp_path / "before", progress=False, results=results)
    train(run.replace(initial=str(tmp_path / "before")), tmp_path / "run", progress=False, results=results)
    start = CosformerForMaskedLM.from_pretrained(best(tmp_path / "before")).model.state_dict()
    end = CosformerForSequenceClassification.from_pretrained(best(tmp_path / "run")).model.state_dict()
    holes = start["embed_tokens.weight"][3:]
    start["embed_tokens.weight"] = start["embed_tokens.weight"][:3]  # as many tokens as the task has
    assert len(holes) == 5
    for name, x in start.items():
        torch.testing.assert_close(end[name], x, rtol=0, atol=1e-6)
    drawn = model.build(before, tasks.build("masked", **before.task_settings)).model.state_dict()
    assert not torch.equal(drawn["embed_tokens.weight"][:3], start["embed_tokens.weight"]), "it has learned"


def test_settings_of_the_holes():
    made = pretraining(recipes.build("text", scale="tiny"), steps=10, task_settings={"probability": 0.15})
    assert made.task_settings["probability"] == 0.15
    assert made.task_settings["of"] == "text"
    assert made.warmup == 0
    assert made.eval_every == made.save_every == 3
    run = recipes.build("citations", scale="small", model={"pooling": "max", "classifier_dropout": 0.1})
    assert run.model["pair_difference"] == "absolute"
    own = ("pair_difference", "pooling", "classifier_dropout")
    left = pretraining(run, steps=10).model
    assert left == {name: x for name, x in run.model.items() if name not in own}, "nothing is classified"


def test_a_language_model_is_refused():
    with pytest.raises(ValueError, match="but 'mqar' is none"):
        pretraining(recall(), steps=2)


def test_the_command(tmp_path, monkeypatch, capfd, caplog):
    """Both runs, in folders beside each other; finished, neither is trained again."""
    monkeypatch.chdir(tmp_path)
    assert main(COMMAND) == 0
    said, shown = capfd.readouterr()
    assert "Loading weights" not in shown, "ours is one line"
    assert "has no score.weight, score.bias: drawn from the run's seed." in caplog.text
    name = "runs/pathfinder-tiny-cosformer-0"
    assert f"Pretrained in {name}-pretraining: perplexity" in said
    assert f"Kept in {name}-pretrained; recorded in" in said
    record = json.loads((tmp_path / f"{name}-pretrained/record.json").read_text())
    assert record["settings"]["initial"] == f"{name}-pretraining"
    assert len((tmp_path / "results/masked.jsonl").read_text().splitlines()) == 1
    monkeypatch.setattr("cosformer.training.main.Loop", None)
    assert main(COMMAND) == 0
    assert capfd.readouterr().out.startswith("Nothing was trained: ")


@pytest.mark.parametrize("schedule", ["cosine", "rsqrt"])
def test_a_warmup_that_is_longer_than_the_run_is_told(schedule, capsys):
    """One that ends with it is not."""
    for warmup in (4, 8):
        words = ["steps=4", f"warmup={warmup}", f"schedule={schedule}", "--print_config"]
        assert main(["train", "mqar", "--scale", "tiny", *words]) == 0
        said = capsys.readouterr().err
        assert ("warmup" in said) == (warmup == 8)
    assert "is not over after steps=4: the learning rate comes to 50% of its highest" in said
