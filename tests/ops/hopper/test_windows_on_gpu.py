"""The Hopper kernels for wide windows against the equation; only a GPU can run them."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops.gpu import launch_cache
from tests.ops.cases import is_as_good_as, make
from tests.ops.hopper.on_gpu import (
    FLOOR,
    assert_right,
    assert_rounding,
    both_ways,
    in_double,
    inputs,
    on_a_gpu,
    results,
)

pytestmark = on_a_gpu


@pytest.fixture
def calls(monkeypatch):
    """The heads that these kernels computed, with nothing in the cache of plans."""
    from cosformer.ops.hopper import window_run

    found = []
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    real = window_run.wide_heads
    monkeypatch.setattr(window_run, "wide_heads", lambda *a: found.append(real(*a)) or found[-1])
    return found


def computed(calls):
    return bool(calls) and None not in calls


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
def test_what_is_not_served_yet(windows, options, causal, calls, monkeypatch):
    """The kernels are made for more than is given to them (window_run.TRIED_ONLY)."""
    from cosformer.ops.hopper import window_run

    monkeypatch.setattr(window_run, "TRIED_ONLY", False)
    assert_right(make(**({"tq": 1000, "dim": 64} | options), causal=causal, windows=windows))
    assert any(calls)


@both_ways
def test_one_token(causal, calls, monkeypatch):
    """o is v whatever q and k are: g.v and g.o cancel in their gradients, and leave only rounding."""
    from cosformer.ops.hopper import window_run

    monkeypatch.setattr(window_run, "TRIED_ONLY", False)
    x = inputs(2, 1, 2, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (512, 512)}
    exact = results(in_double(x), "reference", grad, **options)
    plain = results(x, "reference", grad, **options)
    found = results(x, "hopper", grad, **options)
    for i in (0, 3):
        assert is_as_good_as(found[i], plain[i], exact[i], FLOOR)
    q, k, v, g = (y.detach().double() for y in (*x, grad))
    each = (g * v).abs().sum(-1, keepdim=True) / (q.relu() * k.relu()).sum(-1, keepdim=True)
    assert_rounding(found[1].double(), each * k.relu())
    assert_rounding(found[2].double(), each * q.relu())
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
    """Moves no bit of what is computed, nor of gradients, and gets none."""
    window, length, at = 320, 2000, 1000
    x = inputs(1, length, 2, 64)
    grad = torch.randn_like(x[2])
    far = torch.arange(length, device="cuda")
    far = (far >= at + 2 * window) | (far < (at - 64 if causal else at - 2 * window))
    grad[:, ~far] = 0
    clean = cosformer_attention(*x, causal=causal, windows=(window,) * 2, backend="hopper").detach()
    with torch.no_grad():
        for y in x[1:]:
            y[:, at] = torch.nan
    out, _, dk, dv = results(x, "hopper", grad, causal=causal, windows=(window,) * 2)
    assert torch.equal(out[:, far], clean[:, far])
    assert (dk[:, at] == 0).all()
    assert (dv[:, at] == 0).all()
    assert computed(calls)
