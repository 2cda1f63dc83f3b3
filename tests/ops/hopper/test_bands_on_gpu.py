"""The Hopper kernels for narrow windows against the equation; only a GPU can run them."""

import pytest
import torch

from tests.ops.cases import make
from tests.ops.hopper.on_gpu import assert_right, both_ways, inputs, on_a_gpu, results

pytestmark = on_a_gpu


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The kernels that were launched, with nothing in the cache of plans."""
    from cosformer.ops.gpu import launch_cache
    from cosformer.ops.hopper import band_run

    found = []
    real = band_run.BandHeads._launch
    monkeypatch.setattr(band_run, "SERVED", True)
    monkeypatch.setattr(band_run, "MIN_ROWS", 0)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    monkeypatch.setattr(
        band_run.BandHeads, "_launch", lambda self, kernel, *a: found.append(kernel) or real(self, kernel, *a)
    )
    return found


@both_ways
@pytest.mark.parametrize("windows", [(2, 64), (1, 65), (3, 33), (66, 128), (129, 100)], ids=str)
@pytest.mark.parametrize("length", [1, 63, 65, 1000, 2100])
def test_widths_and_odd_lengths(length, windows, causal, launched):
    assert_right(make(tq=length, dim=64, causal=causal, windows=windows))
    assert len(set(launched)) == (3 if causal or max(windows) <= 65 else 0)


@both_ways
@pytest.mark.parametrize(
    ("windows", "options"),
    [
        ((2, 64), {"dim": 32}),
        ((16, 5), {"dim": 40, "value_dim": 64}),
        ((2, 64), {"heads": 4, "kv_heads": 2}),
        ((2, 64, None, 128, 256, 320), {"heads": 6, "horizon": 4000}),
    ],
    ids=str,
)
def test_every_kind_of_call(windows, options, causal, launched):
    assert_right(make(**({"tq": 700, "dim": 64} | options), causal=causal, windows=windows))
    assert launched


@both_ways
@pytest.mark.parametrize("strip", [1, 2, 5, 16])
def test_strips(strip, causal, monkeypatch):
    from cosformer.ops.hopper import band_run

    monkeypatch.setattr(band_run, "strip_size", lambda *_: strip)
    assert_right(make(tq=1300, dim=64, causal=causal, windows=(8, 60)))


@both_ways
def test_repeats_and_graphs_are_bit_identical(causal):
    x = inputs(2, 1500, 4, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (2, 64, 16, 65)}
    first = results(x, "hopper", grad, **options)
    for _ in range(30):
        again = results(x, "hopper", grad, **options)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = results(x, "hopper", grad, **options)
    for y in captured:
        y.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(first, captured, strict=True))


@both_ways
@pytest.mark.parametrize("window", [3, 64])
def test_what_is_not_seen_moves_no_bit(window, causal):
    """NaN in a key, a value and a query; values and gradients of what does not see them."""
    x = inputs(2, 700, 2, 64)
    at = torch.arange(700, device="cuda")
    sees = (at >= 300) & (at < 300 + window) if causal else (at - 300).abs() < window
    grad = torch.randn_like(x[2]) * ~sees[None, :, None, None]
    options = {"causal": causal, "windows": (window, window)}
    clean = results(x, "hopper", grad, **options)
    with torch.no_grad():
        for y in x:
            y[:, 300] = torch.nan
    found = results(x, "hopper", grad, **options)
    assert torch.equal(found[0][:, ~sees], clean[0][:, ~sees])
    assert found[0][:, sees].isnan().all()
    for a, b in zip(found[1:], clean[1:], strict=True):
        assert torch.equal(a[:, at != 300], b[:, at != 300])
        assert (a[:, 300] == 0).all()
