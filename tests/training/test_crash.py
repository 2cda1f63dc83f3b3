"""A run that is killed and resumed ends as if nothing had happened, to the bit."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cosformer.training import Diverged, best, checkpoint, evaluate, files, train
from cosformer.training.trainer import RunTrainer
from tests.training.crash import DEATHS
from tests.training.toy import recall, toy

ROOT = Path(__file__).resolve().parents[2]
STATE = ("model.safetensors", "optimizer.safetensors", "random-0.safetensors")


def log_of(folder):
    """What follows from the run alone."""
    lines = files.lines(folder / "log.jsonl")
    return [line for line in lines if line.get("event") not in ("speed", "resumed")]


def samples_of(folder):
    """The samples of each update; a step that was made twice must have seen the same ones."""
    seen = {}
    for line in (folder / "samples.jsonl").read_text().splitlines():
        step, digest = json.loads(line)
        assert seen.setdefault(step, digest) == digest
    return seen


def same(folder, whole):
    last = checkpoint.name(12)
    for name in STATE:
        assert (folder / last / name).read_bytes() == (whole / last / name).read_bytes(), name
    assert log_of(folder) == log_of(whole)
    assert len(log_of(whole)) == 12 + 2 + 1, "every step, two evaluations and the test"


def test_killed_anywhere_and_resumed_is_the_same_to_the_bit(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.crash", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = json.loads((tmp_path / "ends.json").read_text())
    whole = tmp_path / "never"
    for name, deaths in DEATHS.items():
        folder = tmp_path / name.replace(" ", "-")
        *died, finished = ends[name]
        assert finished == 0, (name, ends[name], done.stderr)
        expected = [3 if "interrupt" in death else -9 for death in deaths]
        if "after" not in deaths[0]:  # when a clock kills, a session may have ended before
            assert died == expected, (name, done.stderr)
        same(folder, whole)
        assert samples_of(folder) == samples_of(whole), name
        assert len(files.lines(folder / "results.jsonl")) == 1
        assert not list(folder.glob(".partial-*")), "what a crash left was swept up"
    assert len(set(samples_of(whole).values())) == 12, "the updates see different samples"


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A run that stopped after 9 steps, with checkpoints of steps 4, 6 and 8, and its end if it had not."""
    train(toy(workers=0), tmp_path / "whole", progress=False, results=tmp_path / "results.jsonl")
    folder = tmp_path / "run"
    base = RunTrainer.training_step

    def fails(self, *args):
        if self.state.global_step == 9:
            raise OSError("the disk is on fire")
        return base(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "training_step", fails)
        with pytest.raises(OSError, match="on fire"):
            train(toy(workers=0), folder, progress=False, results=tmp_path / "results.jsonl")
    assert checkpoint.steps(folder)[-2:] == [6, 8] or checkpoint.steps(folder)[-1] == 8
    return folder


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", truncate),
        ("model.safetensors", flip),
        ("optimizer.safetensors", flip),
        ("status.json", truncate),
        ("manifest.json", truncate),
        ("manifest.json", Path.unlink),
        ("random-0.safetensors", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_passed_by(interrupted, tmp_path, caplog, name, damage):
    damage(interrupted / "checkpoint-8" / name)
    with caplog.at_level(logging.WARNING):
        train(toy(workers=0), interrupted, progress=False, results=tmp_path / "results.jsonl")
    assert "checkpoint-8 is damaged" in caplog.text
    resumed = [e["step"] for e in files.lines(interrupted / "log.jsonl") if e.get("event") == "resumed"]
    assert resumed == [6]
    same(interrupted, tmp_path / "whole")
    assert checkpoint.damage(interrupted / "checkpoint-8") is None or 8 not in checkpoint.steps(interrupted)
