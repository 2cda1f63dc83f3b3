"""What needs a GPU: long sequences, large tensors, repeats, CUDA graphs, the number of compilations."""

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import decode_step
from tests.ops.cases import is_as_good_as, is_close, uncorrected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")

both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
SIZES = [(1000, 64), (4096, 64), (1000, 16), (1000, 48), (777, 80), (777, 96), (777, 128), (300, 256)]
FLOOR = {torch.float32: 2**-22, torch.bfloat16: 2**-9, torch.float16: 2**-12}


def inputs(*shape, dtype=torch.bfloat16):
    return [torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True) for _ in range(3)]


def results(x, backend, grad, **options):
    out = cosformer_attention(*x, backend=backend, **options)
    grads = torch.autograd.grad(out, x, grad.to(out))
    return [out.detach(), *grads]


def in_double(x):
    return [y.detach().double().requires_grad_() for y in x]


@both_ways
@pytest.mark.parametrize("dtype", FLOOR, ids=str)
@pytest.mark.parametrize(
    ("length", "dim"), [(1000, 64), (4096, 64), (1000, 48), (777, 96), (777, 128), (300, 256)]
)
def test_error_at_most_twice_that_of_plain_pytorch(length, dim, dtype, causal):
    x = inputs(2, length, 2, dim, dtype=dtype)
    grad = torch.randn_like(x[2])
    exact = results(in_double(x), "chunked", grad, causal=causal)
    # In float32 the linear form in PyTorch errs more than the square, as it must.
    names = ["reference", "chunked"] if dtype == torch.float32 else ["reference"]
    with uncorrected():
        plain = [results(x, name, grad, causal=causal) for name in names]
    for truth, mine, *others in zip(exact, results(x, "triton", grad, causal=causal), *plain, strict=True):
        assert any(is_as_good_as(mine, y, truth, FLOOR[dtype]) for y in others)


@both_ways
@pytest.mark.parametrize("batch", [1, 3])
def test_long_sequences(batch, causal):
    x = inputs(batch, 65536, 2, 64)
    grad = torch.randn_like(x[2])
    exact = results(in_double(x), "chunked", grad, causal=causal)
    for truth, mine in zip(exact, results(x, "triton", grad, causal=causal), strict=True):
        assert is_close(mine, truth, 1e-2)


@both_ways
def test_a_thousand_documents(causal):
    cuts = torch.randint(0, 30001, (999,)).sort().values
    cu = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), 30000)]).cuda()
    x = inputs(1, 30000, 2, 64)
    grad = torch.randn_like(x[2])
    options = {"causal": causal, "cu_seqlens": cu, "horizon": 2048}
    exact = results(in_double(x), "chunked", grad, **options)
    for truth, mine in zip(exact, results(x, "triton", grad, **options), strict=True):
        assert is_close(mine, truth, 1e-2)


@both_ways
def test_a_thousand_repeats_are_bit_identical(causal):
    x = inputs(2, 1000, 4, 64)
    grad = torch.randn_like(x[2])
    first = results(x, "triton", grad, causal=causal)
    for _ in range(1000):
        assert all(
            torch.equal(a, b) for a, b in zip(first, results(x, "triton", grad, causal=causal), strict=True)
        )


@both_ways
def test_more_than_two_to_the_31_elements(causal):
    length = 2**31 // (64 * 64) + 1000
    x = [
        torch.randn(1, length, 64, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for _ in range(3)
    ]
    assert x[0].numel() > 2**31
    out = cosformer_attention(*x, causal=causal, backend="triton")
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, x, grad)
    head = slice(63, 64)  # the last one lies beyond 2^31
    y = in_double([z[:, :, head] for z in x])
    exact = results(y, "chunked", grad[:, :, head], causal=causal)
    for truth, mine in zip(exact, (out, *grads), strict=True):
        assert is_close(mine[:, :, head], truth, 1e-2)


@both_ways
def test_cuda_graph(causal):
    x = inputs(2, 700, 4, 64)
    grad = torch.randn_like(x[2])
    results(x, "triton", grad, causal=causal)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = results(x, "triton", grad, causal=causal)
    with torch.no_grad():
        for y in x:
            y.normal_()
    graph.replay()
    for a, b in zip(captured, results(x, "triton", grad, causal=causal), strict=True):
        assert torch.equal(a, b)


