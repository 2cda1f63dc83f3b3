"""The Triton kernels against the paper's equation, in every kind of call: on a GPU where there is one,
else in Triton's interpreter. Small shapes: what needs long sequences is in test_on_gpu.py."""

from itertools import product

import pytest
import torch

from cosformer import cosformer_attention
from tests.ops.cases import KINDS, distance, is_as_good_as, make, uncorrected

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

import triton
import triton.language as tl

from cosformer.ops.gpu import launch_cache, partition
from cosformer.ops.gpu.rows import phases
from cosformer.ops.triton import kernels

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
FLOOR = {torch.float32: 2**-22, torch.bfloat16: 2**-9, torch.float16: 2**-12}

SHAPES = {"64": (64, 64, 1, 1), "17x40,grouped": (17, 40, 2, 1)}  # head size, value size, heads, key heads


# The interpreter takes seconds where a GPU takes none: there, each kind of call runs at one shape and
# in float32, and half precision in two kinds.
CALLS = [
    (dtype, shape, kind)
    for dtype, shape, kind in product(DTYPES, SHAPES, KINDS)
    if GPU or (shape != "64" and (dtype == torch.float32 or kind in ("plain", "mask+state")))
]


def assert_right(case, dtype, floor=None):
    """At most twice the error of the reference in the same type, which is taken to be `floor` at least."""
    floor = FLOOR[dtype] if floor is None else floor
    case = case.to(dtype)
    exact = case.to(torch.float64).results("reference")
    there = case.on(DEVICE)
    plain, ours = [there.results("reference")], there.results("triton")
    if dtype == torch.float32:  # in float32 the linear form in PyTorch errs more than the square, as it must
        with uncorrected():
            plain.append(there.results("chunked"))
    for name, truth in exact.items():
        assert ours[name].isfinite().all(), name
        able = [p[name] for p in plain if p[name].isfinite().all()]
        assert not able or any(is_as_good_as(ours[name], p, truth, floor) for p in able), name


@triton.jit
def write_phases(C, S, first, horizon, N: tl.constexpr):
    n = tl.arange(0, N)
    c, s = phases(first + n, horizon, tl.float32)
    tl.store(C + n, c)
    tl.store(S + n, s)


@pytest.mark.parametrize(
    ("first", "horizon"), [(0, 1023.0), (-1023, 1023.0), (0, 1500.5), (10**6, 1001023.0)]
)
def test_phases(first, horizon):
    c, s = (torch.empty(1024, device=DEVICE) for _ in range(2))
    write_phases[(1,)](c, s, first, horizon, N=1024)
    angle = torch.arange(first, first + 1024, dtype=torch.float64) * (torch.pi / 2 / horizon)
    assert (c.cpu() - angle.cos()).abs().max() <= 2e-7
    assert (s.cpu() - angle.sin()).abs().max() <= 2e-7


@pytest.fixture(params=["whole", "split"])
def cut(request, monkeypatch):
    """Sequences in one split, and in several that run in parallel."""
    monkeypatch.setattr(partition, "MIN_SPLIT_TOKENS", 10**9 if request.param == "whole" else 64)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize(("dtype", "shape", "kind"), CALLS, ids=str)
def test_every_kind_of_call(dtype, shape, kind, causal, cut):
    dim, value_dim, heads, kv_heads = SHAPES[shape]
    assert_right(
        make(
            batch=2, tq=150, dim=dim, value_dim=value_dim, heads=heads, kv_heads=kv_heads, causal=causal,
            **KINDS[kind],
        ),
        dtype,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "mask+state"])
@pytest.mark.parametrize("kv_heads", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_states_of_splits_that_are_subdivided(kind, kv_heads, monkeypatch):
    monkeypatch.setattr(partition, "MIN_SPLIT_TOKENS", 64)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    factors = []
    real = kernels.state_subdivision
    monkeypatch.setattr(kernels, "state_subdivision", lambda *a: factors.append(real(*a)) or factors[-1])
    case = make(batch=2, tq=400, heads=2, kv_heads=kv_heads, causal=True, **KINDS[kind])
    assert_right(case, torch.float32)
    assert factors
    assert set(factors) == {2}


@pytest.mark.parametrize("kind", ["plain", "mask+state"])
@pytest.mark.parametrize(
    ("causal", "tq", "tk", "offset"),
    [(True, 5, 90, None), (True, 90, 60, 0), (True, 60, 90, 0), (True, 70, 70, 20), (False, 40, 100, None),
     (False, 100, 40, 30)],
)  # fmt: skip
def test_queries_and_keys_that_do_not_begin_or_end_together(causal, tq, tk, offset, kind):
    case = make(heads=1, tq=tq, tk=tk, causal=causal, query_offset=offset, **KINDS[kind])
    assert_right(case, torch.float32)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65])
def test_odd_lengths(length, causal):
    # With a key or two, dq is the difference of nearly equal numbers.
    floor = 1e-5 if length < 3 else None
    assert_right(make(tq=length, heads=1, dim=8, value_dim=24, causal=causal), torch.float32, floor)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("kind", ["plain", "mask", "packed"])
