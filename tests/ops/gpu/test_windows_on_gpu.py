"""Heads with windows through the public function, on a GPU: both backends, against the equation."""

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import backends, decode_step
from tests.ops.cases import KINDS, distance, errors, is_as_good_as, is_close, make, uncorrected

ABLE = [b.name for b in backends() if b.available and b.name in ("triton", "hopper")]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
FLOOR = {torch.bfloat16: 2**-9, torch.float16: 2**-12, torch.float32: 2**-22}
both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
every_backend = pytest.mark.parametrize("backend", ABLE or ["triton"])
WINDOWS = {
    "narrow": (1, 2, 8, None),
    "around a tile": (63, 64, 65, 256),
    "wide": (320, None, 1024, 3),
}


def able(backend, dtype):
    if backend == "hopper" and dtype != torch.bfloat16:
        pytest.skip("hopper computes in bfloat16")


@both_ways
@every_backend
@pytest.mark.parametrize("dtype", FLOOR, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(("length", "dim", "heads"), [(150, 32, 4), (500, 64, 8), (333, 128, 4)])
def test_every_kind_of_call(length, dim, heads, windows, kind, dtype, backend, causal):
    able(backend, dtype)
    # Hopper wants every position within the horizon.
    case = make(
        tq=length, dim=dim, heads=heads, kv_heads=4, windows=WINDOWS[windows], causal=causal, horizon=4000,
        **KINDS[kind],
    ).to(dtype)  # fmt: skip
    exact = case.to(torch.float64).results("reference")
    there = case.on("cuda")
    # In float32 the linear form in PyTorch errs more than the square, as it must.
    names = ("reference", "chunked") if dtype == torch.float32 else ("reference",)
    with uncorrected():
        plain = [there.results(name) for name in names]
    ours = there.results(backend)
    # Plain float16 overflows where a row sees few keys: there an eighth of the error in bfloat16 counts,
    # whose roundings are 8 times as large.
    wider = case.to(torch.bfloat16)
    truths = wider.to(torch.float64).results("reference") if dtype == torch.float16 else {}
    wide = wider.on("cuda").results("reference") if dtype == torch.float16 else {}
    for name, truth in exact.items():
        instead = tuple(x / 8 for x in errors(wide[name], truths[name])) if truths else (0.0, 0.0)
        found = errors(ours[name], truth), *(errors(p[name], truth) for p in plain)
        assert any(is_as_good_as(ours[name], p[name], truth, FLOOR[dtype], instead) for p in plain), (
            name,
            found,
        )


@both_ways
@every_backend
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_long_rows(dim, backend, causal):
    """T = 65,536, beside the chunked backend in float64, row by row; and ten rows that are wrong are seen."""
    x = [torch.randn(1, 65536, 5, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    windows = (2, 64, 256, 1024, 4096)

    def results(tensors, name):
        leaves = [y.detach().requires_grad_() for y in tensors[:3]]
        out = cosformer_attention(*leaves, windows=windows, causal=causal, backend=name)
        return [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]

    ours, exact = results(x, backend), results([y.double() for y in x], "chunked")
    for mine, truth in zip(ours, exact, strict=True):
        assert is_close(mine, truth, 5e-3)
    spoilt = ours[0].clone()
    spoilt[:, -10:] = 0
    assert not is_close(spoilt, exact[0], 5e-3)


@every_backend
@pytest.mark.parametrize("garbage", [float("nan"), 1e30])
@pytest.mark.parametrize("window", [3, 64, 200, 320])
def test_what_lies_beyond_a_window_cannot_move_a_bit(window, garbage, backend):
    """From W tokens on for narrow windows, from 2 W on for wide ones."""
    q, k, v = (torch.randn(1, 2000, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    options = {"windows": (window, window), "causal": True, "backend": backend}
    clean = cosformer_attention(q, k, v, **options)
    k[:, 600], v[:, 600] = garbage, garbage
    spoilt = cosformer_attention(q, k, v, **options)
    reach = window if window <= 256 else 2 * window
    assert torch.equal(spoilt[:, 600 + reach :], clean[:, 600 + reach :])
    before = 600 if window <= 256 else 600 - 64
    assert torch.equal(spoilt[:, :before], clean[:, :before])


@pytest.mark.parametrize("windows", [(4, 64), (2, None), (320, 17)], ids=str)
def test_tokens_of_a_cuda_graph(windows):
    """decode_step in place, captured once and replayed for each token, equals the whole text at once."""
    q, k, v = (torch.randn(3, 60, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    horizon = 100.0 if None in windows else None
    whole = cosformer_attention(q, k, v, windows=windows, causal=True, horizon=horizon)
    options = {"horizon": horizon, "windows": windows, "device": "cuda", "input_dtype": torch.bfloat16}
    state = CosformerState.zeros(3, 2, 64, **options)
    now = [torch.zeros_like(x[:, :1]) for x in (q, k, v)]
    decode_step(*now, state.clone())  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = decode_step(*now, state)
    for x in (state.numerator, state.denominator, state.positions, state.keys, state.values):
        x.zero_()
    for t in range(60):
        for into, x in zip(now, (q, k, v), strict=True):
            into.copy_(x[:, t : t + 1])
        graph.replay()
        assert distance(out, whole[:, t : t + 1]) <= 5e-2


@every_backend
@both_ways
def test_repeated_calls_are_equal_to_the_bit(backend, causal):
    x = [
        torch.randn(2, 700, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    ]

    def results():
        out = cosformer_attention(*x, windows=(2, 64, 320, None), causal=causal, backend=backend)
        return [out, *torch.autograd.grad(out.float().square().sum(), x)]

    first = results()
    for _ in range(100):
        assert all(torch.equal(a, b) for a, b in zip(first, results(), strict=True))
