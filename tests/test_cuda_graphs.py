"""Capture without a GPU: in which order it is made."""

from contextlib import contextmanager

import pytest
import torch

from cosformer.cuda_graphs import capturing


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_begins_and_ends_without_workspaces(fails, monkeypatch):
    order = []

    @contextmanager
    def graph(made, pool, stream):
        order.append((made, pool, stream))
        try:
            yield
        finally:
            order.append("captured")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: order.append("cleared"), raising=False
    )
    try:
        with capturing("graph", "stream", "pool"):
            order.append("code")
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert order == ["cleared", ("graph", "pool", "stream"), "code", "captured", "cleared"]
