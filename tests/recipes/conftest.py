import pytest

from cosformer.tasks.io import corpora
from cosformer.tasks.lra import pathfinder
from tests.tasks import tiny
from tests.training.conftest import _frozen  # noqa: F401 (a fixture)


@pytest.fixture
def tiny_data(tmp_path, monkeypatch):
    """A function that writes tiny files for a task, in their official format, where it looks for them."""
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COSFORMER_WORKERS", "1")
    monkeypatch.setattr(pathfinder, "_PER_JOB", 16)
    library = corpora.python_files
    monkeypatch.setattr(corpora, "python_files", lambda split: list(library(split))[:3])

    def write(name):
        tiny.wikitext("wikitext-2")  # from which vocabularies are learned
        files, _ = tiny.TASKS[name]
        if files is not None:
            files()

    return write
