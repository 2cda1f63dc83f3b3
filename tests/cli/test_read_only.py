"""A finished run on a disk that cannot be written to is shown, scored and used."""

import errno
import json
import os
from pathlib import Path

import pytest

from cosformer import lock, reading
from cosformer.cli import main

RUN = ["train", "mqar", "--scale", "tiny", "steps=2", "warmup=0", "model.hidden_size=16",
       "task_settings.train_rows=32", "task_settings.valid_rows=8", "task_settings.test_rows=8",
       "--folder", "run"]  # fmt: skip


def read_only(monkeypatch, root):
    """Every way that is used here to write below a folder fails as on such a disk (root may write)."""
    opened, make, rename = os.open, os.mkdir, os.replace

    def below(path):
        return isinstance(path, str | Path) and Path(path).resolve().is_relative_to(root)

    def guarded(call):
        def refuse(path, *args, **kwargs):
            flags = args[0] if args else kwargs.get("flags", os.O_RDONLY)
            writes = call is not opened or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if below(path) and writes and not (call is make and Path(path).exists()):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return call(path, *args, **kwargs)

        return refuse

    access = os.access
    monkeypatch.setattr(os, "open", guarded(opened))
    monkeypatch.setattr(os, "mkdir", guarded(make))
    monkeypatch.setattr(os, "replace", guarded(rename))
    monkeypatch.setattr(os, "access", lambda p, m: not (m & os.W_OK and below(p)) and access(p, m))
    monkeypatch.setattr(Path, "open", refusing(Path.open, below))


def refusing(call, below):
    def opened(path, mode="r", *args, **kwargs):
        if below(path) and set(mode) & set("wax+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return call(path, mode, *args, **kwargs)

    return opened


@pytest.fixture
def finished(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(RUN) == 0
    shown = capsys.readouterr().out
    read_only(monkeypatch, tmp_path)
    return shown


def test_it_is_shown_and_scored(finished, tmp_path, capsys):
    assert main(RUN) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Nothing was trained")
    assert finished.splitlines()[0] in said.out
    assert main(["eval", "run"]) == 0


def test_what_is_missing_in_the_results_is_said(finished, tmp_path, capsys, monkeypatch):
    os.remove("results/mqar.jsonl")
    assert main(RUN) == 0
    said = capsys.readouterr()
    assert "not recorded" in said.out
    assert not Path("results/mqar.jsonl").exists()


@pytest.mark.parametrize("more", [["--fresh"], ["seed=1"]])
def test_what_would_have_to_be_written_is_refused(finished, more, capsys):
    code = main([*RUN, *more])
    said = capsys.readouterr().err
    assert code == 2
    assert len(said.splitlines()) == 1
    record = reading.json_file(Path("run/record.json"))
    assert record["seed"] == 0


def test_it_needs_no_lock(finished, monkeypatch, tmp_path):
    """A run that is finished is only read, also while somebody else looks at it."""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with lock.locked(Path("run"), "shows"):
        assert main(RUN) == 0
    assert json.loads(Path("run/record.json").read_text())["steps"] == 2
