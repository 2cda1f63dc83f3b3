"""Softmax attention equals its own equation, written out."""

import math

import pytest
import torch

from cosformer import attention


def literal(q, k, v, causal, key_mask, offset):
    """Equation 1, one query at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            seen = [
                j for j in range(k.shape[1])
                if (not causal or j <= i + offset) and (key_mask is None or key_mask[b, j])
            ]  # fmt: skip
            for h in range(q.shape[2] if seen else 0):
                scores = k[b, seen, h // group] @ q[b, i, h] / math.sqrt(q.shape[3])
                out[b, i, h] = scores.softmax(0) @ v[b, seen, h // group]
    return out


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("causal", "offset"), [(True, None), (True, 3), (True, 20), (False, None)])
@pytest.mark.parametrize(("tq", "tk", "kv_heads"), [(11, 11, 2), (4, 13, 1), (1, 1, 2)])
def test_equals_its_equation(tq, tk, kv_heads, causal, offset, masked):
    q = torch.randn(2, tq, 2, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, tk, kv_heads, d, dtype=torch.float64, requires_grad=True) for d in (8, 5))
    mask = torch.rand(2, tk) < 0.5 if masked else None
    out = attention.build("softmax")(q, k, v, causal=causal, key_mask=mask, query_offset=offset)
    expected = literal(q, k, v, causal, mask, tk - tq if offset is None else offset)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    if expected.requires_grad:
        ours, theirs = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_a_cache_is_cut_exactly():
    q, k, v = (torch.randn(2, 12, 2, 8, dtype=torch.float64) for _ in range(3))
    run = attention.build("softmax")
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 4:6] = False
    _, state = run(q[:, :9], k[:, :9], v[:, :9], causal=True, key_mask=mask, return_state=True)
    cut = state.crop(5)
    out = run(q[:, 5:6], k[:, 5:6], v[:, 5:6], causal=True, state=cut)
    _, direct = run(q[:, :5], k[:, :5], v[:, :5], causal=True, key_mask=mask[:, :5], return_state=True)
    torch.testing.assert_close(out, run(q[:, 5:6], k[:, 5:6], v[:, 5:6], causal=True, state=direct))
    assert cut.nbytes == direct.nbytes < state.nbytes
