"""Files are whole or not there."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer.atomic import replace
from cosformer.cli import main

ROOT = Path(__file__).parents[1]


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["os.fsync", "os.replace"])
def test_the_earlier_file_stays(fails, tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    replace(path, "earlier")
    monkeypatch.setattr(fails, full)
    with pytest.raises(OSError, match="No space"):
        replace(path, "later")
    assert path.read_text() == "earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"], "nothing else is left behind"


@pytest.mark.parametrize(
    ("number", "says", "code"),
    [
        (errno.ENOSPC, "the disk is full", 2),
        pytest.param(errno.EROFS, "read-only", 2, marks=pytest.mark.thorough),
        pytest.param(errno.EACCES, "permission denied", 2, marks=pytest.mark.thorough),
    ],
)
def test_the_report_before_survives(number, says, code, tmp_path, capsys, monkeypatch):
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    shutil.copy(ROOT / "results/plan-enwik8.jsonl", results)
    arguments = ["report", "--results", str(results), "--benchmarks", str(tmp_path), "--out", str(out)]
    assert main(arguments) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert len(before) >= 4, "a page, a text and plots"

    def refused(*args):
        raise OSError(number, os.strerror(number), "report.html")

    monkeypatch.setattr("os.replace", refused)
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert says in said.lower()
    assert len(said.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_a_full_disk_for_the_output():
    with open("/dev/full", "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "cosformer", "info"],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=stdout, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 2
    assert "the disk is full" in done.stderr.lower()
    assert "Traceback" not in done.stderr
