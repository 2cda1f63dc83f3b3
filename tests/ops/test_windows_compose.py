"""Heads with windows inside the rest of PyTorch: compile, export, autocast, checkpointing, func, vmap."""

import torch
from torch.utils.checkpoint import checkpoint

from cosformer import CosformerState, cosformer_attention
from cosformer.ops.chunked.op import chunked_backward, chunked_forward

from .cases import distance

WINDOWS = (3, None, 65)


def qkv(*shape, requires_grad=False):
    return [torch.randn(*shape, 3, 8, requires_grad=requires_grad) for _ in range(3)]


def attend(q, k, v, **options):
    return cosformer_attention(q, k, v, causal=True, windows=WINDOWS, horizon=4000, **options)


def counted(function):
    """The function compiled as one graph for all lengths, and the graphs that were made."""
    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return torch.compile(function, fullgraph=True, dynamic=True, backend=count), graphs


def test_opcheck():
    """Every argument at once: mask, sums, past keys and values."""
    past = [torch.randn(2, 66, 8, requires_grad=True) for _ in range(2)]
    sums = [torch.randn(2, 1, 2, 8, 8, requires_grad=True), torch.rand(2, 1, 2, 8, requires_grad=True)]
    settings = (True, 0, 400.0, 1e-6, True, True)
    mask = torch.rand(2, 70) > 0.3
    args = (
        *qkv(2, 70, requires_grad=True),
        mask,
        None,
        *sums,
        torch.tensor([3, 5]),
        *settings,
        *past,
        [3, 0, 65],
    )
    torch.library.opcheck(chunked_forward, args)
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
    out, den, kept, n, d = chunked_forward(*given)
    upstream = [torch.randn_like(x) for x in (out, n, d)]
    torch.library.opcheck(chunked_backward, (*upstream, out, den, kept, *given))


def test_compiled_with_dynamic_length():
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    once, graphs = counted(attend)
    for length in (40, 100, 128, 333):
        x = qkv(2, length, requires_grad=True)
        made, plain = compiled(*x), attend(*x)
        assert torch.equal(made, plain)
        for a, b in zip(*(torch.autograd.grad(y.square().sum(), x) for y in (made, plain)), strict=True):
            assert torch.equal(a, b)
        once(*x)
    assert len(graphs) <= 3


def test_compiled_with_a_state():
    def step(q, k, v, state):
        return attend(q, k, v, state=state, return_state=True)

    compiled, graphs = counted(step)
    state = plain = CosformerState.zeros(2, 3, 8, horizon=4000, windows=WINDOWS)
    for length in (5, 6, 9, 1, 1, 7):
        x = qkv(2, length)
        (out, state), (expected, plain) = compiled(*x, state), step(*x, plain)
        assert torch.equal(out, expected)
        assert torch.equal(state.keys, plain.keys)
        assert state.seen == plain.seen
    assert len(graphs) <= 3


def test_exported_with_dynamic_length():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v)

    time = torch.export.Dim("time", min=2, max=4000)
    exported = torch.export.export(Model(), tuple(qkv(2, 70)), dynamic_shapes=[{1: time}] * 3)
    x = qkv(2, 200)
    assert torch.equal(exported.module()(*x), attend(*x))


def test_checkpointing_and_func():
    x = qkv(2, 70, requires_grad=True)
    plain = torch.autograd.grad(attend(*x).sum(), x)
    again = torch.autograd.grad(checkpoint(attend, *x, use_reentrant=False).sum(), x)
    q, k, v = (y.detach() for y in x)
    functional = torch.func.grad(lambda *y: attend(*y).sum(), argnums=(0, 1, 2))(q, k, v)
    for a, b, c in zip(plain, again, functional, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_vmap():
    x = qkv(4, 1, 70)
    out, keys = torch.vmap(lambda *y: (attend(*y), attend(*y, return_state=True)[1].keys))(*x)
    gradients = torch.vmap(torch.func.grad(lambda *y: attend(*y).square().sum()))(*x)
    for i in range(4):
        q, k, v = (y[i].clone().requires_grad_() for y in x)
        expected, state = attend(q, k, v, return_state=True)
        assert distance(out[i], expected) < 1e-6
        assert torch.equal(keys[i], state.keys)
        (dq,) = torch.autograd.grad(attend(q, k, v).square().sum(), q)
        assert distance(gradients[i], dq) < 1e-5


def test_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, state = attend(*qkv(2, 70), return_state=True)
    assert (out.dtype, state.keys.dtype) == (torch.bfloat16, torch.bfloat16)
    assert state.numerator.dtype == torch.float32
