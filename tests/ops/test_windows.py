"""Windows of heads: what a window means, the laws under it, and mistakes."""

import itertools

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import decode_step
from cosformer.ops.chunked import attention, window_sums, windowed, workspace

from .cases import distance

NAN = float("nan")
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
one_window = pytest.mark.parametrize("window", [1, 2, 3, 8, 63, 64, 65, 200, 256, 320, 512])


def qkv(length, heads=1, batch=1, dim=8, dtype=torch.float64):
    return [torch.randn(batch, length, heads, dim, dtype=dtype) for _ in range(3)]


def weights(q, k, **options):
    """The weights themselves, before they are divided: values that pick one key each, and eps too large to
    matter. [Tq, Tk] of one head."""
    length = k.shape[1]
    v = torch.eye(length, dtype=k.dtype)[None, :, None]
    return cosformer_attention(q, k, v, eps=1e30, **options)[0, :, 0] * 1e30


@both_ways
@one_window
def test_what_a_window_weighs(window, causal):
    """cos((pi/2) d/W) up to W - 1, exactly nothing from W on."""
    length = 2 * window + 9
    x = torch.ones(1, length, 1, 1, dtype=torch.float64)
    w = weights(x, x, windows=(window,), causal=causal)
    d = torch.arange(length)[:, None] - torch.arange(length)
    expected = torch.cos(torch.pi / 2 * d.double() / window)
    seen = (d.abs() < window) & ((d >= 0) | (not causal))
    assert (w - expected)[seen].abs().max() < 1e-12
    assert torch.equal(w[~seen], torch.zeros_like(w[~seen]))
    assert w[length - 1, length - window] > 0  # at distance W - 1 a key counts
    assert w[length - 1, length - window - 1] == 0


@both_ways
@one_window
@pytest.mark.parametrize("garbage", [NAN, float("inf"), 1e30])
def test_what_lies_beyond_a_window_cannot_move_a_bit(window, causal, garbage):
    length, at = 1300, 600
    q, k, v = (x.requires_grad_() for x in qkv(length))
    weight = torch.randn(1, length, 1, 8, dtype=torch.float64)
    beyond = (torch.arange(length) - at).abs() >= window
    if causal:
        beyond |= torch.arange(length) < at

    def results():
        out = cosformer_attention(q, k, v, windows=(window,), causal=causal)
        return [out.detach(), *torch.autograd.grad(out[:, beyond], (q, k, v), weight[:, beyond])]

    clean = results()
    with torch.no_grad():
        k[:, at], v[:, at] = garbage, garbage
    spoilt = results()
    for a, b in zip(clean[:2], spoilt[:2], strict=True):  # out and dq
        assert torch.equal(a[:, beyond], b[:, beyond])
    others = torch.arange(length) != at
    for a, b in zip(clean[2:], spoilt[2:], strict=True):
        assert torch.equal(a[:, others], b[:, others])
        assert torch.equal(b[:, at], torch.zeros_like(b[:, at])), "nobody sees it: no gradient"
    if garbage != 1e30:
        assert not spoilt[0][:, ~beyond].isfinite().any(), "nothing is hidden within the window"


@one_window
def test_the_future_cannot_change_the_past(window):
    q, k, v = qkv(700)
    before = cosformer_attention(q, k, v, windows=(window,), causal=True)
    k[:, 400:], v[:, 400:], q[:, 400:] = NAN, NAN, NAN
    after = cosformer_attention(q, k, v, windows=(window,), causal=True)
    assert torch.equal(after[:, :400], before[:, :400])


@both_ways
@pytest.mark.parametrize(("window", "length"), [(64, 60), (200, 200), (256, 100), (320, 300), (1024, 700)])
def test_a_window_as_long_as_the_text_is_a_horizon(window, length, causal):
    q, k, v = qkv(length, batch=2)
    out = cosformer_attention(q, k, v, windows=(window,), causal=causal)
    assert distance(out, cosformer_attention(q, k, v, horizon=window, causal=causal)) < 1e-12


