"""Windows on a CPU are computed in the way that costs least: the same numbers in each, in linear memory."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops.chunked import attention, window_sums, windowed, workspace

from .cases import distance

NAN = float("nan")
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("batch", "heads", "length", "past"), [(1, 6, 200, 0), (2, 12, 130, 0), (2, 6, 5, 40)]
)
@pytest.mark.parametrize("spoilt", [None, float("nan")])
def test_narrow_heads_together_and_apart(batch, heads, length, past, causal, spoilt, monkeypatch):
    """Small heads with narrow windows are computed together, in memory that is kept: the same numbers as one
    by one, and what a call has returned stays as it is."""
    windows = (2, 32, 1, 7, 40, 33)
    q, g = (torch.randn(batch, length, heads, 16, dtype=torch.float64) for _ in range(2))
    k, v = (torch.randn(batch, length + past, 6, 16, dtype=torch.float64) for _ in range(2))
    if spoilt is not None:
        k[0, length // 2, 3], v[-1, -1, 0] = spoilt, spoilt

    def results():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        options = {"windows": windows, "causal": causal, "query_offset": past, "backend": "chunked"}
        out = cosformer_attention(*leaves, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, g)]

    groups = []
    real = windowed._groups
    monkeypatch.setattr(windowed, "_groups", lambda args: [groups.append(x) or x for x in real(args)])
    together = results()
    assert [x.windows for x in groups][:3] == [(2, 32, 1, 7), (40,), (33,)]
    kept = [x.clone() for x in together]
    monkeypatch.setattr(windowed, "SMALL", 0)
    apart = results()
    assert len(groups) == 2 * 3 + 2 * 6, "forward and backward, together and apart"
    monkeypatch.setattr(workspace, "SMALL", 0)
    for ours, alone, fresh, before in zip(together, apart, results(), kept, strict=True):
        torch.testing.assert_close(ours, alone, rtol=1e-12, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(alone, fresh, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(ours, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("windows", [(3, 32), (32, 3), (3, 3)])
def test_a_query_that_sees_no_key_takes_no_part_whatever_it_holds(windows):
    """Also where heads with other windows are computed with it."""
    q, k, v = torch.randn(1, 40, 2, 8), torch.randn(1, 10, 2, 8), torch.randn(1, 10, 2, 8)
    q[0, 30] = NAN
    found = []
    for backend in ("reference", "chunked"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = cosformer_attention(*leaves, windows=windows, causal=True, query_offset=0, backend=backend)
        found.append([out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    blind = windows.index(3)
    for plain, ours in zip(*found, strict=True):
        assert ours[:, :, blind].isfinite().all()
        torch.testing.assert_close(ours[:, :, blind], plain[:, :, blind], rtol=1e-4, atol=1e-5)
    assert torch.equal(found[1][0][0, 30, blind], torch.zeros(8))
    assert found[1][0][0, 30].isnan().any() == (32 in windows)


@pytest.mark.parametrize(
    ("length", "window", "ahead", "expected"),
    [
        (196, 64, 63, "square"), (196, 256, 255, "square"), (196, 8, 7, "band"), (196, 100, 99, "square"),
        (512, 64, 63, "band"), (512, 128, 127, "wide"), (512, 128, 0, "band"), (512, 250, 249, "square"),
        (4096, 64, 63, "band"), (4096, 250, 249, "band"), (4096, 256, 0, "wide"), (4096, 1024, 1023, "wide"),
        (600, 320, 0, "wide"), (300, 320, 0, "square"),
    ],
)  # fmt: skip
def test_the_form_of_a_sum(length, window, ahead, expected):
    """On a CPU what costs least; elsewhere a band, or states where a window is wide."""
    call = (length, length, window_sums.Reach((window,), window - 1, ahead, 0))
    assert window_sums.form(*call, torch.device("cpu")) == expected
    assert window_sums.form(*call, torch.device("cuda")) == ("band" if window <= 256 else "wide")


@pytest.mark.parametrize(
    ("rows", "window", "expected"),
    [
        (16, 1024, "square"),
        (64, 8192, "square"),
        (256, 8192, "wide"),
        (300, 1024, "wide"),
        (64, 65536, "wide"),
    ],
)
def test_the_form_of_a_few_rows_behind_a_long_past(rows, window, expected):
    """States are built from all columns, however few the rows that read them."""
    reach = window_sums.Reach((window,), window - 1, 0, window - 1)
    assert window_sums.form(rows, window + rows - 1, reach, torch.device("cpu")) == expected


@both_ways
@pytest.mark.parametrize("window", [1, 2, 40, 64, 128, 192, 256, 320])
@pytest.mark.parametrize(
    ("rows", "columns", "offset"), [(150, 150, 0), (40, 130, 90), (70, 40, -20), (20, 300, 5)]
)
@pytest.mark.parametrize("spoilt", [None, NAN])
def test_all_forms_are_one_sum(window, rows, columns, offset, causal, spoilt, monkeypatch):
    """However it is computed: values and gradients, also beside keys and queries that are not finite."""
    q, g = (torch.randn(2, rows, 2, 8, dtype=torch.float64) for _ in range(2))
    k, v = (torch.randn(2, columns, 1, 8, dtype=torch.float64) for _ in range(2))
    if spoilt is not None:
        q[0, rows // 2], k[1, columns // 3] = spoilt, spoilt
    forms = ["square"] + (["band"] if window <= 256 else []) + (["wide"] if window % 64 == 0 else [])
    found = {}
    for name in forms:
        for module in (window_sums, windowed):
            monkeypatch.setattr(module, "form", lambda *call, name=name: name)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        options = {"windows": (window,), "causal": causal, "query_offset": offset, "backend": "chunked"}
        out = cosformer_attention(*leaves, **options)
        found[name] = [out.detach(), *torch.autograd.grad(out, leaves, g)]
    for name in forms[1:]:
        for ours, square in zip(found[name], found["square"], strict=True):
            torch.testing.assert_close(ours, square, rtol=1e-10, atol=1e-10, equal_nan=True)


@both_ways
@pytest.mark.parametrize(
    ("rows", "columns", "offset", "sees_all"),
    [
        (320, 320, 0, True), (321, 321, 0, False), (20, 320, 300, True), (20, 321, 301, False),
        (20, 330, 0, False), (330, 20, 0, False), (1, 321, 320, False), (5, 9, -316, False),
        (5, 4, -316, True),
    ],
)  # fmt: skip
def test_a_wide_window_that_sees_all_is_a_horizon(rows, columns, offset, sees_all, causal, monkeypatch):
    """It is computed as a head without one, in its place among the others; not where positions lie further
    apart than it sees."""
    calls = []
    for name in ("forward", "backward"):
        real = getattr(attention, name)
        monkeypatch.setattr(
            attention, name, lambda args, *rest, real=real: calls.append(args.horizon) or real(args, *rest)
        )
    q = torch.randn(2, rows, 6, 8, dtype=torch.float64)
    k, v = (torch.randn(2, columns, 3, 8, dtype=torch.float64) for _ in range(2))
    mask = torch.rand(2, columns) < 0.7
    options = {"windows": (3, 320, 40), "causal": causal, "query_offset": offset, "key_mask": mask}
    found = []
    for backend in ("chunked", "reference"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = cosformer_attention(*leaves, **options, backend=backend)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
    assert calls == [320.0, 320.0] * sees_all
    for ours, exact in zip(*found, strict=True):
        assert distance(ours, exact) < 1e-10


@both_ways
@pytest.mark.parametrize("window", [128, 320, 1024])
@pytest.mark.parametrize(("rows", "columns"), [(20_000, 300), (300, 20_000)])
def test_of_many_queries_only_those_that_see_a_key_are_computed(rows, columns, window, causal, monkeypatch):
    """And of many keys only those that are seen: both ways of a long text beside a short one."""
    real, lengths = windowed.windowed_sum, []
    monkeypatch.setattr(
        windowed,
        "windowed_sum",
        lambda a, b, *rest: lengths.extend((a.shape[1], b.shape[1])) or real(a, b, *rest),
    )
    monkeypatch.setattr(windowed.attention, "forward", None)  # it would read all of the text
    end, options = 300 + window, {"windows": (window,), "causal": causal, "query_offset": 0}
    leaves = [torch.randn(1, n, 1, 8, requires_grad=True) for n in (rows, columns, columns)]
    out = cosformer_attention(*leaves, **options, backend="chunked")
    grads = torch.autograd.grad(out.square().sum(), leaves)
    short = [x.detach()[:, :end].requires_grad_() for x in leaves]
    near = cosformer_attention(*short, **options, backend="reference")
    torch.testing.assert_close(out[:, :end], near, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(grads, torch.autograd.grad(near.square().sum(), short), strict=True):
        torch.testing.assert_close(ours[:, :end], theirs, rtol=1e-3, atol=1e-4)
        assert not ours[:, end:].any()
    assert 0 < max(lengths) < end


def test_of_positions_far_apart_no_rounding_is_left():
    """Behind its end a text has queries that see no key: the angles of the others stay below pi/2."""
    torch.manual_seed(0)
    q, k, v = torch.rand(1, 2000, 1, 16), torch.rand(1, 320, 1, 16), torch.randn(1, 320, 1, 8)
    options = {"causal": True, "windows": (320,), "key_mask": torch.arange(320)[None] == 0}
    exact = cosformer_attention(*(x.double() for x in (q, k, v)), **options, backend="reference")
    plain, ours = (cosformer_attention(q, k, v, **options, backend=b) for b in ("reference", "chunked"))
    assert (ours - exact).abs().max() <= 4 * (plain - exact).abs().max()


@both_ways
@pytest.mark.parametrize("window", [None, 256, 320])
def test_a_broken_key_that_no_query_with_a_gradient_sees(window, causal):
    q, k, v = (torch.ones(1, 3, 1, 8) for _ in range(3))
    v[0, 1] = float("inf")
    g = torch.zeros_like(v)
    g[0, 0] = 1 if causal else 0
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = cosformer_attention(*leaves, causal=causal, windows=(window,), horizon=320, backend="chunked")
    for grad in torch.autograd.grad(out, leaves, g):
        assert grad.isfinite().all()


def test_few_large_weights_are_kept():
    """Of each new length a square: a few are kept, and many small ones."""
    kept = []
    for length in range(170, 200):
        x = torch.randn(1, length, 1, 8, requires_grad=True)
        cosformer_attention(x, x, x, windows=(256,), backend="chunked").sum().backward()
        kept.append((window_sums._many_weights.cache_info().currsize, window_sums._few_weights.cache_info()))
    assert kept[0][0] == kept[-1][0]
    assert kept[-1][1].currsize == kept[-1][1].maxsize < 30