def test_decoding_in_a_cuda_graph():
    q, k, v = (torch.randn(4, 30, 8, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    whole = cosformer_attention(q, k, v, causal=True, horizon=64)
    state = CosformerState.zeros(4, 8, 64, horizon=64, device="cuda")
    token = [x[:, :1].clone() for x in (q, k, v)]
    decode_step(*token, state.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = decode_step(*token, state)
    for t in range(30):
        for into, x in zip(token, (q, k, v), strict=True):
            into.copy_(x[:, t : t + 1])
        graph.replay()
        assert is_close(out, whole[:, t : t + 1], 5e-3)
    assert state.positions.tolist() == [30] * 4


def test_lengths_do_not_compile_anew():
    from cosformer.ops.gpu.state_scan import state_scan
    from cosformer.ops.triton.bwd_preprocess import bwd_preprocess
    from cosformer.ops.triton.chunk import chunk_attention
    from cosformer.ops.triton.chunk_denominator import chunk_denominator
    from cosformer.ops.triton.chunk_state import chunk_state
    from cosformer.ops.triton.state_apply import state_apply

    kernels = (chunk_attention, chunk_denominator, bwd_preprocess, state_apply, chunk_state, state_scan)

    def compiled():
        return sum(len(cache[0]) for f in kernels for cache in f.device_caches.values())

    def call(batch, length):
        x = inputs(batch, length, 16, 64)
        for causal in (True, False):
            results(x, "triton", torch.randn_like(x[2]), causal=causal)

    call(1, 1000)  # several splits a row
    call(40, 500)  # one split a row
    before = compiled()
    for batch, length in ((1, 999), (1, 4096), (3, 1024), (40, 16), (40, 777), (33, 1), (1, 1), (2, 131)):
        call(batch, length)
    assert compiled() == before


@both_ways
def test_replay(causal):
    """A second call replays the plan of the first with other tensors, also with ones that share their memory
    in another order; a call on misaligned tensors is not recorded."""
    from cosformer.ops.gpu.launch_cache import PLAN_CACHE

    together = torch.randn(2, 300, 3, 4, 64, dtype=torch.bfloat16, device="cuda")
    grad = torch.randn(2, 300, 4, 64, dtype=torch.bfloat16, device="cuda")
    views = [
        [together[:, :, i].detach().requires_grad_() for i in order]
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))
    ]
    PLAN_CACHE.clear()
    replayed = [results(x, "triton", grad, causal=causal) for x in views]
    assert len(PLAN_CACHE) == 2  # forward and backward
    for x, made in zip(views, replayed, strict=True):
        PLAN_CACHE.clear()
        alone = results([y.detach().clone().requires_grad_() for y in x], "triton", grad, causal=causal)
        assert all(torch.equal(a, b) for a, b in zip(made, alone, strict=True))
    PLAN_CACHE.clear()
    odd = torch.randn(2 * 300 * 4 * 64 + 1, dtype=torch.bfloat16, device="cuda")[1:].view(2, 300, 4, 64)
    results([odd.detach().requires_grad_() for _ in range(3)], "triton", grad, causal=causal)
    assert not PLAN_CACHE


@both_ways
def test_torch_compile(causal):
    x = inputs(2, 300, 4, 64)
    grad = torch.randn_like(x[2])

    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=causal) * 2

    plain = f(*x)
    compiled = torch.compile(f, fullgraph=True, dynamic=True)(*x)
    assert torch.equal(plain, compiled)
    for a, b in zip(torch.autograd.grad(plain, x, grad), torch.autograd.grad(compiled, x, grad), strict=True):
        assert torch.equal(a, b)


def test_auto_chooses_the_kernels():
    q, k, v = inputs(1, 100, 2, 64, dtype=torch.float32)
    assert torch.equal(
        cosformer_attention(q, k, v, causal=True), cosformer_attention(q, k, v, causal=True, backend="triton")
    )
    wide = [x.double() for x in (q, k, v)]
    with pytest.raises(ValueError, match=r"triton: it does not compute in torch.float64"):
        cosformer_attention(*wide, backend="triton")
    cosformer_attention(*wide)  # chunked serves
