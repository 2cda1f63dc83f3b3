"""A run that is killed and resumed ends as if nothing had happened, to the bit."""

import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cosformer import atomic, reading
from cosformer.training import Diverged, best, checkpoint, states, train
from cosformer.training.loop import Loop
from cosformer.training.objective import Objective
from tests.training.crash import DEATHS
from tests.training.toy import recall, toy

ROOT = Path(__file__).resolve().parents[2]
STATE = ("model.safetensors", "optimizer.safetensors", "random-0.safetensors")


def log_of(folder):
    """What follows from the run alone."""
    lines = reading.json_lines(folder / "log.jsonl")
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


def _text(path):
    try:
        return path.read_text()
    except OSError:  # the process has ended meanwhile
        return ""


def test_killed_anywhere_and_resumed_is_the_same_to_the_bit(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    # Not through pipes, whose end would not come while a process lives that it has left behind.
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "tests.training.crash", str(tmp_path)],
            cwd=ROOT, env=environment, stdout=file, stderr=file,
        )  # fmt: skip
    assert done.returncode == 0, output.read_text()
    ends = json.loads((tmp_path / "ends.json").read_text())
    whole = tmp_path / "never"
    for name, deaths in DEATHS.items():
        folder = tmp_path / name.replace(" ", "-")
        *died, finished = ends[name]
        assert finished == 0, (name, ends[name], output.read_text())
        for death, end in zip(deaths, died, strict=True):
            if "after" not in death:  # when a clock kills, the stretch may have ended before
                assert end == (3 if "interrupt" in death else -9), (name, death, output.read_text())
        same(folder, whole)
        assert samples_of(folder) == samples_of(whole), name
        assert len(reading.json_lines(folder / "results.jsonl")) == 1
        assert not list(folder.glob(".partial-*")), "what a crash left was swept up"
    assert len(set(samples_of(whole).values())) == 12, "the updates see different samples"
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _text(p)]
    assert not left, "workers go with the process they work for"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that stopped after 9 steps, its newest checkpoints those of steps 6 and 8; and the whole run."""
    base = tmp_path_factory.mktemp("stopped")
    train(toy(workers=0), base / "whole", progress=False, results=base / "results.jsonl")
    backward = Loop.backward

    def fails(self, parts):
        if self.status.step == 9:
            raise OSError("the disk is on fire")
        return backward(self, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "backward", fails)
        with pytest.raises(OSError, match="on fire"):
            train(toy(workers=0), base / "run", progress=False, results=base / "results.jsonl")
    assert checkpoint.steps(base / "run") == [6, 8]
    return base


@pytest.fixture
def run_folder(stopped, tmp_path):
    """A copy of it to spoil."""
    return Path(shutil.copytree(stopped / "run", tmp_path / "run"))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink], ids=["truncated", "changed", "gone"])
@pytest.mark.parametrize("name", [*STATE, "status.json", "manifest.json"])
def test_damage_is_found(run_folder, caplog, name, damage):
    assert checkpoint.newest(run_folder).name == "checkpoint-8"
    damage(run_folder / "checkpoint-8" / name)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest(run_folder).name == "checkpoint-6"
    assert "checkpoint-8 is damaged" in caplog.text
    if damage is not flip or name != checkpoint.MANIFEST:  # a changed checksum accuses its file
        assert name in caplog.text


def test_the_checkpoint_before_a_damaged_one_is_resumed(stopped, run_folder, tmp_path):
    truncate(run_folder / "checkpoint-8" / "model.safetensors")
    train(toy(workers=0), run_folder, progress=False, results=tmp_path / "results.jsonl")
    events = reading.json_lines(run_folder / "log.jsonl")
    assert [e["step"] for e in events if e.get("event") == "resumed"] == [6]
    same(run_folder, stopped / "whole")


def test_a_checkpoint_of_the_trainer_before_is_resumed(stopped, run_folder, tmp_path):
    """It noted learning rates and a schedule, which follow from the step, and had a file more."""

    def as_before(folder):
        tensors, values = states.load(folder / "optimizer.safetensors")
        groups = [{**group, "lr": 5e-4, "initial_lr": 3e-3} for group in values["groups"]]
        schedule = {"last_epoch": 8, "_step_count": 9, "_last_lr": [5e-4, 5e-4]}
        values |= {"groups": groups, "schedule": schedule}
        states.save(folder / "optimizer.safetensors", tensors, values)
        atomic.write_json(folder / "trainer_state.json", {"global_step": 8, "train_batch_size": 4})

    aside = checkpoint.aside(run_folder, 8)
    (run_folder / "checkpoint-8").rename(aside)
    (aside / checkpoint.MANIFEST).unlink()
    as_before(aside)
    checkpoint.finish(aside)
    train(toy(workers=0), run_folder, progress=False, results=tmp_path / "results.jsonl")
    same(run_folder, stopped / "whole")


def test_nothing_is_pickled(stopped, run_folder, tmp_path, monkeypatch):
    """Neither when a run is resumed nor when it saves; not even where the safe way fails."""

    def never(*args, **kwargs):
        raise AssertionError("something was pickled or unpickled")

    for name in ("load", "loads", "dump", "Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    for name in ("load", "save"):
        monkeypatch.setattr(torch, name, never)
    train(toy(workers=0), run_folder, progress=False, results=tmp_path / "results.jsonl")
    same(run_folder, stopped / "whole")
    assert {path.suffix for path in run_folder.rglob("*") if path.is_file()} == {
        ".json",
        ".jsonl",
        ".md",
        ".safetensors",
    }
    for path in run_folder.glob("checkpoint-*"):
        truncate(path / "optimizer.safetensors")
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        best(run_folder)


def test_another_run_is_refused(run_folder, tmp_path):
    with pytest.raises(ValueError, match="another run: learning_rate, seed differ"):
        train(toy(workers=0, learning_rate=1.0, seed=7), run_folder, results=tmp_path / "results.jsonl")
    assert checkpoint.steps(run_folder) == [6, 8]


def test_starting_again_removes_what_was_there(stopped, run_folder, tmp_path):
    train(toy(workers=0), run_folder, resume=False, progress=False, results=tmp_path / "results.jsonl")
    same(run_folder, stopped / "whole")
    assert "resumed" not in {e.get("event") for e in reading.json_lines(run_folder / "log.jsonl")}


def test_a_finished_run_is_not_trained_again(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(Loop, "backward", lambda *args: pytest.fail("trained again"))
    again = train(toy(workers=0), stopped / "whole", progress=False, results=tmp_path / "results.jsonl")
    assert again == reading.json_lines(tmp_path / "results.jsonl")[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_stops_the_run(tmp_path, monkeypatch, what, value):
    """At its step, and before anything of it is saved: the run can go on from before."""
    base, updates = Objective.loss, []

    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * value if what == "loss" else x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * value if what == "gradient" else gradient

    def spoiled(self, *args):
        updates.append(len(updates) // 2)  # of two parts each
        loss = base(self, *args)
        return Spoil.apply(loss) if updates[-1] == 7 else loss

    run = recall(workers=0, steps=10, save_every=2, log_every=9)
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "loss", spoiled)
        with pytest.raises(Diverged, match=f"{what}.* at step 8") as caught:
            train(run, tmp_path / "run", progress=False, results=tmp_path / "results.jsonl")
    assert caught.value.step == 8
    assert checkpoint.newest(tmp_path / "run").name == "checkpoint-6"
    assert log_of(tmp_path / "run")[-1]["event"] == "diverged"
    train(run, tmp_path / "run", progress=False, results=tmp_path / "results.jsonl")
    steps = [line["step"] for line in log_of(tmp_path / "run") if "loss" in line]
    assert steps == list(range(1, 11))
