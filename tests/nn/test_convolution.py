"""The short convolution: its equation, and no look across a document, into padding, or past a cut."""

import re
from itertools import pairwise

import pytest
import torch

from cosformer.nn import ShortConvolution

SIZES = pytest.mark.parametrize("size", [1, 2, 4, 5, 19])
WAYS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
CHANNELS = 3


def convolution(size, causal=True):
    made = ShortConvolution(CHANNELS, size, causal=causal).double()
    torch.nn.init.normal_(made.weight)
    return made


def inputs(*shape):
    return torch.randn(*shape, CHANNELS, dtype=torch.float64, requires_grad=True)


def slow(made, x, size, causal):
    """The equation, token by token, of one document x [T, C]."""
    rows = []
    reach = size // 2
    for t in range(len(x)):
        y = x[t]
        for j in range(size) if causal else range(-reach, reach + 1):
            if 0 <= t - j < len(x):
                y = y + made.weight[:, j if causal else j + reach] * x[t - j]
        rows.append(y)
    return torch.stack(rows) if rows else x


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def with_gradients(out, *wanted):
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return [out, *torch.autograd.grad(out, wanted, weight)]


@SIZES
@WAYS
@pytest.mark.parametrize("length", [1, 3, 20, 150])
def test_equals_its_equation(size, causal, length):
    made, x = convolution(size, causal), inputs(2, length)
    ours = with_gradients(made(x)[0], x, made.weight)
    theirs = with_gradients(torch.stack([slow(made, row, size, causal) for row in x]), x, made.weight)
    close(ours, theirs)


@WAYS
def test_gradcheck(causal):
    made, x, state = convolution(3, causal), inputs(2, 5), inputs(2, 2)
    lengths, bounds = torch.tensor([5, 1]), torch.tensor([0, 1, 1, 5])

    def run(x, weight, state):
        call = torch.func.functional_call
        carried = {"state": state, "return_state": True} if causal else {}
        more = {"state": state.repeat(2, 1, 1)[:3], "return_state": True} if causal else {}
        padded = call(made, {"weight": weight}, (x,), {"lengths": lengths, **carried})
        packed = call(made, {"weight": weight}, (x[:1],), {"cu_seqlens": bounds, **more})
        return tuple(y for y in (*padded, *packed) if y is not None)

    torch.autograd.gradcheck(run, (x, made.weight, state))


