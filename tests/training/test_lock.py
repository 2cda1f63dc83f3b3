"""One folder, one run at a time: a second is refused, and a dead one holds nothing."""

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest

from cosformer import reading
from cosformer.lock import InUse, locked
from cosformer.training import train
from tests.training.test_crash import log_of
from tests.training.toy import toy


def _train(folder, step, reached, workers=0):
    """Trains until a step, and stays there."""

    def stay(event):
        if event["step"] == step:
            reached.put(os.getpid())
            time.sleep(600)

    train(toy(workers=workers, log_every=1), folder, progress=stay, results=folder.parent / "results.jsonl")


@pytest.fixture
def first(tmp_path):
    """Another process that trains in a folder."""
    context = multiprocessing.get_context("fork")
    reached = context.Queue()
    process = context.Process(target=_train, args=(tmp_path / "run", 7, reached, 2))
    process.start()
    assert reached.get(timeout=120) == process.pid
    yield process
    process.kill()
    process.join(60)


def test_a_second_run_is_refused_and_a_killed_one_holds_nothing(first, tmp_path):
    folder = tmp_path / "run"
    again = {"progress": False, "results": tmp_path / "results.jsonl"}
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    for options in ({}, {"resume": False}):
        said = rf"{re.escape(str(folder))} is in use: process {first.pid} .*trains there"
        with pytest.raises(InUse, match=said):
            train(toy(workers=0, log_every=1), folder, **again, **options)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before, "nothing was touched"
    os.kill(first.pid, signal.SIGKILL)
    first.join(60)  # the workers of its loader live for some seconds more
    train(toy(workers=0, log_every=1), folder, **again)
    assert [line["step"] for line in log_of(folder) if "loss" in line] == list(range(1, 13))
    assert len(reading.json_lines(tmp_path / "results.jsonl")) == 1


def test_a_second_run_in_the_same_process_is_refused(tmp_path):
    tried = []

    def again(event):
        if not tried:
            with pytest.raises(InUse, match=f"process {os.getpid()} "):
                train(toy(workers=0), tmp_path / "run", progress=False, results=tmp_path / "r.jsonl")
            tried.append(event)

    train(toy(workers=0), tmp_path / "run", progress=again, results=tmp_path / "r.jsonl")
    assert tried


def test_a_folder_is_free_after_a_run_whatever_its_end(tmp_path):
    def fail(event):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        train(toy(workers=0), tmp_path / "run", progress=fail, results=tmp_path / "r.jsonl")
    train(toy(workers=0, steps=1), tmp_path / "run", progress=False, results=tmp_path / "r.jsonl")


def test_a_lock_says_who_holds_it_and_is_left_to_nobody(tmp_path):
    with locked(tmp_path, "trains"):
        with pytest.raises(InUse, match="trains there"), locked(tmp_path, "measures"):
            pass
        child = os.fork()
        if child == 0:  # it does not hold what its parent does
            time.sleep(60)
            os._exit(0)
    try:
        with locked(tmp_path, "measures"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_holder_may_be_unknown(tmp_path):
    with locked(tmp_path, "trains"):
        for content in (b"", b"\xff\xfe", b"[" * 10_000, b"{}"):
            (tmp_path / ".lock.json").write_bytes(content)
            with pytest.raises(InUse, match="another process"), locked(tmp_path, "trains"):
                pass
    assert Path(tmp_path / ".lock.json").exists()
