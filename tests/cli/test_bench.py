"""`cosformer bench`: where it runs, and what it says when it is stopped."""

import sys

import pytest

from cosformer.cli import bench
from tests.cli.test_usage_errors import run


def test_benchmarks_are_part_of_the_source_tree(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench.machine, "CHECKOUT", tmp_path / "site-packages")
    code, said = run(capsys, ["bench", "operator"])
    assert code == 2
    assert "a clone of the repository" in said


@pytest.mark.parametrize("kept", ["nothing was written.", "the same command goes on with x/record.json."])
def test_a_stopped_benchmark_says_what_was_kept(kept, capsys, monkeypatch):
    def stop(name, run_name, alter_sys):
        sys.exit(f"\nStopped; {kept}")

    monkeypatch.setattr("runpy.run_module", stop)
    code, said = run(capsys, ["bench", "operator", "--quick", "--out", "x"])
    assert code == 130
    again = "Start again with: cosformer bench operator --quick --out x"
    assert said.strip().endswith(f"Stopped; {kept} {again}")
