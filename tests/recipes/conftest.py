import pytest


@pytest.fixture
def tiny_data(tmp_path, monkeypatch):
    """A function that puts tiny files for a task under COSFORMER_DATA, and its cache aside."""
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    return lambda name: None