@both_ways
def test_no_windows_are_no_windows(causal):
    """windows=None, and None for every head: the same to the bit."""
    q, k, v = qkv(300, heads=2, dtype=torch.float32)
    plain = cosformer_attention(q, k, v, horizon=400, causal=causal)
    assert torch.equal(cosformer_attention(q, k, v, horizon=400, causal=causal, windows=None), plain)
    assert torch.equal(cosformer_attention(q, k, v, horizon=400, causal=causal, windows=(None, None)), plain)
    mixed = cosformer_attention(q, k, v, horizon=400, causal=causal, windows=(8, None))
    alone = cosformer_attention(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], horizon=400, causal=causal)
    assert torch.equal(mixed[:, :, 1:], alone)


@both_ways
@pytest.mark.parametrize("windows", [(3, 64), (65, None), (320, 512)], ids=str)
def test_documents_are_alone(windows, causal):
    """Whatever stands beside a document in a packed row, NaN included, is nothing to it."""
    lengths = (1, 70, 0, 300, 17, 400)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    q, k, v = qkv(int(bounds[-1]), heads=2)
    options = {"windows": windows, "causal": causal, "horizon": 500.0}
    packed = cosformer_attention(q, k, v, cu_seqlens=bounds, **options)
    for a, b in itertools.pairwise(bounds.tolist()):
        if a < b:
            alone = cosformer_attention(q[:, a:b], k[:, a:b], v[:, a:b], **options)
            assert distance(packed[:, a:b], alone) < 1e-12
    spoilt = [x.clone() for x in (q, k, v)]
    for x in spoilt:
        x[:, 71:371] = NAN
    again = cosformer_attention(*spoilt, cu_seqlens=bounds, **options)
    clean = torch.ones(q.shape[1], dtype=torch.bool)
    clean[71:371] = False
    assert torch.equal(again[:, clean], packed[:, clean])


@both_ways
@pytest.mark.parametrize("windows", [(3, 64), (65, None), (320, 512)], ids=str)
def test_masked_keys_have_no_influence(windows, causal):
    q, k, v = qkv(600, heads=2, batch=2)
    mask = torch.rand(2, 600) > 0.4
    options = {"windows": windows, "causal": causal, "horizon": 700.0, "key_mask": mask}
    clean = cosformer_attention(q, k, v, **options)
    k[~mask] = v[~mask] = NAN
    assert torch.equal(cosformer_attention(q, k, v, **options), clean)


@pytest.mark.parametrize("windows", [(1, 2, 5), (64, None, 8), (320, 3, 65)], ids=str)
def test_one_token_at_a_time(windows):
    q, k, v = qkv(400, heads=3, batch=2)
    mask = torch.rand(2, 400) > 0.2
    horizon = 400.0 if None in windows else None
    whole = cosformer_attention(q, k, v, windows=windows, horizon=horizon, causal=True, key_mask=mask)
    state = CosformerState.zeros(2, 3, 8, horizon=horizon, windows=windows, dtype=torch.float64)
    size = state.nbytes
    parts = []
    for t in range(400):
        now = slice(t, t + 1)
        out, state = decode_step(q[:, now], k[:, now], v[:, now], state, key_mask=mask[:, now])
        parts.append(out)
    assert distance(torch.cat(parts, 1), whole) < 1e-12
    assert state.nbytes == size


@pytest.mark.parametrize("windows", [(4, None), (65, 320)], ids=str)
def test_rows_of_other_lengths(windows):
    """`lengths`: the state of a row that is padded behind is that of the row alone."""
    lengths = torch.tensor([3, 120, 0, 77])
    q, k, v = qkv(120, heads=2, batch=4)
    for x in (k, v):
        x[torch.arange(120) >= lengths[:, None]] = NAN
    options = {"windows": windows, "horizon": 1000.0 if None in windows else None, "causal": True}
    out, state = cosformer_attention(q, k, v, lengths=lengths, return_state=True, **options)
    more = qkv(50, heads=2, batch=4)
    after = cosformer_attention(*more, state=state, **options)
    for row, n in enumerate(lengths.tolist()):
        mine = slice(row, row + 1)
        whole = [torch.cat((x[mine, :n], y[mine]), 1) for x, y in zip((q, k, v), more, strict=True)]
        expected = cosformer_attention(*whole, **options)
        assert distance(out[mine, :n], expected[:, :n]) < 1e-12
        assert distance(after[mine], expected[:, n:]) < 1e-12
    assert state.positions.tolist() == lengths.tolist()