@SIZES
@WAYS
def test_packed_documents_are_as_each_alone(size, causal):
    made, x = convolution(size, causal), inputs(1, 30)
    bounds = [0, 0, 1, 3, 3, 20, 30, 30]
    packed, _ = made(x, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    alone = torch.cat([made(x[:, a:b])[0] for a, b in pairwise(bounds)], 1)
    close(with_gradients(packed, x, made.weight), with_gradients(alone, x, made.weight))


@SIZES
@WAYS
def test_padding_is_not_there(size, causal):
    """NaN behind the real tokens: neither values nor gradients notice."""
    made, x = convolution(size, causal), inputs(3, 9)
    lengths = torch.tensor([9, 2, 5])
    real = torch.arange(9) < lengths[:, None]
    dirty = x.detach().masked_fill(~real[..., None], torch.nan).requires_grad_()
    for how in ({"lengths": lengths}, {"key_mask": real}):
        out, _ = made(dirty, **how)
        for row, n in enumerate(lengths):
            close(out[row, :n], made(x[row : row + 1, :n])[0][0])
        out[real].square().sum().backward()
        assert dirty.grad.isfinite().all()
        assert made.weight.grad.isfinite().all()


@SIZES
@pytest.mark.parametrize("pieces", [[1] * 10, [2, 8], [9, 1], [0, 3, 7]], ids=str)
def test_pieces_are_the_whole(size, pieces):
    """Pieces shorter than the convolution's memory too."""
    made, x = convolution(size), inputs(2, 10)
    outs, state = [], None
    for piece in x.split(pieces, 1):
        out, state = made(piece, state=state, return_state=True)
        outs.append(out)
        assert state.shape == (2, size - 1, CHANNELS)
    close(with_gradients(torch.cat(outs, 1), x, made.weight), with_gradients(made(x)[0], x, made.weight))


@SIZES
def test_the_state_ends_with_the_last_real_token(size):
    made, x, more = convolution(size), inputs(3, 6), inputs(3, 4)
    lengths = torch.tensor([6, 1, 0])
    _, state = made(x, lengths=lengths, return_state=True)
    _, state = made(more[:, :2], lengths=torch.tensor([2, 0, 2]), state=state, return_state=True)
    out, _ = made(more[:, 2:], state=state)
    for row, (n, m) in enumerate(zip([6, 1, 0], [2, 0, 2], strict=True)):
        text = torch.cat([x[row, :n], more[row, :m], more[row, 2:]])[None]
        close(out[row], made(text)[0][0, -2:])


@SIZES
def test_states_of_packed_documents(size):
    made, x = convolution(size), inputs(1, 20)
    first, second = [0, 0, 1, 8], [8, 11, 11, 20]  # three documents, in two pieces each
    out, state = made(x[:, :8], cu_seqlens=torch.tensor(first), return_state=True)
    rest, state = made(x[:, 8:], cu_seqlens=torch.tensor(second) - 8, state=state, return_state=True)
    last, _ = made(torch.zeros(3, 2, CHANNELS).double(), state=state)
    ours, theirs = [], []
    for n, ((a, b), (c, d)) in enumerate(zip(pairwise(first), pairwise(second), strict=True)):
        text = torch.cat([x[:, a:b], x[:, c:d], torch.zeros(1, 2, CHANNELS)], 1)
        theirs.append(made(text)[0])
        ours.append(torch.cat([out[:, a:b], rest[:, c - 8 : d - 8], last[n : n + 1]], 1))
    results = [with_gradients(torch.cat(all_of, 1), x, made.weight) for all_of in (ours, theirs)]
    close(*results)


def test_a_state_keeps_nothing_else_alive():
    made, x = convolution(4), inputs(1, 5000).detach()
    for how in ({}, {"lengths": torch.tensor([5000])}):
        _, state = made(x, return_state=True, **how)
        assert state.untyped_storage().nbytes() == 3 * CHANNELS * 8


def test_it_begins_near_the_identity():
    made, x = ShortConvolution(64, 4), torch.randn(2, 50, 64)
    out, _ = made(x)
    assert 0.02 < (out - x).std() < 0.5
    assert out.dtype == torch.float32
    assert made(x.bfloat16())[0].dtype == torch.bfloat16


@pytest.fixture
def compiler():
    """What is compiled for a test counts towards the limit of recompilations of no other."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("how", ["plain", "lengths", "cu_seqlens", "state"])
def test_compiles_without_a_break(how):
    made, x = convolution(4), inputs(1, 9).detach()
    more = {
        "plain": {},
        "lengths": {"lengths": torch.tensor([4]), "return_state": True},
        "cu_seqlens": {"cu_seqlens": torch.tensor([0, 2, 9]), "return_state": True},
        "state": {"state": inputs(1, 3).detach(), "return_state": True},
    }[how]
    compiled = torch.compile(made, fullgraph=True, dynamic=True, backend="aot_eager")
    for ours, theirs in zip(compiled(x, **more), made(x, **more), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_many_weights_in_lower_precision(dtype):
    """Summed in float32: what comes out is the exact sum of these inputs, rounded once for the sum and once
    with the input added."""
    made, x = ShortConvolution(CHANNELS, 67, causal=False), torch.randn(2, 200, CHANNELS).to(dtype)
    out, _ = made(x)
    exact = torch.stack([slow(made.double(), row.double(), 67, False) for row in x])
    assert out.dtype == dtype
    assert ((out.double() - exact).abs() <= 2 * torch.finfo(dtype).eps * (exact.abs() + x.abs())).all()


def test_a_later_token_changes_nothing_before_it():
    """Not a bit of it: a causal convolution takes no Fourier transform, whose rounding would carry large
    values back to earlier tokens."""
    made = ShortConvolution(CHANNELS, 40)
    x = torch.randn(1, 60, CHANNELS)
    later = x.clone()
    later[:, 30:] *= 1e6
    assert torch.equal(made(x)[0][:, :30], made(later)[0][:, :30])


@pytest.mark.usefixtures("compiler")
def test_many_weights_compile_for_any_length():
    made = convolution(67, causal=False)
    compiled = torch.compile(made, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (30, 128, 300):
        x = inputs(2, length)
        close(with_gradients(compiled(x)[0], x, made.weight), with_gradients(made(x)[0], x, made.weight))


def test_what_cannot_be():
    with pytest.raises(ValueError, match="size must be a positive int, but got 0"):
        ShortConvolution(3, 0)
    with pytest.raises(ValueError, match="over both sides has no state"):
        convolution(3, causal=False)(inputs(1, 4), return_state=True)
    with pytest.raises(ValueError, match="key_mask and cu_seqlens do not go together"):
        convolution(3)(inputs(1, 4), cu_seqlens=torch.tensor([0, 4]), key_mask=torch.ones(1, 4).bool())


@pytest.mark.parametrize("size", [3, 35])
def test_nothing_is_nothing(size):
    """A batch without rows, and rows without tokens."""
    layer = ShortConvolution(4, size, causal=False)
    for shape in ((0, 5, 4), (2, 0, 4)):
        x = torch.zeros(shape, requires_grad=True)
        y, _ = layer(x)
        assert y.shape == shape
        y.sum().backward()


def test_what_does_not_fit_is_refused():
    """Rows behind the first, and tokens behind the last bound, were dropped or mixed."""
    made, x = ShortConvolution(4, 3), torch.randn(2, 6, 4)
    bounds, state = torch.tensor([0, 2, 6]), torch.zeros(2, 2, 4)
    for inputs, options, message in (
        (x[0], {}, "x must have shape [B, T, 4], but got [6, 4]"),
        (x[..., :3], {}, "x must have shape [B, T, 4], but got [2, 6, 3]"),
        (x, {"cu_seqlens": bounds}, "cu_seqlens needs a batch of 1"),
        (x[:1], {"cu_seqlens": torch.tensor([0, 2, 5])}, "must end at the length of the row, 6"),
        (x[:1], {"cu_seqlens": bounds, "state": state[:1]}, "for each of the 2 documents"),
        (x, {"state": state[:1]}, "for each of the 2 rows"),
        (x, {"state": state[:, :1]}, "state must have shape [2, 2, 4]"),
        (x, {"lengths": torch.tensor([6, 9])}, "lengths must be from 0 to Tk = 6"),
        (x[:1], {"lengths": torch.tensor([6]), "cu_seqlens": bounds}, "do not go together"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            made(inputs, **options)
