"""How sequences are cut, for the tests on a GPU."""

import pytest


@pytest.fixture(params=["whole", "pieces"])
def cut(request, monkeypatch):
    """Sequences in one piece, and in several that run side by side."""
    from cosformer.ops import shortcut
    from cosformer.ops.hopper import cutting
    from cosformer.ops.triton import tape

    monkeypatch.setattr(cutting, "SHORTEST", 10**9 if request.param == "whole" else 64)
    monkeypatch.setattr(tape, "TAPES", {})
    monkeypatch.setattr(shortcut, "_known", {})