def test_a_stream_does_not_drift():
    """A million tokens in uneven pieces: the last outputs are those of the last W tokens alone."""
    windows, length, last = (1, 8, 64, 320, 1024), 1_000_000, 1000
    state = CosformerState.zeros(1, 5, 8, windows=windows)
    size, draw, seen, kept = state.nbytes, torch.Generator().manual_seed(3), 0, []
    while seen < length:
        n = min(int(torch.randint(1, 60_000, (), generator=draw)), length - seen)
        q, k, v = torch.randn(3, 1, n, 5, 8, generator=draw).unbind(0)
        out, state = cosformer_attention(
            q, k, v, causal=True, windows=windows, state=state, return_state=True
        )
        seen += n
        kept.append((q, k, v, out))
        while sum(x[0].shape[1] for x in kept[1:]) > last + 1024:
            kept.pop(0)
    assert state.nbytes == size
    assert state.seen == length
    q, k, v, out = (torch.cat(x, 1)[:, -last - 1024 :] for x in zip(*kept, strict=True))
    exact = cosformer_attention(q.double(), k.double(), v.double(), causal=True, windows=windows)
    assert distance(out[:, -last:], exact[:, -last:]) < 1e-5


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ((4,), "one entry for each of the 2 key-value heads, but got 1"),
        ((4, 4, 4), "but got 3: (4, 4, 4)"),
        ((0, 4), "windows[0] must be at least 1"),
        ((4, -3), "windows[1] must be at least 1"),
        ((4.0, 4), "windows[0] must be an int or None, but got 4.0"),
        ((True, 4), "windows[0] must be an int or None, but got True"),
        ((257, 4), "windows[0] must be a multiple of 64 above 256, but got 257; the nearest is 256"),
        ((4, 1000), "windows[1] must be a multiple of 64 above 256, but got 1000; the nearest is 1024"),
        (8, "windows must be a list or tuple with an int or None for each key-value head, but got int"),
        ("8,8", "windows must be a list or tuple"),
    ],
)
def test_mistakes(windows, message):
    q, k, v = qkv(10, heads=2)
    with pytest.raises((TypeError, ValueError)) as error:
        cosformer_attention(q, k, v, windows=windows, horizon=10)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([11]), "lengths must be from 0 to Tk = 10, the columns of k, but got 11"),
        (torch.tensor([-1]), "but got -1"),
        (torch.tensor([5, 5]), r"lengths must have shape \[B\] = \[1\]"),
        (torch.tensor([5.0]), "lengths must be an integer tensor"),
        ([5], "lengths must be an integer tensor"),
    ],
)
def test_mistakes_in_lengths(lengths, message):
    q, k, v = qkv(10, heads=2)
    with pytest.raises((TypeError, ValueError), match=message):
        cosformer_attention(q, k, v, windows=(4, 9), causal=True, lengths=lengths, return_state=True)


def test_a_state_of_other_windows():
    q, k, v = qkv(10, heads=2)
    options = {"causal": True, "horizon": 100}
    _, state = cosformer_attention(q, k, v, windows=(4, None), return_state=True, **options)
    for windows in ((8, None), None, (None, 4)):
        with pytest.raises(ValueError, match=r"state was made with windows \(4, None\), but this call has"):
            cosformer_attention(q, k, v, windows=windows, state=state, **options)
    _, plain = cosformer_attention(q, k, v, return_state=True, **options)
    with pytest.raises(ValueError, match="state was made with windows none"):
        cosformer_attention(q, k, v, windows=(4, None), state=plain, **options)
    with pytest.raises(ValueError, match="at least 0 where heads with a window meet a state"):
        cosformer_attention(q, k, v, windows=(4, None), state=state, query_offset=-1, **options)
    half = [x.bfloat16() for x in (q, k, v)]
    with pytest.raises(ValueError, match="state must have keys"):
        cosformer_attention(*half, windows=(4, None), state=state.to(torch.float32), **options)


