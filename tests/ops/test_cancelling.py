"""Gradients that cancel: a query that sees one key, or has one positive feature, has dq = 0, and what is
computed of it is rounding, divided by a weight that may be small. It is no worse than in plain arithmetic."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops.chunked import attention, windowed

from .cases import Case, is_as_good_as

DTYPES = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # what one rounding costs
WAYS = {
    "causal": {"causal": True},
    "bidirectional": {"causal": False},
    "window of one": {"causal": True, "windows": (1,)},
    "narrow window": {"causal": False, "windows": (3,)},
    "wide window": {"causal": True, "windows": (320,)},
}


def one_positive_feature(x):
    """Small ones, at another feature of each row."""
    at = torch.arange(x.shape[1]) % x.shape[3]
    kept = torch.nn.functional.one_hot(at, x.shape[3])[None, :, None].bool()
    return torch.where(kept, x.abs() / 16, -x.abs())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 5, 40, 200])
@pytest.mark.parametrize("way", WAYS)
def test_no_worse_than_plain(way, length, dtype):
    q = one_positive_feature(torch.randn(2, length, 2, 9, dtype=torch.float64))
    k, v = (torch.randn(2, length, 1, n, dtype=torch.float64) for n in (9, 20))
    case = Case({"q": q, "k": k, "v": v}, {"horizon": 2.0 * length} | WAYS[way]).to(dtype)
    exact, plain = case.to(torch.float64).results("reference"), case.results("reference")
    for name, ours in case.results("chunked").items():
        assert is_as_good_as(ours, plain[name], exact[name], DTYPES[dtype]), name


@pytest.mark.parametrize("length", [1, 40, 300])
@pytest.mark.parametrize("windows", [None, (1,), (2,), (64,), (320,)], ids=str)
def test_one_positive_feature_has_no_gradient(windows, length):
    """To a millionth of the gradients of the values: q' . dq' = 0 is one number here."""
    q = one_positive_feature(torch.randn(1, length, 2, 8)).requires_grad_()
    k, v = (torch.randn(1, length, 1, 8, requires_grad=True) for _ in range(2))
    out = cosformer_attention(q, k, v, causal=True, horizon=length + 1, windows=windows, backend="chunked")
    dq, dv = torch.autograd.grad(out, (q, v), torch.randn_like(out))
    assert dq.abs().max() <= 1e-6 * dv.abs().max()


@pytest.mark.parametrize("windows", [None, (2,)], ids=str)
def test_others_are_computed_as_if_there_were_none(windows, monkeypatch):
    """A row that cancels does not move a bit of those that do not: what is corrected is that row alone."""
    q, k, v = (torch.randn(1, 70, 1, 64) for _ in range(3))
    g = torch.randn(1, 70, 1, 64)

    def gradient(q):
        x = [y.clone().requires_grad_() for y in (q, k, v)]
        out = cosformer_attention(*x, causal=False, horizon=70, windows=windows, backend="chunked")
        return torch.autograd.grad(out, x, g)[0]

    odd = q.clone()
    odd[:, 33] = one_positive_feature(q)[:, 33]
    found = []
    for module in (attention, windowed):
        kept = module.residual
        monkeypatch.setattr(module, "residual", lambda *a, kept=kept: found.append(kept(*a)) or found[-1])
    a, b = gradient(q), gradient(odd)
    assert found[-1] is not None, "no residual: the test does not show anything"
    assert found[-1].flatten()[33] != 0
    others = torch.arange(70) != 33
    assert torch.equal(a[:, others], b[:, others])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_corrected_lets_no_later_key_through(value):
    """Rows that are corrected stand around others that see the key, and that nothing uses."""
    q, k, v = (torch.randn(1, 200, 2, 8) for _ in range(3))
    q = one_positive_feature(q)
    g = torch.randn(1, 200, 2, 8)
    g[:, 100:] = 0

    def gradients(k):
        x = [y.clone().requires_grad_() for y in (q, k, v)]
        out = cosformer_attention(*x, causal=True, horizon=200, backend="chunked")
        return torch.autograd.grad(out, x, g)

    spoilt = k.clone()
    spoilt[:, 100:110] = value
    for a, b in zip(gradients(k), gradients(spoilt), strict=True):
        assert torch.equal(a[:, :100], b[:, :100])
