"""`train`, `eval`, `compare` and `data` over the smallest recipe there is."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cosformer.cli import main, runs
from cosformer.training import Diverged, best

ROOT = Path(__file__).parents[2]
SHORT = ["mqar", "--scale", "tiny", "steps=6", "eval_every=3", "save_every=3", "log_every=2", "warmup=0",
         "task_settings.train_rows=64", "task_settings.valid_rows=8", "task_settings.test_rows=8",
         "batch_size=8", "model.hidden_size=16", "device=cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    where = ["--folder", str(folder), "--results", str(folder / "r.jsonl")]
    assert main(["compare", *SHORT, "--attentions", "cosformer, relu,cosformer", *where]) == 0
    return folder


def test_the_whole_run_is_shown(capsys):
    assert main(["train", *SHORT, "--print_config", "--attention", "linear", "seed=7"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["attention"], shown["steps"], shown["seed"]) == ("linear", 6, 7)
    assert shown["model"]["hidden_size"] == 16
    assert shown["task_settings"]["train_rows"] == 64
    assert shown["model"]["num_hidden_layers"] == 2, "what was not said stays the recipe's"


def test_the_whole_run_is_shown_where_data_are_missing(capsys, monkeypatch, tmp_path):
    for variable in ("COSFORMER_DATA", "COSFORMER_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))
    assert main(["train", "wikitext2", "--print_config", "steps=6"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["steps"] == 6
    assert "The settings of the model were not checked: wikitext-2/wiki.train.tokens" in said.err
    assert main(["train", "wikitext2", "--print_config", "steps=-1"]) == 2
    assert main(["train", "wikitext2"]) == 2, "to train, data are needed"


def test_a_comparison_leaves_records_and_a_page(compared):
    kept = [json.loads(line) for line in (compared / "r.jsonl").read_text().splitlines()]
    assert [r["mechanism"] for r in kept] == ["cosformer", "relu"]
    page = (compared / "report.html").read_text()
    assert page.count('class="plot"') == 2
    for record in kept:
        assert f"{record['metric']['test']['accuracy']:.4g}" in page


def test_a_finished_run_is_not_trained_again(compared, capsys, monkeypatch):
    monkeypatch.setattr("cosformer.training.main.Loop", None)
    arguments = ["train", *SHORT, "--folder", str(compared / "relu"), "--attention", "relu"]
    assert main([*arguments, "--results", str(compared / "r.jsonl")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Nothing was trained: ")
    assert "mqar, relu: accuracy" in said
    assert len((compared / "r.jsonl").read_text().splitlines()) == 2, "a run is recorded once"


def test_a_finished_comparison_says_so(compared, capsys):
    """And its attentions are as they were named: with spaces, each once."""
    where = ["--folder", str(compared), "--results", str(compared / "r.jsonl")]
    assert main(["compare", *SHORT, "--attentions", "cosformer,relu", *where]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "finished already" in line]
    assert [line.partition(":")[0] for line in said] == ["cosformer", "relu"]


@pytest.mark.parametrize("batch", ["1", "8"])
def test_scores_do_not_depend_on_the_batch(batch, compared, capsys):
    assert main(["eval", str(compared / "cosformer"), "--batch_size", batch]) == 0
    record = json.loads((compared / "cosformer/record.json").read_text())
    assert f"accuracy {record['metric']['test']['accuracy']:.6g}" in capsys.readouterr().out


def test_a_run_is_exported_as_a_saved_model(compared, tmp_path, capsys):
    assert main(["export", str(compared / "cosformer"), str(tmp_path / "model")]) == 0
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"README.md", "config.json", "generation_config.json", "model.safetensors"}
    assert not [path for path in tmp_path.iterdir() if path.name != "model"]
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    expected = AutoModelForCausalLM.from_pretrained(best(compared / "cosformer")).state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in found.items())


def test_a_damaged_run_is_not_scored(compared, tmp_path, capsys):
    (tmp_path / "run.json").write_text("{")
    assert main(["eval", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_what_diverges_fails(tmp_path, capsys, monkeypatch):
    def diverge(*args, **kwargs):
        raise Diverged(3, "loss", float("nan"))

    monkeypatch.setattr("cosformer.training.train", diverge)
    assert main(["train", *SHORT, "--folder", str(tmp_path)]) == 1
    assert "Lower learning_rate" in capsys.readouterr().err


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path):
    words = [*SHORT, "steps=100000", "log_every=1", "--folder", "run", "--results", "r.jsonl"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cosformer", "train", *words], cwd=tmp_path, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        log = tmp_path / "run/log.jsonl"
        while process.poll() is None and not (log.is_file() and '"step": 2,' in log.read_text()):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    command = re.search("continue with: cosformer (.*)", said)[1].split()
    assert list((tmp_path / "run").glob("checkpoint-*"))
    assert command[:2] == ["train", "mqar"]
    assert "steps=100000" in command


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("steps=1 seed=2 steps=3", "seed=2 steps=3"),
        ("model.hidden_size=8 model.hidden_size=16", "model.hidden_size=16"),
        ('model={"dropout":0} model.hidden_size=8 model={}', "model={}"),
        ("model={} model.hidden_size=8", "model={} model.hidden_size=8"),
    ],
)
def test_the_command_that_goes_on_repeats_nothing_that_was_overridden(given, kept):
    assert runs.repeated(given.split()) == kept.split()
    assert runs.overrides(given.split()) == runs.overrides(kept.split())


def test_tasks_are_listed_and_opened(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data/enwik8").mkdir(parents=True)
    (tmp_path / "data/enwik8/enwik8.gz").write_bytes(b"")
    assert main(["data"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["mqar"].endswith("ready")
    assert rows["listops"].endswith("will be generated: cosformer data listops")
    assert rows["enwik8"].endswith("will be generated: cosformer data enwik8")
    assert "missing: imdb/labeled.jsonl" in rows["imdb"]
    assert not (tmp_path / "cache").exists(), "to look is not to build"
    assert main(["data", "mqar", "train_rows=10", "valid_rows=3", "test_rows=2"]) == 0
    said = capsys.readouterr().out
    assert ["train", "10"] in [line.split() for line in said.splitlines()]
    assert "labels" in said
