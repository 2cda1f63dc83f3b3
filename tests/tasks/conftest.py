"""Every test has an empty cache of its own, no data but what it writes, and one process."""

import pytest

from cosformer.tasks.lra import pathfinder


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COSFORMER_WORKERS", "1")
    monkeypatch.setattr(pathfinder, "_PER_JOB", 16)  # all that a job begins is wasted on a few pictures
