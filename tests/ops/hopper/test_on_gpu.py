"""The Hopper kernels against the paper's equation, in every kind of call; only a GPU can run them."""

import threading
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from tests.ops.cases import KINDS, is_close, make
from tests.ops.hopper.on_gpu import (
    SHAPES,
    assert_one_token_is_right,
    assert_right,
    both_ways,
    in_double,
    inputs,
    on_a_gpu,
    random_bounds,
    results,
)

pytestmark = on_a_gpu


@both_ways
@pytest.mark.parametrize(("shape", "kind"), list(product(SHAPES, KINDS)), ids=str)
def test_every_kind_of_call(shape, kind, causal, cut):
    dim, value_dim, heads, kv_heads = SHAPES[shape]
    assert_right(
        make(
            batch=2, tq=300, dim=dim, value_dim=value_dim, heads=heads, kv_heads=kv_heads, causal=causal,
            **KINDS[kind],
        )
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "mask", "mask+state"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_states_of_splits_that_are_subdivided(kind, kv_heads, monkeypatch):
    from cosformer.ops.gpu import launch_cache, partition
    from cosformer.ops.hopper import kernels

    monkeypatch.setattr(partition, "MIN_SPLIT_TOKENS", 64)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    factors = []
    real = kernels.state_subdivision
    monkeypatch.setattr(kernels, "state_subdivision", lambda *a: factors.append(real(*a)) or factors[-1])
    case = make(batch=16, tq=512, heads=4, kv_heads=kv_heads, dim=64, causal=True, **KINDS[kind])
    assert_right(case)
    assert max(factors) > 1
    x = [y.to("cuda", torch.bfloat16) for y in case.tensors.values()]
    if kind == "plain":
        inferred = cosformer_attention(*x, causal=True, backend="hopper")
        trained = cosformer_attention(*(y.requires_grad_() for y in x), causal=True, backend="hopper")
        assert torch.equal(inferred, trained.detach())


@both_ways
@pytest.mark.parametrize("length", [2, 63, 64, 65, 129, 1000])
def test_odd_lengths(length, causal):
    assert_right(make(tq=length, dim=64, causal=causal))


@both_ways
@pytest.mark.parametrize("kind", ["plain", "mask", "packed"])
def test_an_endless_horizon(kind, causal, cut):
    """Cosines of 1, sines of nearly 0: what `relu` and `linear` ask for."""
    assert_right(make(tq=300, dim=64, causal=causal, horizon=1e30, **KINDS[kind]))


@both_ways
def test_one_token(causal):
    assert_one_token_is_right(causal=causal)


@pytest.mark.parametrize("kind", ["plain", "mask", "mask+state"])
@pytest.mark.parametrize(("tq", "tk", "offset"), [(40, 100, None), (200, 70, 30), (70, 200, -20)])
def test_cross_attention(tq, tk, offset, kind):
    if "state" in kind and offset == -20:
        pytest.skip("queries before a state's first key are the portable kernels'")
    assert_right(make(tq=tq, tk=tk, dim=64, causal=False, query_offset=offset, **KINDS[kind]))


@both_ways
@pytest.mark.parametrize("horizon", [1000, 1500.5, 10**6])
def test_horizons(horizon, causal):
    assert_right(make(tq=1000, dim=64, causal=causal, horizon=horizon))


@both_ways
def test_strided_inputs(causal):
    case = make(tq=70, heads=2, dim=64, causal=causal)
    whole = torch.randn(2, 70, 2, 192, dtype=torch.float64)
    case.tensors = dict(zip("qkv", whole.chunk(3, -1), strict=True))
    assert_right(case)
    case.tensors["q"] = case.tensors["q"].transpose(1, 2).contiguous().transpose(1, 2)
    case.tensors["v"] = case.tensors["v"].transpose(1, 3).contiguous().transpose(1, 3)
    assert_right(case)


@both_ways
@pytest.mark.parametrize("dim", [64, 128])
def test_padding_of_nan_changes_nothing_and_gets_no_gradient(dim, causal, cut):
    case = make(batch=2, tq=300, dim=dim, causal=causal, dtype=torch.bfloat16)
    real = torch.ones(2, 300, dtype=torch.bool)
    real[0, :90] = real[1, 170:] = False
    case.options["key_mask"] = real
    leaves = {n: x.masked_fill(~real[..., None, None], torch.nan) for n, x in case.tensors.items()}
    grad = torch.randn(2, 300, 2, dim).masked_fill(~real[..., None, None], 0).to("cuda", torch.bfloat16)
    found = []
    for tensors in (case.tensors, leaves):
        case.tensors = {n: x.cuda().requires_grad_() for n, x in tensors.items()}
        made = case.on("cuda").call("hopper")
        assert made[real.cuda()].isfinite().all()
        found.append((made, *torch.autograd.grad(made, list(case.tensors.values()), grad)))
    for clean, padded in zip(*found, strict=True):
        assert torch.equal(clean[real.cuda()], padded[real.cuda()])
    for padded in found[1][1:]:
        assert (padded[~real.cuda()] == 0).all()


def test_nan_in_a_real_token_is_not_hidden():
    case = make(tq=200, dim=64, causal=True, dtype=torch.bfloat16).on("cuda")
    for name in "qkv":
        tensors = {n: x.clone() for n, x in case.tensors.items()}
        tensors[name][0, 7] = torch.nan
        out = type(case)(tensors, case.options).call("hopper")
        assert out[0, 7].isnan().all()
        assert out[0, 64:].isnan().all() == (name != "q")


@both_ways
@pytest.mark.parametrize("bounds", [None, [0, 2000], [0, 3, 1400, 1950, 2000]], ids=str)
def test_gradients_where_nothing_was_kept(bounds, causal):
    """A forward that was not asked to keep anything may be differentiated all the same."""
    from cosformer.ops.hopper.op import hopper_backward, hopper_forward

    q, k, v, grad = (torch.randn(1, 2000, 2, 64, dtype=torch.bfloat16, device="cuda") for _ in range(4))
    cu = None if bounds is None else torch.tensor(bounds, dtype=torch.int32, device="cuda")
    found = []
    for keep in (True, False):
        settings = (None, cu, None, None, None, causal, 0, 4000.0, 1e-6)
        given = (q, k, v, *settings, False, keep)
        out, d, kept, _, _ = hopper_forward(*given)
        assert (kept.numel() > 0) == (keep and (causal or cu is None))
        found.append(hopper_backward(grad, None, None, out, d, kept, *given))
    for kept_before, made_again in zip(*found, strict=True):
        if causal or bounds is not None:
            assert torch.equal(kept_before, made_again)
        else:  # a forward that keeps nothing sums up in another order
            assert is_close(made_again, kept_before, 5e-3)
    assert found[0][0].abs().max() > 0


@both_ways
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("batch", "length"), [(1, 65536), (12, 16384)])
def test_long_sequences(batch, length, dim, causal):
    x = inputs(batch, length, 2, dim)
    grad = torch.randn_like(x[2])
    exact = results(in_double(x), "chunked", grad, causal=causal)
    for truth, mine in zip(exact, results(x, "hopper", grad, causal=causal), strict=True):
        assert is_close(mine, truth, 5e-3)


