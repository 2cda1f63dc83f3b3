"""No bit of what comes out for a token depends on what it does not see, also not where a sum has cancelled
and its rounding is taken out (residual.py), however large or broken the other numbers are."""

import pytest
import torch

from cosformer import cosformer_attention

NAN, INF = float("nan"), float("inf")
VALUES = pytest.mark.parametrize("value", [NAN, INF, -INF, 3.0], ids=str)


def call(sizes, dtype, seed):
    """q, k, v and the gradient of what comes out, for (batch, length, key heads, queries a key, D, Dv)."""
    batch, length, heads, group, dim, dv = sizes
    torch.manual_seed(seed)
    shapes = ((heads * group, dim), (heads, dim), (heads, dv), (heads * group, dv))
    return [torch.randn(batch, length, *shape, dtype=dtype) for shape in shapes]


def results(q, k, v, g, **options):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = cosformer_attention(*leaves, backend="chunked", **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, g)]


def spoilt(tensors, which, rows, value):
    """The same with some rows of one tensor [B, T, H, .] set to a value."""
    made = [x.clone() for x in tensors]
    made["qkvg".index(which)][rows] = value
    return made


@VALUES
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((1, 129, 1, 2, 1, 16), torch.float32),
        ((1, 172, 1, 2, 1, 1), torch.float32),
        ((1, 21, 1, 1, 1, 1), torch.float32),
        ((2, 45, 2, 2, 3, 5), torch.float64),
        ((1, 730, 1, 1, 8, 5), torch.float64),
    ],
    ids=str,
)
def test_the_future_moves_no_bit(sizes, dtype, which, value):
    for seed in range(6):
        x = call(sizes, dtype, seed)
        at = sizes[1] // 2 - seed
        y = spoilt(x, which, (slice(None), slice(at, None)), value)
        for ours, theirs in zip(*(results(*z, causal=True, horizon=1000)[:2] for z in (x, y)), strict=True):
            assert torch.equal(ours[:, :at], theirs[:, :at])


@pytest.mark.parametrize(
    ("seed", "sizes", "dtype", "window", "causal", "which", "at", "value"),
    [
        (40, (1, 700, 1, 2, 8, 1), torch.float32, 512, True, "q", 434, NAN),
        (56, (1, 1000, 2, 1, 3, 8), torch.float32, 320, True, "q", 229, NAN),
        (152, (1, 700, 1, 1, 1, 16), torch.float32, 512, False, "v", 576, -INF),
        (263, (1, 1500, 2, 1, 2, 16), torch.float64, 384, True, "q", 193, -INF),
        (596, (1, 700, 1, 1, 1, 4), torch.float32, 33, True, "q", 51, -INF),
        (631, (1, 500, 1, 1, 1, 4), torch.float64, 40, False, "v", 98, NAN),
        (1381, (1, 1000, 1, 1, 1, 16), torch.float32, 200, False, "v", 213, NAN),
    ],
)
def test_sums_for_corrections_are_cut_as_for_all_rows(seed, sizes, dtype, window, causal, which, at, value):
    """What rows lack by rounding is a sum over the keys of a window: calls for which its bits depended on
    which other rows asked for one, where it was cut for those alone."""
    x = call(sizes, dtype, seed)
    y = spoilt(x, which, (slice(None), slice(at, None)), value)
    early = slice(0, at if causal else at - window + 1)
    options = {"causal": causal, "windows": (window,) * sizes[2]}
    for ours, theirs in zip(*(results(*z, **options)[:2] for z in (x, y)), strict=True):
        assert torch.equal(ours[:, early], theirs[:, early])


@VALUES
@pytest.mark.parametrize("which", ["q", "k", "v", "g"])
@pytest.mark.parametrize("sizes", [(2, 60, 2, 2, 3, 1), (2, 169, 1, 2, 3, 16)], ids=str)
def test_another_row_of_the_batch_moves_no_bit(sizes, which, value):
    for seed in range(6):
        x = call(sizes, torch.float64, seed)
        y = spoilt(x, which, 0, value)
        for ours, theirs in zip(*(results(*z, causal=True, horizon=1000) for z in (x, y)), strict=True):
            assert torch.equal(ours[1], theirs[1])


