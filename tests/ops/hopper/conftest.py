"""How sequences are split, for the tests on a GPU."""

import pytest


@pytest.fixture(params=["whole", "split"])
def cut(request, monkeypatch):
    """Sequences in one split, and in several that run in parallel."""
    from cosformer.ops.gpu import launch_cache, partition

    monkeypatch.setattr(partition, "MIN_SPLIT_TOKENS", 10**9 if request.param == "whole" else 64)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