@both_ways
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_a_thousand_repeats_are_bit_identical(packed, dim, causal):
    x = inputs(1 if packed else 2, 1000, 4, dim)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "cu_seqlens": random_bounds(20, 1000).cuda() if packed else None}
    first = results(x, "hopper", grad, **options)
    for _ in range(1000):
        again = results(x, "hopper", grad, **options)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@both_ways
def test_cuda_graph(causal):
    x = inputs(2, 700, 4, 64)
    grad = torch.randn_like(x[2])
    results(x, "hopper", grad, causal=causal)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = results(x, "hopper", grad, causal=causal)
    with torch.no_grad():
        for y in x:
            y.normal_()
    graph.replay()
    for a, b in zip(captured, results(x, "hopper", grad, causal=causal), strict=True):
        assert torch.equal(a, b)


def test_lengths_do_not_compile_anew():
    from cosformer.ops.gpu.launch_cache import PLAN_CACHE

    def compiled():
        return sum(len(key) == 3 for key in PLAN_CACHE)  # kernel, constants, device

    def call(batch, length):
        x = inputs(batch, length, 16, 64)
        for causal in (True, False):
            results(x, "hopper", torch.randn_like(x[2]), causal=causal)

    call(1, 1000)  # several splits a row
    call(40, 500)  # one split a row
    before = compiled()
    for batch, length in ((1, 999), (1, 4096), (3, 1024), (40, 16), (40, 777), (33, 1), (1, 1), (2, 131)):
        call(batch, length)
    assert compiled() == before


@both_ways
def test_replay(causal):
    """A plan depends neither on the tensors it was recorded with nor on whether they were one tensor."""
    one = torch.randn(2, 200, 2, 64, dtype=torch.bfloat16, device="cuda")
    whole = torch.randn(2, 200, 2, 192, dtype=torch.bfloat16, device="cuda")
    parts = whole.chunk(3, -1)
    for x in ([one] * 3, inputs(2, 200, 2, 64), parts, parts[::-1], [parts[0]] * 3, inputs(2, 200, 2, 64)):
        x = [y.detach().requires_grad_() for y in x]
        grad = torch.randn_like(one)
        exact = results(in_double(x), "chunked", grad, causal=causal)
        for truth, mine in zip(exact, results(x, "hopper", grad, causal=causal), strict=True):
            assert is_close(mine, truth, 5e-3)