def test_an_endless_horizon(kind, causal):
    """Cosines of 1, sines of nearly 0: what `relu` and `linear` ask for."""
    for dtype in DTYPES:
        assert_right(make(batch=1, tq=70, heads=1, causal=causal, horizon=1e30, **KINDS[kind]), dtype)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_a_state_and_no_keys(causal):
    assert_right(make(tq=5, tk=0, causal=causal, state=True, query_offset=0), torch.float32)


@pytest.mark.parametrize(
    "dims", [(16, 16), (48, 80), (80, 48), (96, 96), (128, 128), (256, 256), (8, 256)], ids=str
)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_head_sizes(dims, causal):
    dim, value_dim = dims
    assert_right(make(batch=1, tq=70, heads=1, dim=dim, value_dim=value_dim, causal=causal), torch.float32)


@pytest.mark.parametrize(("dims", "name"), [((257, 64), "D"), ((64, 264), "Dv")], ids=str)
def test_wider_heads_are_refused_and_left_to_others(dims, name):
    case = make(batch=1, tq=5, dim=dims[0], value_dim=dims[1], causal=True).to(torch.float32).on(DEVICE)
    with pytest.raises(ValueError, match=f"triton: {name} must be at most 256, and is {max(dims)}"):
        case.results("triton")
    assert distance(case.results("auto")["out"], case.results("reference")["out"]) <= 1e-5


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_compiles_whole_with_lengths_that_change(causal):
    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=causal, backend="triton").sin()

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (20, 33):
        x = [torch.randn(1, length, 1, 16, device=DEVICE, requires_grad=True) for _ in range(3)]
        grad = torch.randn_like(x[2])
        plain, traced = (torch.autograd.grad(g(*x), x, grad) for g in (f, compiled))
        assert all(torch.equal(a, b) for a, b in zip(plain, traced, strict=True))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_gradients_where_nothing_was_kept(causal):
    """A forward that was not asked to keep anything may be differentiated all the same."""
    from cosformer.ops.triton.op import triton_backward, triton_forward

    q, k, v, grad = (torch.randn(1, 20, 1, 16, device=DEVICE) for _ in range(4))
    found = []
    for keep in (True, False):
        settings = (causal, 0, 40.0, 1e-6)
        given = (q, k, v, *[None] * 5, *settings, False, keep)
        out, d, kept, _, _ = triton_forward(*given)
        found.append(triton_backward(grad, None, None, out, d, kept, *given))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert found[0][0].abs().max() > 0


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_opcheck(causal):
    from cosformer.ops.triton.op import triton_forward

    q, k, v = (torch.randn(1, 20, 1, 16, device=DEVICE, requires_grad=True) for _ in range(3))
    args = (q, k, v, None, None, None, None, None, causal, 0, 40.0, 1e-6, False, True)
    torch.library.opcheck(triton_forward, args)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_strided_inputs(causal):
    case = make(tq=70, heads=2, dim=16, causal=causal)
    whole = torch.randn(2, 70, 2, 48, dtype=torch.float64)
    case.tensors = dict(zip("qkv", whole.chunk(3, -1), strict=True))
    assert_right(case, torch.float32)
    case.tensors["q"] = case.tensors["q"].transpose(1, 2).contiguous().transpose(1, 2)
    case.tensors["v"] = case.tensors["v"].transpose(1, 3).contiguous().transpose(1, 3)
    assert_right(case, torch.float32)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_padding_of_nan_changes_nothing_and_gets_no_gradient(causal, cut):
    case = make(batch=2, tq=150, causal=causal, dtype=torch.float32)
    real = torch.ones(2, 150, dtype=torch.bool)
    real[0, :40] = real[1, 70:] = False
    case.options["key_mask"] = real
    leaves = {n: x.masked_fill(~real[..., None, None], torch.nan) for n, x in case.tensors.items()}
    grad = torch.randn(2, 150, 2, 16).masked_fill(~real[..., None, None], 0).to(DEVICE)
    found = []
    for tensors in (case.tensors, leaves):
        case.tensors = {n: x.to(DEVICE).requires_grad_() for n, x in tensors.items()}
        made = case.on(DEVICE).call("triton")
        assert made[real.to(DEVICE)].isfinite().all()
        found.append((made, *torch.autograd.grad(made, list(case.tensors.values()), grad)))
    for clean, padded in zip(*found, strict=True):
        assert torch.equal(clean[real.to(DEVICE)], padded[real.to(DEVICE)])
    for padded in found[1][1:]:
        assert (padded[~real.to(DEVICE)] == 0).all()


def test_nan_in_a_real_token_is_not_hidden():
    case = make(tq=20, causal=True, dtype=torch.float32).on(DEVICE)
    for name in "qkv":
        tensors = {n: x.clone() for n, x in case.tensors.items()}
        tensors[name][0, 7] = torch.nan
        out = type(case)(tensors, case.options).call("triton")
        assert out[0, 7].isnan().all()
        assert out[0, :7].isfinite().all() if name == "q" else True


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_large_numbers_in_half_precision(causal):
    case = make(tq=70, causal=causal, dtype=torch.float16).on(DEVICE)
    case.tensors = {n: x.sign() * 60000 for n, x in case.tensors.items()}
    for name, x in case.results("triton").items():
        assert x.isfinite().all() or name != "out", name
