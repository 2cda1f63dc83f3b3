"""The Hopper kernels for wide windows against the equation; only a GPU can run them."""

import pytest
import torch

from cosformer.ops.gpu import launch_cache
from tests.ops.cases import make
from tests.ops.hopper.on_gpu import (
    assert_one_token_is_right,
    assert_right,
    both_ways,
    inputs,
    on_a_gpu,
    results,
)

pytestmark = on_a_gpu


@pytest.fixture
def calls(monkeypatch):
    """Whether these kernels computed the heads of each call, with nothing in the cache of plans. The heads
    themselves would keep the graph of autograd alive, as `results` must not."""
    from cosformer.ops.hopper import window_run

    found = []
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    real = window_run.wide_heads

    def wide_heads(*call):
        heads = real(*call)
        found.append(heads is not None)
        return heads

    monkeypatch.setattr(window_run, "wide_heads", wide_heads)
    return found


def computed(calls):
    return bool(calls) and all(calls)


@both_ways
@pytest.mark.parametrize("window", [320, 512, 768, 1024, 4096])
@pytest.mark.parametrize("length", [200, 257, 1000, 2500])
def test_widths_and_odd_lengths(length, window, causal, calls):
    assert_right(make(tq=length, dim=64, causal=causal, windows=(window, window)))
    assert computed(calls)


@both_ways
@pytest.mark.parametrize(
    ("windows", "options"),
    [
        ((512, 512), {"dim": 32}),
        ((512, 512), {"dim": 40, "value_dim": 64}),
        ((320, 1024, 320, 512), {"heads": 4}),
        ((320, None, 1024, 3), {"heads": 4, "horizon": 4000}),
        ((512, 512), {"heads": 6, "kv_heads": 2}),
        ((512, 512), {"tq": 65}),
    ],
    ids=str,
)
def test_every_kind_of_call(windows, options, causal, calls):
    assert_right(make(**({"tq": 1000, "dim": 64} | options), causal=causal, windows=windows))
    assert any(calls)


@both_ways
def test_one_token(causal, calls):
    assert_one_token_is_right(causal=causal, windows=(512, 512))
    assert computed(calls)


@both_ways
def test_repeats_are_bit_identical(causal, calls):
    """The first call is launched, the others are replayed from its plan."""
    x = inputs(2, 1500, 4, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (320,) * 4}
    first = results(x, "hopper", grad, **options)
    for _ in range(100):
        again = results(x, "hopper", grad, **options)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert computed(calls)


@both_ways
def test_cuda_graph(causal, calls):
    x = inputs(2, 1500, 4, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (320,) * 4}
    eager = results(x, "hopper", grad, **options)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = results(x, "hopper", grad, **options)
    for y in captured:
        y.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))
    assert computed(calls)


@both_ways
def test_nan_beyond_twice_the_window(causal, calls):
    """In a key and a value it moves no bit of outputs and gradients of queries there; in a query and its
    gradient, none of the gradients of keys."""
    window, length, at = 320, 2000, 1000
    x = inputs(1, length, 2, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (window,) * 2}
    token = torch.arange(length, device="cuda")
    before, behind = token < at - 2 * window, token >= at + 2 * window
    if causal:  # within a chunk NaN reaches earlier tokens
        before_key, behind_query = token < at - 64, token >= at + 64
    else:
        before_key, behind_query = before, behind
    clean = results(x, "hopper", grad, **options)
    spoilt = [y.detach().clone().requires_grad_() for y in x]
    with torch.no_grad():
        for y in spoilt[1:]:
            y[:, at] = torch.nan
    out, dq, *_ = results(spoilt, "hopper", grad, **options)
    for a, b in zip((out, dq), clean[:2], strict=True):
        assert torch.equal(a[:, before_key | behind], b[:, before_key | behind])
    assert out[:, at].isnan().all()
    with torch.no_grad():
        x[0][:, at] = torch.nan
        grad[:, at] = torch.nan
    for a, b in zip(results(x, "hopper", grad, **options)[2:], clean[2:], strict=True):
        assert torch.equal(a[:, before | behind_query], b[:, before | behind_query])
    assert computed(calls)


@both_ways
def test_a_key_beyond_twice_the_window_has_no_gradient(causal, calls):
    x = inputs(1, 2000, 2, 64)
    token = torch.arange(2000, device="cuda")
    grad = torch.randn_like(x[2]) * ((token - 1000).abs() >= 640)[None, :, None, None]
    *_, dk, dv = results(x, "hopper", grad, causal=causal, windows=(320, 320))
    assert (dk[:, 1000] == 0).all()
    assert (dv[:, 1000] == 0).all()
    assert computed(calls)
