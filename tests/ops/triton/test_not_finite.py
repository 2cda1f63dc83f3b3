"""How far NaN goes through causal kernels without a window: to the beginning of its own chunk, and no further
(docs/limits.md says why it gets so far)."""

import pytest
import torch

from cosformer import cosformer_attention

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, AT, CHUNK = 76, 70, 64


def test_nan_reaches_no_earlier_chunk():
    x = {name: torch.randn(1, LENGTH, 1, 16, device=DEVICE) for name in "qkvg"}
    begin = AT // CHUNK * CHUNK

    def results(rows):
        leaves = [x[name].clone().requires_grad_() for name in "qkv"]
        out = cosformer_attention(*leaves, causal=True, horizon=LENGTH, backend="triton")
        g = x["g"].clone()
        g[:, rows:] = 0
        return out, *torch.autograd.grad(out, leaves, g)

    clean, early = results(LENGTH), results(begin)
    for name in "qkv":
        x[name][:, AT] = torch.nan
    found, after = results(LENGTH), results(begin)
    for i in (0, 1):  # out and dq, wherever the loss comes from
        assert torch.equal(found[i][:, :begin], clean[i][:, :begin])
    for a, b in zip(after, early, strict=True):  # where the loss uses earlier chunks alone
        assert torch.equal(a[:, :begin], b[:, :begin])
    assert not found[0][:, AT:].isfinite().all(), "what is seen is not hidden"
