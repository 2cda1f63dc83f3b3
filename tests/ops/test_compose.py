"""The operator inside the rest of PyTorch: compile, export, autocast, checkpointing, func, vmap."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cosformer import CosformerState, cosformer_attention
from cosformer.ops.chunked.op import chunked_backward, chunked_forward

from .cases import distance, make

both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def gradients(f, *tensors):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = f(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    out.backward(weight)
    return [out, *(x.grad for x in leaves)]


@both_ways
def test_compiled_with_dynamic_length(causal):
    """fullgraph, equal values and gradients, and no compilation for each length."""
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=causal) * 2

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    counted = torch.compile(f, fullgraph=True, dynamic=True, backend=count)
    for length in (5, 40, 100, 128, 192, 333, 500, 640):
        q, k, v = (torch.randn(2, length, 2, 16) for _ in range(3))
        for a, b in zip(gradients(compiled, q, k, v), gradients(f, q, k, v), strict=True):
            assert torch.equal(a, b)
        counted(q, k, v)
    assert len(graphs) <= 3  # lengths that go direct, and lengths that go through the state


@pytest.mark.parametrize("kind", ["mask", "packed", "state"])
def test_compiled_with_everything(kind):
    torch._dynamo.reset()
    options = {"mask": {"mask": True}, "packed": {"documents": 3}, "state": {"state": True}}[kind]
    for length in (150, 170, 210):
        case = make(tq=length, causal=True, dtype=torch.float32, horizon=2000, **options)
        t, rest = case.tensors, dict(case.options)
        state = rest.pop("state", None)

        def f(q, k, v, state=state, rest=rest):
            made = cosformer_attention(q, k, v, state=state, **rest)
            return made if isinstance(made, torch.Tensor) else made[0] + made[1].numerator.sum()

        compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
        inputs = t["q"], t["k"], t["v"]
        for a, b in zip(gradients(compiled, *inputs), gradients(f, *inputs), strict=True):
            assert distance(a, b) < 1e-6


def test_compiled_packing_still_refuses_what_passes_the_horizon():
    """Bounds of documents are data: a compiled graph looks at them when it runs."""
    torch._dynamo.reset()
    x = torch.randn(1, 40, 2, 8)

    def f(x, bounds):
        return cosformer_attention(x, x, x, causal=True, horizon=20, cu_seqlens=bounds)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, torch.tensor([0, 20, 40])), f(x, torch.tensor([0, 20, 40])))
    with pytest.raises(ValueError, match="horizon 20 is too small"):
        compiled(x, torch.tensor([0, 5, 40]))


def test_compiled_decoding_does_not_compile_each_step():
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def step(x, state):
        return cosformer_attention(x, x, x, causal=True, horizon=1000, state=state, return_state=True)

    compiled = torch.compile(step, fullgraph=True, backend=count)
    state = CosformerState.zeros(1, 2, 8, horizon=1000.0)
    plain = state
    for _ in range(20):
        x = torch.randn(1, 1, 2, 8)
        out, state = compiled(x, state)
        expected, plain = step(x, plain)
        assert torch.equal(out, expected)
        assert state.seen == plain.seen
    assert len(graphs) <= 3


def arguments(kind, causal, requires_grad=True, keep=True, length=70):
    case = make(
        batch=1, tq=length, dim=8, causal=causal, dtype=torch.float32, kv_heads=1,
        **{"plain": {}, "mask": {"mask": True}, "packed": {"documents": 3}, "state": {"state": True}}[kind],
    )  # fmt: skip
    t, o = case.tensors, case.options
    leaves = [x.requires_grad_(requires_grad) for x in t.values()]
    state = leaves[3:] if len(leaves) > 3 else [None, None]
    positions = o["state"].positions if "state" in o else None
    settings = (causal, 0, float(o["horizon"]), 1e-6, "return_state" in o, keep)
    return (*leaves[:3], o.get("key_mask"), o.get("cu_seqlens"), *state, positions, *settings)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "again"])
@pytest.mark.parametrize("kind", ["plain", "mask", "packed", "state"])
@both_ways
def test_opcheck(kind, causal, keep):
    torch.library.opcheck(chunked_forward, arguments(kind, causal, keep=keep))
    given = arguments(kind, causal, requires_grad=False, keep=keep)
    out, den, kept, n, d = chunked_forward(*given)
    state = (torch.randn_like(n), torch.randn_like(d)) if kind == "state" else (None, None)
    torch.library.opcheck(chunked_backward, (torch.randn_like(out), *state, out, den, kept, *given))


@pytest.mark.parametrize("length", [70, 200, 700])
@pytest.mark.parametrize("kind", ["plain", "mask", "state"])
@both_ways
def test_states_kept_or_computed_again(kind, causal, length):
    """What the forward keeps only saves time: without it the backward finds the same numbers."""
    results = []
    for keep in (True, False):
        torch.manual_seed(1)
        given = arguments(kind, causal, requires_grad=False, keep=keep, length=length)
        out, den, kept, _, _ = chunked_forward(*given)
        assert (kept.numel() > 0) == keep
        results.append(chunked_backward(torch.ones_like(out), None, None, out, den, kept, *given))
    for a, b in zip(*results, strict=True):
        assert distance(a, b) < 1e-5


def test_nothing_is_kept_where_no_gradient_is_wanted(monkeypatch):
    kept = []

    def spy(args):
        made = chunked_forward(*args.flatten())
        kept.append(made[2].numel())
        return made

    monkeypatch.setattr("cosformer.ops.chunked.op.chunked_attention", spy)
    x = torch.randn(1, 200, 2, 8)
    cosformer_attention(x, x, x, causal=True)
    cosformer_attention(x.requires_grad_(), x, x, causal=True)
    assert kept[0] == 0 < kept[1]


def test_exported_with_dynamic_length():
    class Net(torch.nn.Module):
        def forward(self, q, k, v):
            return cosformer_attention(q, k, v, causal=True, horizon=4096)

    def inputs(length):
        return tuple(torch.randn(1, length, 2, 16) for _ in range(3))

    length = torch.export.Dim("length", min=64, max=4096)
    program = torch.export.export(Net(), inputs(200), dynamic_shapes=({1: length}, {1: length}, {1: length}))
    for n in (100, 777):
        given = inputs(n)
        assert torch.equal(program.module()(*given), Net()(*given))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    """Inputs take autocast's type; inside, sums stay in float32; mixed types are brought together."""
    q, k, v = (torch.randn(1, 300, 2, 16) for _ in range(3))
    low = [x.to(dtype) for x in (q, k, v)]
    expected = gradients(lambda *x: cosformer_attention(*x, causal=True), *low)

    def inside(a, b, c):
        with torch.autocast("cpu", dtype=dtype):
            return cosformer_attention(a, b, c, causal=True)

    made = gradients(inside, q, low[1], v)
    assert made[0].dtype == dtype
    assert torch.equal(made[0], expected[0])
    for a, b in zip(made[1:], expected[1:], strict=True):
        assert distance(a, b) < 1e-2
    with torch.autocast("cpu", dtype=dtype):  # a backward inside the region must not autocast either
        again = gradients(lambda *x: cosformer_attention(*x, causal=True), *low)
    for a, b in zip(again, expected, strict=True):
        assert torch.equal(a, b)
    with torch.autocast("cpu", dtype=dtype):
        _, state = cosformer_attention(q, k, v, causal=True, horizon=300, return_state=True)
    assert state.numerator.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    tensors = [torch.randn(1, 200, 2, 16) for _ in range(3)]

    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=True)

    again = gradients(lambda *x: checkpoint(f, *x, use_reentrant=reentrant), *tensors)
    for a, b in zip(again, gradients(f, *tensors), strict=True):
        assert torch.equal(a, b)


