"""Windows of heads: what a window means, the laws under it, and mistakes."""

import itertools

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import decode_step

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
