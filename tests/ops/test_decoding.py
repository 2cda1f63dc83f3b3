"""decode_step: the operator, one token at a time, in place."""

import sys

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import decode_step

module = sys.modules["cosformer.ops.one_token"]
GPU = torch.cuda.is_available()


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not GPU, reason="no GPU"))]
)
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_steps_equal_the_whole(device, masked):
    q = torch.randn(3, 20, 4, 16, device=device)
    k, v = (torch.randn(3, 20, 2, n, device=device) for n in (16, 24))
    mask = torch.rand(3, 20, device=device) > 0.3 if masked else None
    whole = cosformer_attention(q, k, v, causal=True, horizon=64, key_mask=mask)
    state = CosformerState.zeros(3, 2, 16, 24, horizon=64, device=device)
    memory = state.numerator.data_ptr()
    for t in range(20):
        step = slice(t, t + 1)
        out, state = decode_step(
            q[:, step], k[:, step], v[:, step], state, key_mask=None if mask is None else mask[:, step]
        )
        assert torch.allclose(out, whole[:, step], atol=2e-6)
    assert state.numerator.data_ptr() == memory
    assert state.seen == 20
    assert state.positions.tolist() == [20] * 3


def test_more_than_a_token_is_refused():
    q = k = v = torch.randn(1, 2, 1, 8)
    with pytest.raises(ValueError, match=r"one token a row, but got 2 queries and 2 keys; use"):
        decode_step(q, k, v, CosformerState.zeros(1, 1, 8, horizon=8))


def test_the_horizon_is_respected():
    q = k = v = torch.randn(1, 1, 1, 8)
    state = CosformerState.zeros(1, 1, 8, horizon=2)
    for _ in range(3):
        _, state = decode_step(q, k, v, state)
    with pytest.raises(ValueError, match="horizon"):
        decode_step(q, k, v, state)


SETS = {
    "many": (2, 4, 8, 16, 33), "with ones": (1, 5, 1, 3), "only ones": (1, 1), "mixed": (None, 3, 1, None, 9),
    "equal": (7, 7, 7),
}  # fmt: skip


def steps(windows, q, k, v):
    """o and the state after each token, in place."""
    state = CosformerState.zeros(
        q.shape[0], len(windows), q.shape[3], v.shape[3], horizon=64, windows=windows, dtype=q.dtype
    )
    found = []
    for t in range(q.shape[1]):
        out, state = decode_step(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], state)
        found += [out, *(x.clone() for x in (state.keys, state.values, state.numerator))]
    return found


@pytest.mark.parametrize("windows", SETS.values(), ids=SETS)
@pytest.mark.parametrize("group", [1, 3])
def test_windows_together_and_apart(windows, group, monkeypatch):
    """On a CPU the past keys of all heads are computed together, where their matrix is small."""
    n = len(windows)
    q, k, v = (torch.randn(2, 40, h, d).double() for h, d in ((n * group, 8), (n, 8), (n, 6)))
    together = steps(windows, q, k, v)
    calls = []
    monkeypatch.setattr(module, "_in_one_product", lambda *call: calls.append(call))
    apart = steps(windows, q, k, v)
    assert len(calls) == 40
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_another_default_device_is_of_no_account():
    q, k, v = (torch.randn(1, 1, 2, 8) for _ in range(3))
    state = CosformerState.zeros(1, 2, 8, horizon=None, windows=(11, 5))
    with torch.device("meta"):
        out, _ = decode_step(q, k, v, state)
    assert out.isfinite().all()


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_head_and_window(spoilt):
    windows = (2, 9, 4)
    q, k, v = (torch.rand(2, 30, 3, 8) for _ in range(3))
    whole = steps(windows, q, k, v)[::4]
    v[0, 10, 1] = spoilt
    k[0, 10, 2] = spoilt
    found = steps(windows, q, k, v)[::4]
    for t, (a, b) in enumerate(zip(whole, found, strict=True)):
        sees = [[False, 10 <= t < 19, 10 <= t < 14], [False] * 3]
        assert b.isfinite().all(-1)[:, 0].logical_not().tolist() == sees
        there = torch.tensor(sees).logical_not()[:, None]
        torch.testing.assert_close(a[there], b[there])
