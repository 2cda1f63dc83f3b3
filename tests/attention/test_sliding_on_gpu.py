"""Windows of softmax by flash-attention's kernel, against the blocks in the same type and float64."""

import pytest
import torch

from cosformer.attention import sliding
from tests.ops.cases import errors, is_as_good_as

DEVICE = "cuda"
FLOOR = 2**-9  # one rounding of bfloat16
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is for CUDA GPUs")
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def inputs(batch, length, heads, kv_heads, dim):
    return [
        torch.randn(batch, length, n, dim, dtype=torch.bfloat16, device=DEVICE)
        for n in (heads, kv_heads, kv_heads)
    ]


def results(x, windows, causal, grad, dtype=torch.bfloat16):
    x = [y.detach().to(dtype).requires_grad_() for y in x]
    out = sliding.sliding_softmax(*x, windows, causal=causal, offset=0)
    return dict(
        zip(("o", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, x, grad.to(dtype))), strict=True)
    )


@pytest.fixture
def by_blocks(monkeypatch):
    def run(*call):
        with monkeypatch.context() as patch:
            patch.setattr(sliding, "can_flash", lambda *x: False)
            return results(*call)

    return run


@both_ways
@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ((2, 1500, 4, 4, 64), (256,) * 4), ((1, 1000, 4, 2, 64), (64, 3)), ((2, 700, 2, 2, 32), (512,) * 2),
        ((2, 300, 2, 1, 128), (2,)), ((1, 4096, 8, 8, 64), (1024,) * 8), ((1, 513, 2, 2, 80), (100,) * 2),
    ],
    ids=str,
)  # fmt: skip
def test_values_and_gradients(shape, windows, causal, by_blocks, monkeypatch):
    x = inputs(*shape)
    grad = torch.randn_like(x[0])
    calls, kernel = [], sliding.flash
    monkeypatch.setattr(sliding, "flash", lambda *call: calls.append(call) or kernel(*call))
    ours = results(x, windows, causal, grad)
    assert calls
    plain = by_blocks(x, windows, causal, grad)
    for name, truth in results(x, windows, causal, grad, torch.float64).items():
        found = errors(ours[name], truth), errors(plain[name], truth)
        assert is_as_good_as(ours[name], plain[name], truth, FLOOR), (name, found)


@both_ways
@pytest.mark.parametrize("value", [torch.nan, 100.0])
def test_what_lies_beyond_the_window_moves_no_bit(value, causal):
    x, at, window = inputs(2, 900, 2, 2, 64), 400, 128
    column = torch.arange(900, device=DEVICE)
    far = (column < (at if causal else at - window + 1)) | (column >= at + window)
    grad = torch.randn_like(x[0]) * far[None, :, None, None]
    clean = results(x, (window,) * 2, causal, grad)
    for y in x[1:]:
        y[:, at] = value
    found = results(x, (window,) * 2, causal, grad)
    for name in ("o", "dq"):
        assert torch.equal(found[name][:, far], clean[name][:, far])
    assert not torch.equal(found["o"][:, at], clean["o"][:, at])
    assert found["o"][:, ~far].isnan().all() == (value != value)
    assert all((found[name][:, at] == 0).all() for name in ("dk", "dv"))