@VALUES
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("window", [5, 40, 128, 192, 256])
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (1, 8), (2, 8)])
def test_what_lies_beyond_a_window_moves_no_bit(window, heads, dim, causal, value):
    """Nor does it decide which rows are corrected together."""
    for seed in range(3):
        x = call((1, 500, heads, 1, dim, 4), torch.float32, seed)
        y = spoilt(spoilt(x, "k", (slice(None), 20), value), "v", (slice(None), 20), value)
        ours, theirs = (results(*z, causal=causal, windows=(window,) * heads) for z in (x, y))
        for n in range(2):
            assert torch.equal(ours[n][:, 20 + window :], theirs[n][:, 20 + window :])


@pytest.mark.parametrize(("window", "length"), [(16, 60), (16, 500), (100, 150), (200, 300), (256, 400)])
def test_products_beyond_a_window_may_overflow(window, length):
    """Finite numbers, whose product is not: it has no weight where the query does not see the key."""
    x = call((1, length, 1, 1, 8, 8), torch.float32, 0)
    x[0][:, 5] = 1e15
    y = spoilt(x, "k", (slice(None), length - 1), 1e25)
    ours, theirs = (results(*z, causal=True, windows=(window,)) for z in (x, y))
    for n in range(4):
        early = slice(0, length - window)
        assert torch.equal(ours[n][:, early], theirs[n][:, early])
        assert theirs[n][:, early].isfinite().all()


def test_the_largest_number_of_bfloat16_as_a_mark():
    x = call((1, 60, 1, 1, 8, 8), torch.bfloat16, 0)
    y = spoilt(x, "k", (slice(None), 59), torch.finfo(torch.bfloat16).max)
    ours, theirs = (results(*z, causal=True, windows=(16,))[0] for z in (x, y))
    assert torch.equal(ours[:, :59], theirs[:, :59])


@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize(("window", "length"), [(16, 60), (16, 500), (100, 150), (256, 1200)])
def test_minus_infinity_is_nothing(window, length, which):
    """ReLU makes it zero, whatever else is not finite."""
    x = call((1, length, 1, 1, 8, 8), torch.float64, 0)
    marked = spoilt(x, which, (slice(None), 10, 0, 3), -INF)
    zero = spoilt(x, which, (slice(None), 10, 0, 3), -1.0)
    expected = results(*zero, causal=True, windows=(window,))
    for last in (None, "k", "g"):
        y = marked if last is None else spoilt(marked, last, (slice(None), length - 1), NAN)
        for ours, theirs in zip(results(*y, causal=True, windows=(window,)), expected, strict=True):
            early = slice(0, length - window)
            assert torch.equal(ours[:, early], theirs[:, early])


@pytest.mark.parametrize(
    ("windows", "length"), [((64,), 100), ((40,), 1500), ((8, 16), 200), ((128,), 1500)], ids=str
)
def test_a_correction_of_another_row_brings_no_sum_that_overflows(windows, length):
    """Keys near the largest number: their sum is inf, and no part of a row that has nothing to be corrected.
    Whether the other row of the batch has, a gradient of zeros decides."""
    q, k, v, g = call((2, length, len(windows), 1, 8, 8), torch.float32, 1)
    q, k, g = q.abs() + 0.1, k.abs() + 0.1, 0.01 * g
    q[0, :, :, 0], k[0, 33:36, :, 0], g[0, 0] = 2e-38, 2.5e38, 0
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, 1 : length - 1] = False
    options = {"causal": True, "windows": windows, "key_mask": mask}
    beside, alone = (
        results(q, k, v, other, **options)[1][0] for other in (g, spoilt((q, k, v, g), "g", 1, 0)[3])
    )
    assert torch.equal(beside, alone)
    assert alone.isfinite().all()