@both_ways
def test_func_grad(causal):
    q, k, v = (torch.randn(2, 150, 2, 8, dtype=torch.float64) for _ in range(3))

    def loss(q, k, v):
        return cosformer_attention(q, k, v, causal=causal).square().sum()

    made = torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    for a, b in zip(made, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("length", [20, 150])
@both_ways
def test_vmap(causal, length):
    """vmap adds rows to the batch, over any axis; so do gradients for each sample."""
    q, k, v = (torch.randn(3, 2, length, 2, 8, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, length) > 0.3

    def f(q, k, v):
        return cosformer_attention(q, k, v, causal=causal, key_mask=mask)

    expected = torch.stack([f(*x) for x in zip(q, k, v, strict=True)])
    assert distance(torch.vmap(f)(q, k, v), expected) < 1e-12
    made = torch.vmap(f, in_dims=(1, 0, None), out_dims=1)(q.movedim(0, 1), k, v[0])
    expected = torch.stack([f(a, b, v[0]) for a, b in zip(q, k, strict=True)], 1)
    assert distance(made, expected) < 1e-12

    per_sample = torch.vmap(torch.func.grad(lambda *x: f(*x).square().sum(), argnums=(0, 1, 2)))(q, k, v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    loss = sum(f(*x).square().sum() for x in zip(*leaves, strict=True))
    for a, b in zip(per_sample, torch.autograd.grad(loss, leaves), strict=True):
        assert distance(a, b) < 1e-12


def test_vmap_with_packing_is_refused():
    x = torch.randn(3, 1, 10, 2, 8)
    with pytest.raises(NotImplementedError, match="vmap does not go together with cu_seqlens"):
        torch.vmap(lambda x: cosformer_attention(x, x, x, cu_seqlens=torch.tensor([0, 4, 10])))(x)


def test_second_derivatives_are_refused():
    x = torch.randn(1, 10, 2, 8, requires_grad=True)
    (g,) = torch.autograd.grad(cosformer_attention(x, x, x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="has gradients, but no gradients of gradients"):
        g.sum().backward()

    def first(x):
        return torch.func.grad(lambda x: cosformer_attention(x, x, x).sum())(x).sum()

    with pytest.raises(NotImplementedError, match="has gradients, but no gradients of gradients"):
        torch.func.grad(first)(x.detach())


def test_meta_tensors_have_shapes():
    x = torch.empty(2, 100, 4, 16, device="meta", dtype=torch.bfloat16)
    out, state = cosformer_attention(x, x, x, causal=True, horizon=100, return_state=True)
    assert out.shape == (2, 100, 4, 16)
    assert out.dtype == torch.bfloat16
    assert state.numerator.shape == (2, 4, 2, 16, 16)


def test_inference_first_then_training():
    """In a fresh process, where nothing is kept yet: each kind of call must leave room for the others."""
    script = """
import torch
from cosformer import cosformer_attention as attend
x = torch.randn(1, 300, 2, 16)
with torch.inference_mode():
    _, state = attend(x, x, x, causal=True, horizon=900, return_state=True)
    attend(x, x, x, causal=True, horizon=900, state=state)
for causal in (True, False):
    y = x.clone().requires_grad_()
    attend(y, y, y, causal=causal).sum().backward()
    with torch.no_grad():
        attend(x, x, x, causal=causal)
    with torch.inference_mode():
        attend(x, x, x, causal=causal)
    y = x.clone().requires_grad_()
    attend(y, y, y, causal=causal).sum().backward()
attend(x, x, x, causal=True, horizon=900, state=state)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_threads_do_not_share_room():
    x = torch.randn(1, 400, 2, 16)
    expected = cosformer_attention(x, x, x, causal=True)
    with ThreadPoolExecutor(4) as pool:
        for made in pool.map(lambda _: cosformer_attention(x, x, x, causal=True), range(40)):
            assert torch.equal(made, expected)


def test_no_gradients_wanted():
    q, k, v = (torch.randn(1, 100, 2, 8) for _ in range(3))
    with torch.inference_mode():
        inferred = cosformer_attention(q, k, v, causal=True)
    assert torch.equal(inferred, cosformer_attention(q, k, v, causal=True))
    v.requires_grad_()  # gradients of one input alone
    (dv,) = torch.autograd.grad(cosformer_attention(q, k, v, causal=True).sum(), v)
    assert dv.shape == v.shape
