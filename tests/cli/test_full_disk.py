"""A disk that is full, wherever that strikes: one sentence, exit code 2, what was kept; and it goes on later.

A process may write files of at most so many bytes (RLIMIT_FSIZE): every library's writes then fail as they do
on a full disk, with another number of the error.
"""

import contextlib
import io
import json
import multiprocessing
import os
import resource
import sys

import pytest

from cosformer.cli import main
from cosformer.cli.errors import full_disk
from cosformer.training import checkpoint

TRAIN = ["train", "mqar", "--scale", "tiny", "steps=6", "warmup=0", "save_every=2", "eval_every=4",
         "log_every=1", "task_settings.train_rows=64", "task_settings.valid_rows=16",
         "task_settings.test_rows=16", "--folder", "run", "--results", "results.jsonl"]  # fmt: skip


def _limited(typed, limit, queue):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(typed)
        except SystemExit as left:
            code = left.code
        except BaseException as error:  # a traceback, at the terminal
            code = f"{type(error).__name__}: {error}"
    queue.put((code, said.getvalue()))


def run(typed, limit):
    """Exit code and stderr of a command that may write only short files."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_limited, args=(typed, limit, queue))
    child.start()
    found = queue.get(timeout=120)
    child.join(60)
    return found


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSFORMER_WORKERS", "1")


def files():
    return sorted(p for p in os.listdir() if p.startswith(".") and p != ".lock.json")


# Bytes that a file may have: none, some JSON, most of the weights, all of the weights but no more.
@pytest.mark.parametrize("limit", [0, 2_000, 20_000, 400_000])
def test_training_stops_with_a_sentence_and_goes_on(limit, tmp_path):
    code, said = run(TRAIN, limit)
    assert code == 2, (code, said)
    assert "the disk is full" in said.lower()
    *bars, sentence = said.strip().splitlines()
    assert sentence.startswith("cosformer train: ")
    assert all("step" in bar for bar in bars), said
    kept = checkpoint.steps(tmp_path / "run") if (tmp_path / "run").exists() else []
    assert all(checkpoint.damage(tmp_path / "run" / checkpoint.name(step)) is None for step in kept)
    assert (f"checkpoint-{kept[-1]}" if kept else "no checkpoint") in sentence
    assert not list((tmp_path / "run").glob(".partial*")), "what takes room on a full disk is removed"
    assert main(TRAIN) == 0
    record = json.loads((tmp_path / "results.jsonl").read_text())
    assert record["steps"] == 6


def _without_room_for(name):
    def opened(event, arguments):
        if event == "open" and name in str(arguments[0]):
            raise OSError(28, "No space left on device", str(arguments[0]))

    sys.addaudithook(opened)


def _filled_up(queue):
    _without_room_for("record.json")
    _limited(TRAIN, resource.RLIM_INFINITY, queue)


def test_a_disk_that_is_full_at_the_very_end_leaves_no_bar_in_the_line(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_filled_up, args=(queue,))
    child.start()
    code, said = queue.get(timeout=120)
    child.join(60)
    assert code == 2, (code, said)
    assert (
        said.strip()
        .splitlines()[-1]
        .startswith("cosformer train: The disk is full; run/checkpoint-6 is kept")
    )
    assert main(TRAIN) == 0
    assert json.loads((tmp_path / "results.jsonl").read_text())["steps"] == 6


@pytest.mark.parametrize("limit", [0, 1_000])
def test_data_that_cannot_be_kept(limit):
    code, said = run(["data", "listops", "train_rows=200", "valid_rows=5", "test_rows=5"], limit)
    assert code == 2, (code, said)
    assert "the disk is full" in said.lower()
    assert len(said.strip().splitlines()) == 1, said
    assert main(["data", "listops", "train_rows=200", "valid_rows=5", "test_rows=5"]) == 0


def test_a_report_that_cannot_be_written(tmp_path):
    record = {"task": "t", "mechanism": "m", "metric": {"name": "accuracy", "test": {"accuracy": 1.0}}}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "t.jsonl").write_text(json.dumps(record) + "\n")
    code, said = run(["report", "--out", "out"], 500)
    assert code == 2, (code, said)
    assert "the disk is full" in said.lower()
    assert not list((tmp_path / "out").rglob("*.html"))
    assert not list((tmp_path / "out").glob(".*")), "nothing half is left"


def test_a_demonstration_that_cannot_be_written(tmp_path):
    code, said = run(["demo", "--tiny", "--out", "demo"], 20_000)
    assert code == 2, (code, said)
    assert "the disk is full" in said.lower()
    assert said.strip().splitlines()[-1].startswith("cosformer demo: ")
    assert "Traceback" not in said


def test_it_is_recognised_in_whatever_a_library_says():
    from safetensors import SafetensorError

    assert full_disk(OSError(28, "No space left on device", "x"))
    assert full_disk(SafetensorError("I/O error: No space left on device (os error 28)"))
    assert full_disk(OSError("1000 requested and 0 written"))
    inner = ValueError("x")
    inner.__cause__ = OSError(122, "Disk quota exceeded")
    assert full_disk(inner)
    assert not full_disk(ValueError("the disk"))
    assert not full_disk(FileNotFoundError(2, "No such file"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_terminal_that_is_a_full_disk(monkeypatch, capsys):
    """cosformer info > /dev/full"""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = main(["info"])
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert code == 2
    assert "the disk is full" in capsys.readouterr().err.lower()
