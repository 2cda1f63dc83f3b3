"""Convolutions with many weights over both sides, against the sum written out in float64."""

import pytest
import torch

from benchmarks.long_convolution import exact
from cosformer.nn import convolution
from cosformer.nn.convolution import ShortConvolution

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [((2, 70, 20), 17), ((1, 5, 3), 67), ((3, 130, 6), 67), ((2, 128, 4), 129), ((1, 300, 3), 301)]
WAYS = {"transform": convolution._transformed, "products": convolution._multiplied}

ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def inputs(shape, size, dtype=torch.float32):
    x, g = (torch.randn(shape, device=DEVICE, dtype=dtype) for _ in range(2))
    return x.requires_grad_(), torch.randn(shape[2], size, device=DEVICE, requires_grad=True), g


def with_gradients(way, x, weight, g):
    y = (x + way(x, weight)).to(x.dtype)
    return [y, *torch.autograd.grad(y, (x, weight), g)]


@ways
@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "spacings"), [(torch.float32, 60), (torch.bfloat16, 4), (torch.float16, 4)], ids=str
)
def test_values_and_gradients(way, shape, size, dtype, spacings):
    """Judged token by token, and channel by channel in the gradient of the weights: in spacings of the dtype
    at the largest number there."""
    x, weight, g = inputs(shape, size, dtype)
    ours = with_gradients(way, x, weight, g)
    double = x.detach().double().requires_grad_(), weight.double(), g.double()
    y = exact(*double[:2])
    theirs = [y, *torch.autograd.grad(y, (double[0], weight), double[2])]
    for a, b in zip(ours, theirs, strict=True):
        allowed = spacings * torch.finfo(dtype).eps * b.double().abs().amax(-1, keepdim=True)
        assert ((a.double() - b).abs() <= allowed).all()
    assert [y.dtype for y in ours] == [dtype, dtype, torch.float32]


@ways
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)], ids=str)
def test_nothing(way, shape):
    x, weight, _ = inputs(shape, 17)
    assert way(x, weight).shape == shape


@ways
def test_gradients_of_gradients(way):
    weight = 0.1 * torch.randn(2, 17, dtype=torch.float64)
    x = torch.randn(2, 20, 2, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(way, (x.requires_grad_(), weight.requires_grad_()))


def test_products_reach_no_further_than_their_weights():
    """A transform carries a rounding error of large values everywhere."""
    x, weight, _ = inputs((1, 400, 3), 67)
    far = x.detach().clone()
    far[:, :200] = 1e30
    a, b = (convolution._multiplied(y, weight)[:, 200 + 33 :] for y in (x, far))
    assert torch.equal(a, b)


def test_the_layer_takes_them(monkeypatch):
    made = ShortConvolution(6, 19, causal=False).to(DEVICE)
    x, mask = torch.randn(3, 40, 6, device=DEVICE), torch.rand(3, 40, device=DEVICE) < 0.7
    x[~mask] = torch.nan
    plain, _ = made(x, key_mask=mask)
    monkeypatch.setattr(convolution, "_transformed", convolution._multiplied)
    ours, _ = made(x, key_mask=mask)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    assert not torch.equal(ours, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
def test_on_a_gpu_they_are_taken_with_a_flag(monkeypatch):
    x, weight, _ = inputs((2, 300, 8), 67)
    monkeypatch.setattr(convolution, "USE_PRODUCTS", True)
    assert torch.equal(convolution._convolved(x, weight), convolution._multiplied(x, weight))
