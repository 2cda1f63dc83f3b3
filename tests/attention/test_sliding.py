"""Softmax with a window for every head: linear in the length, with a state of constant size. What the laws of
the zoo do not ask."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from cosformer import attention
from cosformer.attention import sliding
from cosformer.attention.window_state import WindowState
from tests.attention.zoo import close, gradients

WINDOWS = (5, 70)  # blocks of 64 and of 128


def inputs(tq, tk=None, *, heads=4, kv_heads=2, batch=2, value_dim=5):
    tk = tq if tk is None else tk
    shapes = (batch, tq, heads, 8), (batch, tk, kv_heads, 8), (batch, tk, kv_heads, value_dim)
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def sliding_window(windows=WINDOWS, **sizes):
    return attention.build("softmax", windows=windows, **sizes)


def dense(q, k, v, windows, *, causal, offset=0, key_mask=None):
    """Equation 1 over the whole square, with plain operations."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    distance = torch.arange(q.shape[2])[:, None] + offset - torch.arange(k.shape[2])
    near = [(distance < w) & ((distance >= 0) if causal else (distance > -w)) for w in windows]
    seen = torch.stack(near).repeat_interleave(group, 0)[None]
    if key_mask is not None:
        seen = seen & key_mask[:, None, None]
    scores = (q @ k.mT / math.sqrt(q.shape[3])).masked_fill(~seen, -math.inf)
    weights = scores.softmax(-1).masked_fill(~seen.any(-1, keepdim=True), 0)
    return (weights @ v).transpose(1, 2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("tq", "tk", "causal", "offset"),
    [
        (400, 400, True, 0), (400, 400, False, 0), (128, 128, True, 0), (512, 512, True, 0),
        (300, 500, True, None), (300, 500, True, 100), (300, 500, False, 77), (500, 300, True, 0),
        (600, 200, False, -250), (200, 400, True, -90), (150, 20, False, 500),
    ],
)  # fmt: skip
def test_long_texts_equal_the_whole_square(tq, tk, causal, offset, masked):
    q, k, v = inputs(tq, tk)
    mask = None
    if masked:
        mask = torch.rand(2, tk) < 0.6
        mask[0, tk // 3 : tk // 3 + 150] = False  # a hole wider than both windows
    out = sliding_window()(q, k, v, causal=causal, query_offset=offset, key_mask=mask)
    at = tk - tq if offset is None else offset
    expected = dense(q, k, v, WINDOWS, causal=causal, offset=at, key_mask=mask)
    close(out, expected, 1e-10)
    if out.requires_grad:  # no key is within reach of any query otherwise
        for ours, theirs in zip(gradients(out, (q, k, v)), gradients(expected, (q, k, v)), strict=True):
            close(torch.zeros_like(theirs) if ours is None else ours, theirs, 1e-10)
    else:
        assert not expected.any()


@pytest.mark.parametrize("causal", [True, False])
def test_packed_documents_of_every_length(causal):
    q, k, v = inputs(500, batch=1)
    bounds = [0, 3, 3, 200, 201, 500]
    out = sliding_window()(q, k, v, causal=causal, cu_seqlens=torch.tensor(bounds))
    alone = [dense(q[:, a:b], k[:, a:b], v[:, a:b], WINDOWS, causal=causal) for a, b in pairwise(bounds)]
    close(out, torch.cat(alone, 1), 1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_windows_as_wide_as_the_text_are_no_windows(causal):
    q, k, v = (x.detach() for x in inputs(300, value_dim=8))
    whole = attention.build("softmax")(q, k, v, causal=causal)
    assert torch.equal(sliding_window((320, 384))(q, k, v, causal=causal), whole), "the same call"
    close(sliding_window((320, 256))(q, k, v, causal=causal)[:, :, :2], whole[:, :, :2], 1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_cut_anywhere_it_is_the_whole(seed):
    """Rows of other lengths in each call, hidden keys, and windows wider and narrower than the pieces."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v = inputs(420)
    mask = torch.rand(2, 420, generator=draw) < 0.8
    run, state, at = sliding_window(), None, torch.zeros(2, dtype=torch.int64)
    outs = [[], []]
    while (at < 420).any():
        width = int(torch.randint(1, 200, (), generator=draw))
        lengths = torch.stack([torch.randint(0, width + 1, (), generator=draw) for _ in "ab"])
        lengths = lengths.minimum(420 - at)
        width = max(1, int(lengths.max()))
        columns = (at[:, None] + torch.arange(width)).clamp_max(419)
        rows = torch.arange(2)[:, None]
        padding = (torch.arange(width) >= lengths[:, None])[..., None, None]
        piece = [x[rows, columns].masked_fill(padding, math.nan) for x in (k, v)]
        out, state = run(
            q[rows, columns].masked_fill(padding, 0), *piece, causal=True, key_mask=mask[rows, columns],
            lengths=lengths, state=state, return_state=True,
        )  # fmt: skip
        for row in (0, 1):
            outs[row].append(out[row, : lengths[row]])
        at = at + lengths
        assert torch.equal(state.positions, at)
    found = torch.stack([torch.cat(parts) for parts in outs])
    whole = dense(q, k, v, WINDOWS, causal=True, key_mask=mask)
    close(found, whole, 1e-10)
    for ours, theirs in zip(gradients(found, (q, k, v)), gradients(whole, (q, k, v)), strict=True):
        close(ours, theirs, 1e-10)


@pytest.mark.parametrize("first", [1, 3, 68, 90])
def test_a_long_piece_after_a_short_one(first):
    """Places of the state that were never filled have no weight, in any block."""
    run, (q, k, v) = sliding_window(), inputs(500)
    _, state = run(*(x[:, :first] for x in (q, k, v)), causal=True, return_state=True)
    rest = run(*(x[:, first:] for x in (q, k, v)), causal=True, state=state)
    close(rest, dense(q, k, v, WINDOWS, causal=True)[:, first:], 1e-10)


def test_the_state_has_one_size_at_every_length():
    run, (q, k, v) = sliding_window(), inputs(300)
    sizes, state = set(), None
    for piece in zip(*(x.split([1, 1, 3, 60, 100, 135], 1) for x in (q, k, v)), strict=True):
        _, state = run(*piece, causal=True, state=state, return_state=True)
        sizes.add((state.nbytes, tuple(state.keys.shape), tuple(state.values.shape)))
        assert isinstance(state, WindowState)
    assert len(sizes) == 1
    assert state.columns == 69
    assert run.state_size(10**9, num_kv_heads=2, head_dim=8, value_dim=5) == 69 * 2 * (8 + 5)
    assert not run.has_bound
    assert attention.build("softmax", windows=(5, None)).has_bound


def test_beams_go_their_own_ways():
    """Rows selected and repeated, each going on with tokens of its own."""
    run, (q, k, v) = sliding_window(), inputs(200)
    start, rest = ([x[:, part] for x in (q, k, v)] for part in (slice(None, 90), slice(90, None)))
    _, state = run(*start, causal=True, return_state=True)
    rows = torch.tensor([1, 0, 1])
    other = [torch.randn(3, *x.shape[1:], dtype=x.dtype) for x in rest]
    whole = [torch.cat([x[rows], y], 1) for x, y in zip(start, other, strict=True)]
    close(run(*other, causal=True, state=state.select(rows)), run(*whole, causal=True)[:, 90:], 1e-10)
    twice = [torch.randn(4, *x.shape[1:], dtype=x.dtype) for x in rest]
    whole = [torch.cat([x.repeat_interleave(2, 0), y], 1) for x, y in zip(start, twice, strict=True)]
    close(run(*twice, causal=True, state=state.repeat(2)), run(*whole, causal=True)[:, 90:], 1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_beyond_the_window_nothing_moves_a_bit(causal, dtype):
    """Numbers, NaN and infinity alike; within the window the same NaN is told."""
    q, k, v = (x.detach().to(dtype) for x in inputs(400))
    run = sliding_window()
    out = run(q, k, v, causal=causal)
    for what in (1e4, math.nan, math.inf, -math.inf):
        for which in (0, 1):
            changed = [k, v]
            changed[which] = changed[which].clone()
            changed[which][0, 200] = what
            found = run(q, *changed, causal=causal)
            assert torch.equal(found[1], out[1])
            at = torch.arange(400) - 200
            for head, window in enumerate((5, 5, 70, 70)):
                near = (at < window) & ((at >= 0) if causal else (at > -window))
                assert torch.equal(found[0, ~near, head], out[0, ~near, head])
                if not math.isfinite(what):
                    assert found[0, near, head].isnan().all()


def test_what_was_broken_leaves_the_state():
    run, (q, k, v) = sliding_window((9, 4)), inputs(60)
    with torch.no_grad():
        whole = run(q, k, v, causal=True)
        v[0, 3] = math.nan
        outs, state = [], None
        for piece in zip(*(x.split(4, 1) for x in (q, k, v)), strict=True):
            out, state = run(*piece, causal=True, state=state, return_state=True)
            outs.append(out)
    found = torch.cat(outs, 1)
    assert found[0, 3:12, :2].isnan().all()
    assert found[0, 3:7, 2:].isnan().all()
    close(found[0, 12:], whole[0, 12:], 1e-12)
    close(found[1], whole[1], 1e-12)
    assert state.values.isfinite().all()


def test_a_query_that_sees_nothing_gives_zeros_and_zero_gradients():
    q, k, v = inputs(400)
    mask = torch.ones(2, 400, dtype=torch.bool)
    mask[1, 100:300] = False
    out = sliding_window()(q, k, v, causal=True, key_mask=mask)
    assert (out[1, 104:300, :2] == 0).all()
    assert (out[1, 169:300] == 0).all()
    dq, dk, dv = gradients(out, (q, k, v))
    assert (dq[1, 169:300] == 0).all()
    assert (dk[1, 100:300] == 0).all()
    assert (dv[1, 100:300] == 0).all()


def test_the_work_is_linear_in_the_length(monkeypatch):
    """Counted in scores: queries times keys of every call of PyTorch's attention."""
    plain, scores = F.scaled_dot_product_attention, 0

    def counted(q, k, v, **how):
        nonlocal scores
        scores += q.shape[:-1].numel() * k.shape[2]
        return plain(q, k, v, **how)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    for causal, blocks in ((True, 2), (False, 3)):
        for window in (1, 64, 100, 320):
            run, size = sliding_window((window,)), max(64, -(-(window - 1) // 64) * 64)
            for length in (10 * size, 20 * size + 17):
                scores = 0
                run(*inputs(length, heads=1, kv_heads=1, batch=1), causal=causal)
                assert scores <= length * size * (blocks + 1)
    scores = 0
    run = sliding_window((128,))
    state = run(*inputs(500, heads=1, kv_heads=1, batch=1), causal=True, return_state=True)[1]
    scores = 0
    run(*inputs(5000, heads=1, kv_heads=1, batch=1), causal=True, state=state)
    assert scores <= 5000 * 128 * 3


def test_short_calls_are_the_ones_of_plain_softmax(monkeypatch):
    """Where no window hides anything there is one call, without a mask."""
    calls = []
    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *x, **how: (calls.append(how), plain(*x, **how))[1]
    )
    sliding_window((128, 256))(*inputs(128), causal=True)
    assert len(calls) == 1
    assert calls[0]["is_causal"]
    assert calls[0]["attn_mask"] is None


@pytest.mark.parametrize(
    ("backend", "lengths"),
    [
        ("aot_eager", (333,)),
        pytest.param("aot_eager", (400, 333), marks=pytest.mark.thorough),
        pytest.param("inductor", (400, 333), marks=pytest.mark.thorough),
    ],
)
def test_compiles_in_one_piece(backend, lengths):
    """Without a break, for every length, with a state in and out, forward and backward."""
    run = sliding_window()
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend=backend)
    for length in lengths:
        q, k, v = inputs(length)
        ours, state = compiled(q, k, v, causal=True, return_state=True)
        theirs, expected = run(q, k, v, causal=True, return_state=True)
        close(ours, theirs)
        for a, b in zip(gradients(ours, (q, k, v)), gradients(theirs, (q, k, v)), strict=True):
            close(a, b)
        close(state.keys, expected.keys)
        close(
            compiled(q, k, v, causal=True, state=state.detach()),
            run(q, k, v, causal=True, state=expected.detach()),
        )
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("tq", "tk", "causal", "offset", "masked"),
    [
        (400, 400, True, 0, 0), (400, 400, False, 0, 0), (331, 400, True, 69, 69), (300, 500, True, 100, 0),
        (300, 500, True, 200, 450), (300, 500, False, 200, 0), (300, 500, False, 200, 69),
        (300, 500, True, -40, 0), (400, 300, True, 0, 0), (20, 89, True, 69, 69), (400, 400, True, 0, 400),
    ],
)  # fmt: skip
def test_what_the_kernel_is_given(monkeypatch, tq, tk, causal, offset, masked):
    """The kernel for GPUs knows neither masks nor offsets: its queries and keys end together, and each query
    sees what its window reaches. Here the whole square stands in for it."""
    calls = []

    def kernel(q, k, v, window, causal):
        calls.append(q.shape[1])
        return dense(q, k, v, (window,) * k.shape[2], causal=causal, offset=k.shape[1] - q.shape[1])

    monkeypatch.setattr(sliding, "can_flash", lambda q, k, v: True)
    monkeypatch.setattr(sliding, "flash", kernel)
    q, k, v = (x.detach() for x in inputs(tq, tk))
    mask = torch.rand(2, masked) < 0.5 if masked else None
    whole = None
    if mask is not None:
        whole = F.pad(mask, (0, tk - masked), value=True)
        k, v = (x.masked_fill(~whole[..., None, None], 0) for x in (k, v))
    out = sliding.sliding_softmax(q, k, v, WINDOWS, causal=causal, offset=offset, key_mask=mask)
    close(out, dense(q, k, v, WINDOWS, causal=causal, offset=offset, key_mask=whole), 1e-10)
    if masked == 0 and offset + tq == tk:
        assert calls == [tq, tq], "all queries at once"


def test_a_state_of_other_windows_is_refused():
    q, k, v = inputs(20)
    _, state = sliding_window((3, 8))(q, k, v, causal=True, return_state=True)
    with pytest.raises(ValueError, match=r"state must be of windows up to 70, .* of windows up to 8"):
        sliding_window()(q, k, v, causal=True, state=state)
    _, growing = attention.build("softmax")(q, k, v, causal=True, return_state=True)
    with pytest.raises(TypeError, match=r"state must be a WindowState .* but got KeyValueState"):
        sliding_window()(q, k, v, causal=True, state=growing)


def test_neighbours_with_one_window_go_together():
    assert list(sliding.runs((4, 4, 2, 4))) == [(0, 2, 4), (2, 3, 2), (3, 4, 4)]
    assert list(sliding.runs((7,))) == [(0, 1, 7)]
