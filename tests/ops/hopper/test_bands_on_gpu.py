"""The Hopper kernels for narrow windows against the equation; only a GPU can run them."""

import pytest
import torch

from cosformer import cosformer_attention
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


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The names of the kernels that were launched, with nothing in the cache of plans; however short a call
    is, kinds of heads run beside each other."""
    from cosformer.ops.gpu import launch_cache
    from cosformer.ops.gpu.windows import launch
    from cosformer.ops.hopper import band_run

    found = []
    real = band_run.BandHeads._launch
    monkeypatch.setattr(band_run, "MIN_ROWS", {True: 0, False: 0})
    monkeypatch.setattr(launch, "ROWS_ASIDE", 0)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    monkeypatch.setattr(
        band_run.BandHeads,
        "_launch",
        lambda self, kernel, *a: found.append(kernel.__name__) or real(self, kernel, *a),
    )
    return found


@both_ways
@pytest.mark.parametrize(
    "windows",
    [(2, 64), (1, 65), (3, 33), (66, 128), (129, 100), (85, 64), (130, 256), (193, 194), (2, 200)],
    ids=str,
)
@pytest.mark.parametrize("length", [2, 63, 65, 129, 1000, 2100])
def test_widths_and_odd_lengths(length, windows, causal, launched):
    from cosformer.ops.hopper.band_run import kernels_of

    assert_right(make(tq=length, dim=64, causal=causal, windows=windows))
    expected = [kernels_of(w, causal) for w in windows]
    names = {kernel.__name__ for x in expected if x is not None for kernel in x[0][:3]}
    assert set(launched) - {"band_bwd"} == names


@both_ways
@pytest.mark.parametrize("windows", [(1, 2, 3, 5), (31, 32, 17, 8), (64, 63, 33, 2)], ids=str)
@pytest.mark.parametrize("length", [1, 31, 33, 64, 97, 700, 4200, 9000])
def test_gradients_at_once(length, windows, causal, launched):
    """Also where a row ends within half a tile, and where what mends has several strips of a row."""
    if length > 1:
        assert_right(make(tq=length, dim=64, heads=4, causal=causal, windows=windows))
    else:
        assert_one_token_is_right(causal=causal, windows=windows[:2])
    assert ("band_bwd" in launched) == (causal or max(windows) <= 32)


@pytest.mark.parametrize("row", [30, 7935, 7936, 7967, 7968, 8999])
def test_mended_at_the_edges_of_strips(row, launched):
    """A gradient that is not finite, in both directions: half of a tile of dq belongs to the tile before."""
    x = inputs(1, 9000, 2, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": False, "windows": (8, 32)}
    clean = results(x, "hopper", grad, **options)
    with torch.no_grad():
        x[2][:, row] = torch.nan
    found = results(x, "hopper", grad, **options)
    at = torch.arange(9000, device="cuda")
    for head, window in enumerate(options["windows"]):
        far = (at - row).abs() >= window
        assert torch.equal(found[1][:, far, head], clean[1][:, far, head])
        assert found[1][:, ~far, head].isnan().any(-1).all()
    with torch.no_grad():
        x[2][:, row] = 0.0
    clean = results(x, "hopper", grad, **options)
    with torch.no_grad():
        x[0][:, row] = torch.nan
        grad[:, row] = torch.nan
    found = results(x, "hopper", grad, **options)
    for head, window in enumerate(options["windows"]):
        far = (at - row).abs() >= window
        for a, b in zip(found[2:], clean[2:], strict=True):
            assert torch.equal(a[:, far, head], b[:, far, head])
    assert "band_bwd" in launched


@both_ways
def test_a_gradient_without_strides(causal, launched):
    """Of a sum: it is copied before the kernels of either stream read it."""
    x = inputs(2, 1500, 6, 64)
    options = {"causal": causal, "windows": (2, 64, None, 128, 256, 320), "horizon": 4000}
    one = torch.ones((), dtype=torch.bfloat16, device="cuda")
    expected = results(x, "hopper", one.expand(x[2].shape).clone(), **options)
    wrong = []
    for n in range(20):
        out = cosformer_attention(*x, backend="hopper", **options)
        found = (out, *torch.autograd.grad(out, x, one.expand(out.shape)))
        for name, a, b in zip(("o", "dq", "dk", "dv"), found, expected, strict=True):
            off = (a - b).abs().amax(-1)  # [B, T, H]
            for head in off.amax((0, 1)).nonzero().flatten().tolist():
                rows = off[:, :, head].nonzero().tolist()
                largest = float(off[:, :, head].max() / b[:, :, head].abs().max())
                wrong.append((n, name, options["windows"][head], len(rows), rows[:3], largest))
    assert not wrong, wrong
    assert launched


@both_ways
@pytest.mark.parametrize(
    ("windows", "options"),
    [
        ((2, 64), {"dim": 32}),
        ((16, 5), {"dim": 40, "value_dim": 64}),
        ((2, 64), {"heads": 4, "kv_heads": 2}),
        ((2, 64, None, 128, 256, 320), {"heads": 6, "horizon": 4000}),
        ((2, 4, 8, 16, 64, 128, 512, 1024), {"heads": 8, "tq": 2500}),
        ((128, 256), {"dim": 32}),
        ((100, 150), {"dim": 40, "value_dim": 64}),
        ((128, 256), {"heads": 4, "kv_heads": 2}),
        ((128, 256), {"tq": 6000}),
    ],
    ids=str,
)
def test_every_kind_of_call(windows, options, causal, launched):
    assert_right(make(**({"tq": 700, "dim": 64} | options), causal=causal, windows=windows))
    assert launched


@both_ways
@pytest.mark.parametrize("windows", [(8, 60), (128, 256)], ids=str)
@pytest.mark.parametrize("strip", [1, 2, 5, 16])
def test_strips(strip, windows, causal, launched, monkeypatch):
    from cosformer.ops.hopper import band_run

    monkeypatch.setattr(band_run, "strip_size", lambda *_: strip)
    assert_right(make(tq=1300, dim=64, causal=causal, windows=windows))
    assert launched


@both_ways
def test_repeats_and_graphs_are_bit_identical(causal, launched):
    x = inputs(2, 1500, 6, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (2, 64, 16, 65, 128, 256)}
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
    assert launched


@both_ways
@pytest.mark.parametrize("window", [3, 64, 100, 128, 200, 256])
def test_what_is_not_seen_moves_no_bit(window, causal, launched):
    """NaN in a key and a value: values and gradients of queries that do not see them. In a query and its
    gradient: gradients of keys that it does not see."""
    at = torch.arange(700, device="cuda")
    near = (at - 300).abs() < window
    sees = near & (at >= 300) if causal else near
    seen = near & (at <= 300) if causal else near
    x = inputs(2, 700, 2, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "windows": (window, window)}
    clean = results(x, "hopper", grad, **options)
    spoilt = [y.detach().clone().requires_grad_() for y in x]
    with torch.no_grad():
        for y in spoilt[1:]:
            y[:, 300] = torch.nan
    found = results(spoilt, "hopper", grad, **options)
    assert found[0][:, sees].isnan().all()
    for a, b in zip(found[:2], clean[:2], strict=True):
        assert torch.equal(a[:, ~sees], b[:, ~sees])
    with torch.no_grad():
        x[0][:, 300] = torch.nan
        grad[:, 300] = torch.nan
    found = results(x, "hopper", grad, **options)
    for a, b in zip(found[2:], clean[2:], strict=True):
        assert torch.equal(a[:, ~seen], b[:, ~seen])
    assert launched


@both_ways
def test_one_token(causal, launched):
    assert_one_token_is_right(causal=causal, windows=(2, 256))
    assert launched