@both_ways
@pytest.mark.parametrize(
    ("tokens", "heads", "dim"), [(512, 2, 64), (700, 4, 128), (2048, 16, 64), (8192, 8, 40)]
)
def test_inference_sums_few_states_inline(tokens, heads, dim, causal):
    """One launch less; the same sums in the same order where the splits are the same. The last case has too
    many splits."""
    x = [y.detach() for y in inputs(2, tokens, heads, dim)]
    found = cosformer_attention(*x, causal=causal, backend="hopper")
    kept = cosformer_attention(*(y.requires_grad_() for y in x), causal=causal, backend="hopper").detach()
    assert is_close(found, kept, 5e-3)
    if causal:
        assert torch.equal(found, kept)


@both_ways
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "mask"])
@pytest.mark.parametrize("shape", SHAPES)
def test_inference_is_as_right_as_training(shape, masked, causal):
    dim, value_dim, heads, kv_heads = SHAPES[shape]
    case = make(
        batch=2, tq=700, tk=None if causal else 900, dim=dim, value_dim=value_dim, heads=heads,
        kv_heads=kv_heads, causal=causal, mask=masked, dtype=torch.bfloat16,
    ).on("cuda")  # fmt: skip
    exact = case.to(torch.float64).call("reference")
    with torch.no_grad():
        assert is_close(case.call("hopper"), exact, 5e-3)


@both_ways
@pytest.mark.parametrize("replayed", [True, False], ids=["replayed", "recorded"])
def test_a_fresh_thread(replayed, causal):
    """It has no CUDA context yet when its first TMA descriptors are encoded."""
    from cosformer.ops.gpu import launch_cache

    x = [y.detach() for y in inputs(2, 300, 4, 64)]
    here = cosformer_attention(*x, causal=causal, backend="hopper")
    y = [z.clone() for z in x]
    if not replayed:
        launch_cache.PLAN_CACHE.clear()
    found = []
    call = partial(cosformer_attention, *y, causal=causal, backend="hopper")
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    assert torch.equal(found[0], here)


@both_ways
@pytest.mark.parametrize("length", [300, 3000])
def test_torch_compile(length, causal):
    x = inputs(2, length, 4, 64)
    grad = torch.randn_like(x[2])

    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=causal) * 2

    plain = f(*x)
    compiled = torch.compile(f, fullgraph=True, dynamic=True)(*x)
    assert torch.equal(plain, compiled)
    for a, b in zip(torch.autograd.grad(plain, x, grad), torch.autograd.grad(compiled, x, grad), strict=True):
        assert torch.equal(a, b)


@both_ways
def test_odd_addresses(causal):
    """Contiguous tensors at addresses that TMA cannot read."""

    def moved(x):
        return torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x)

    x = [y.detach() for y in inputs(2, 100, 2, 64)]
    grad = torch.randn_like(x[2])
    first = CosformerState.zeros(2, 2, 64, horizon=300.0, device="cuda")
    _, state = cosformer_attention(*x, causal=causal, horizon=300, state=first, return_state=True)
    odd = replace(state, numerator=moved(state.numerator), denominator=moved(state.denominator))
    with_gradients = [[y.requires_grad_() for y in xs] for xs in (x, [moved(y) for y in x])]
    for s, t in ((None, None), (state, odd)):
        here, there = (
            results(xs, "hopper", g, causal=causal, horizon=300, state=st)
            for xs, g, st in zip(with_gradients, (grad, moved(grad)), (s, t), strict=True)
        )
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_auto_chooses_it_where_it_can_serve():
    q, k, v = inputs(1, 100, 2, 64)
    named = cosformer_attention(q, k, v, causal=True, backend="hopper")
    assert torch.equal(cosformer_attention(q, k, v, causal=True), named)
    with pytest.raises(ValueError, match=r"hopper: it computes in torch.bfloat16, not in torch.float32"):
        cosformer_attention(q.float(), k.float(), v.float(), causal=True, backend="hopper")
    cosformer_attention(q.float(), k.float(), v.float(), causal=True)  # the portable kernels serve


@both_ways
@pytest.mark.parametrize(("length", "need_state"), [(70, False), (2000, False), (2000, True)])
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
def test_opcheck(packed, length, need_state, causal):
    from cosformer.ops.hopper.op import hopper_forward

    q, k, v = inputs(1, length, 2, 64)
    cu = random_bounds(9, length).cuda() if packed else None
    args = (q, k, v, None, cu, None, None, None, causal, 0, 4000.0, 1e-6, need_state, True)
    torch.library.opcheck(hopper_forward, args)