@pytest.mark.parametrize("cuts", [(), (1,), (5, 6, 20), range(1, 30)], ids=["whole", "2", "4", "tokens"])
@pytest.mark.parametrize("in_place", [False, True])
def test_where_the_keys_of_a_state_lie(cuts, in_place):
    """That of position j in row j mod (W - 1) of its head, zeros where nothing was, however the text was cut
    and however long each row is."""
    windows, lengths = (4, None, 1, 9, 2, 40), torch.tensor([30, 17, 13])
    q, k, v = qkv(30, heads=6, batch=3)
    state = CosformerState.zeros(3, 6, 8, horizon=99, windows=windows, dtype=torch.float64)
    for a, b in itertools.pairwise((0, *cuts, 30)):
        part = [x[:, a:b] for x in (q, k, v)]
        if in_place and b - a == 1 and (lengths >= b).all():
            _, state = decode_step(*part, state.clone())
        else:
            _, state = cosformer_attention(
                *part, causal=True, windows=windows, horizon=99, state=state, return_state=True,
                lengths=(lengths - a).clamp(0, b - a),
            )  # fmt: skip
    assert torch.equal(state.positions, lengths)
    for x, carried in ((k, state.keys), (v, state.values)):
        row = 0
        for head, window in enumerate(windows):
            expected = torch.zeros(3, max(window or 1, 1) - 1, 8, dtype=torch.float64)
            for i, length in enumerate(lengths.tolist()):
                for j in range(max(0, length - (window or 1) + 1), length):
                    expected[i, j % (window - 1)] = x[i, j, head]
            assert torch.equal(carried[:, row : row + expected.shape[1]], expected)
            row += expected.shape[1]


def test_no_horizon_is_needed_where_every_head_has_a_window():
    q, k, v = qkv(50, heads=2)
    out, state = cosformer_attention(q, k, v, windows=(4, 9), causal=True, return_state=True)
    assert state.horizon is None
    assert state.numerator.shape[1] == 0
    assert state.keys.shape == (1, 11, 8)
    more, _ = cosformer_attention(q, k, v, windows=(4, 9), causal=True, state=state, return_state=True)
    assert out.shape == more.shape
    with pytest.raises(ValueError, match="horizon must be given"):
        cosformer_attention(q, k, v, windows=(4, None), causal=True, return_state=True)


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
        (320, 320, 0, (True, True)), (321, 321, 0, (False, False)), (20, 320, 300, (True, True)),
        (20, 321, 301, (False, False)), (20, 330, 0, (True, False)), (1, 321, 320, (False, False)),
        (5, 9, -316, (True, False)),
    ],
)  # fmt: skip
def test_a_wide_window_that_sees_all_is_a_horizon(rows, columns, offset, sees_all, causal, monkeypatch):
    """It is computed as a head without one, in its place among the others."""
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
    assert calls == [320.0, 320.0] * sees_all[0 if causal else 1]
    for ours, exact in zip(*found, strict=True):
        assert distance(ours, exact) < 1e-10


def test_of_many_queries_only_those_that_see_a_key_are_computed(monkeypatch):
    """And of many keys only those that are seen: both ways of a long text beside a short one."""
    real, numbers = window_sums.weights_of, []
    for module in (window_sums, windowed):
        monkeypatch.setattr(
            module, "weights_of", lambda *call: numbers.append(call[0] * call[1]) or real(*call)
        )
    for rows, columns in ((20_000, 300), (300, 20_000)):
        leaves = [torch.randn(1, n, 1, 8, requires_grad=True) for n in (rows, columns, columns)]
        out = cosformer_attention(*leaves, windows=(128,), query_offset=0, backend="chunked")
        grads = torch.autograd.grad(out.square().sum(), leaves)
        short = [x.detach()[:, :500].requires_grad_() for x in leaves]
        near = cosformer_attention(*short, windows=(128,), query_offset=0, backend="reference")
        torch.testing.assert_close(out[:, :500], near, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(grads, torch.autograd.grad(near.square().sum(), short), strict=True):
            torch.testing.assert_close(ours[:, :500], theirs, rtol=1e-3, atol=1e-4)
            assert not ours[:, 500:].any()
    assert 0 < max(numbers) <= 500 * 500


def test_large_weights_are_not_kept():
    """Of each new length a square: a few are kept, and many small ones."""
    kept = []
    for length in range(170, 200):
        x = torch.randn(1, length, 1, 8, requires_grad=True)
        cosformer_attention(x, x, x, windows=(256,), backend="chunked").sum().backward()
        kept.append((window_sums._many_weights.cache_info().currsize, window_sums._few_weights.cache_info()))
    assert kept[0][0] == kept[-1][0]
    assert kept[-1][1].currsize == kept[-1][1].maxsize < 30
