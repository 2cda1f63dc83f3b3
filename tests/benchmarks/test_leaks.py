"""Generations leave no tensors behind; what is left behind is seen."""

import pytest
import torch

from benchmarks import leaks
from benchmarks.terminal import Progress
from cosformer.models import cache

ways = leaks.ways


@pytest.fixture(autouse=True)
def few(monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(leaks, "LENGTHS", 1)


def test_no_tensor_stays(monkeypatch):
    """Without the beams that would have a second graph compiled."""
    monkeypatch.setattr(leaks, "ways", lambda model: [way for i, way in enumerate(ways(model)) if i != 4])
    data = leaks.measure(35, Progress())
    assert len(data["looks"]) == 3
    assert data["grown"]["tensors"] == 0, data["looks"]


def test_what_stays_is_seen(monkeypatch):
    kept, original = [], cache.CosformerCache.snapshot
    monkeypatch.setattr(leaks, "ways", lambda model: ways(model)[5:6])
    monkeypatch.setattr(cache.CosformerCache, "snapshot", lambda own: kept.append(original(own)) or kept[-1])
    data = leaks.measure(6, Progress())
    assert data["grown"]["tensors"] > 0
    assert leaks.leaks(data)
