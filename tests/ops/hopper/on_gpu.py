"""What the tests of the kernels for Hopper on a GPU have in common."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops.backends import backends
from tests.ops.cases import errors, is_as_good_as

WHY_NOT = next(b.reason for b in backends() if b.name == "hopper")
on_a_gpu = pytest.mark.skipif(WHY_NOT is not None, reason=f"hopper: {WHY_NOT}")

both_ways = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
FLOOR = 2**-9
SHAPES = {  # head size, value size, heads, key heads
    "64": (64, 64, 1, 1),
    "128": (128, 128, 2, 2),
    "40x64": (40, 64, 2, 2),
    "40x64,grouped": (40, 64, 4, 2),
    "96x72,grouped": (96, 72, 3, 1),
}


def assert_right(case, backend="hopper"):
    """At most twice the error of the reference in bfloat16, which is taken to be FLOOR at least."""
    case = case.to(torch.bfloat16)
    exact = case.to(torch.float64).results("reference")
    there = case.on("cuda")
    plain, ours = there.results("reference"), there.results(backend)
    for name, truth in exact.items():
        found = errors(ours[name], truth), errors(plain[name], truth)
        assert is_as_good_as(ours[name], plain[name], truth, FLOOR), (name, found)


def assert_rounding(found, cancelled):
    """A gradient that is zero, because two sums are equal whose terms, taken as positive, are `cancelled`: no
    row has more left than one rounding of these. (The reference is no measure: it may happen to round both
    sums alike, and have nothing left.)"""
    assert (found.norm(dim=-1) <= FLOOR * cancelled.norm(dim=-1)).all()


def assert_one_token_is_right(**options):
    """o is v whatever q and k are: g.v and g.o cancel in their gradients, and leave only rounding."""
    x = inputs(2, 1, 2, 64)
    grad = torch.randn_like(x[2])
    exact = results(in_double(x), "reference", grad, **options)
    plain = results(x, "reference", grad, **options)
    found = results(x, "hopper", grad, **options)
    for i in (0, 3):
        assert is_as_good_as(found[i], plain[i], exact[i], FLOOR)
    q, k, v, g = (y.detach().double() for y in (*x, grad))
    each = (g * v).abs().sum(-1, keepdim=True) / (q.relu() * k.relu()).sum(-1, keepdim=True)
    assert_rounding(found[1].double(), each * k.relu())
    assert_rounding(found[2].double(), each * q.relu())


def inputs(*shape):
    return [torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3)]


def results(x, backend, grad, **options):
    """o and the gradients of q, k and v. None of them keeps the graph of autograd alive: its nodes belong to
    the stream they were made on, which a capture on another one must not wait for."""
    out = cosformer_attention(*x, backend=backend, **options)
    grads = torch.autograd.grad(out, x, grad.to(out))
    return [out.detach(), *grads]


def in_double(x):
    return [y.detach().double().requires_grad_() for y in x]


def random_bounds(documents, length):
    cuts = torch.randint(0, length + 1, (documents - 1,)).sort().values
    return torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), length)])


def bounds_of(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0)
