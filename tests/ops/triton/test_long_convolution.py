"""The kernels of a convolution with many weights, against the sum written out in float64."""

import pytest
import torch
from torch.library import opcheck

from cosformer.nn import convolution
from cosformer.ops.gpu import long_convolution as ops
from cosformer.ops.gpu.long_convolution import long_convolution, long_convolution_weight
from tests.ops.triton.process import run

pytestmark = pytest.mark.thorough  # nothing calls these kernels yet
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = pytest.mark.parametrize(
    ("shape", "size"), [((2, 70, 20), 17), ((1, 5, 3), 67), ((2, 64, 64), 33), ((3, 130, 65), 67)], ids=str
)


def slow(x, weight):
    size, length = weight.shape[1], x.shape[1]
    around = torch.nn.functional.pad(x, (0, 0, size // 2, size // 2))
    return x + sum(around[:, size - 1 - i : size - 1 - i + length] * weight[:, i] for i in range(size))


def inputs(shape, size, dtype=torch.float32):
    x, g = (torch.randn(shape, device=DEVICE, dtype=dtype) for _ in range(2))
    return x.requires_grad_(), torch.randn(shape[2], size, device=DEVICE, requires_grad=True), g


def with_gradients(function, x, weight, g):
    y = function(x, weight)
    return [y, *torch.autograd.grad(y, (x, weight), g)]


@SHAPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients(shape, size, dtype):
    """Summed in float32, and rounded once: judged token by token."""
    x, weight, g = inputs(shape, size, dtype)
    ours = with_gradients(long_convolution, x, weight, g)
    theirs = with_gradients(slow, x.detach().double().requires_grad_(), weight.double(), g.double())
    rounding = torch.finfo(dtype).eps
    for a, b, own in zip(ours, theirs, (rounding, rounding, 0.0), strict=True):
        size_of_row = b.abs().amax(-1, keepdim=True)
        assert ((a.double() - b).abs() <= own * b.abs() + 1e-5 * (1 + size_of_row)).all()
    assert [y.dtype for y in ours] == [dtype, dtype, torch.float32]


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)], ids=str)
def test_nothing(shape):
    x, weight, g = inputs(shape, 17)
    y, dx, dw = with_gradients(long_convolution, x, weight, g)
    assert y.shape == dx.shape == shape
    assert (dw == 0).all()


def test_the_registration():
    x, weight, g = inputs((2, 9, 5), 17)
    opcheck(long_convolution, (x, weight))
    opcheck(long_convolution_weight, (g, x.detach(), 17))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_gradients(dtype):
    """Of small upstream gradients too: nothing is added that is taken away again."""
    x, weight, g = inputs((2, 20, 5), 17, dtype)

    def second(function, *tensors):
        x, weight, g = (y.detach().requires_grad_() for y in tensors)
        first = torch.autograd.grad(function(x, weight), (x, weight), g, create_graph=True)
        return torch.autograd.grad(sum(1e-3 * y.square().sum() for y in first), (x, weight, g))

    ours = second(long_convolution, x, weight, g)
    theirs = second(slow, x.double(), weight.double(), g.double())
    rounding = 8 * torch.finfo(dtype).eps
    for a, b in zip(ours, theirs, strict=True):
        assert (a.double() - b).norm() <= rounding * b.norm()


def test_a_view_is_read_as_it_lies():
    x, weight, g = inputs((2, 5, 30), 17)
    turned, weight = x.detach().transpose(1, 2).requires_grad_(), weight[:1].expand(5, -1)
    ours = with_gradients(long_convolution, turned, weight, g.transpose(1, 2))
    theirs = with_gradients(slow, turned, weight, g.transpose(1, 2))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_row_in_parts(monkeypatch):
    monkeypatch.setattr(ops, "PART", 32)
    x, weight, g = inputs((2, 70, 5), 17)
    ours, theirs = (with_gradients(function, x, weight, g) for function in (long_convolution, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_transforms_are_computed_without_it(monkeypatch):
    made = convolution.ShortConvolution(6, 19, causal=False).to(DEVICE)
    monkeypatch.setattr(convolution, "USE_KERNEL", True)
    monkeypatch.setattr(convolution, "runs_triton", lambda device: True)
    x = torch.randn(2, 12, 6, device=DEVICE)

    def loss(x):
        return made(x)[0].square().sum()

    expected = torch.autograd.grad(loss(x.requires_grad_()), x)[0]
    for grad in (torch.func.grad(loss), torch.compile(torch.func.grad(loss), backend="aot_eager")):
        torch.testing.assert_close(grad(x.detach()), expected, rtol=1e-4, atol=1e-4)
    tangent = torch.func.jvp(loss, (x.detach(),), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, expected.sum(), rtol=1e-4, atol=1e-3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent is not None


def test_the_layer_takes_it(monkeypatch):
    made = convolution.ShortConvolution(6, 19, causal=False).to(DEVICE)
    x, mask = torch.randn(3, 40, 6, device=DEVICE), torch.rand(3, 40, device=DEVICE) < 0.7
    x[~mask] = torch.nan
    plain, _ = made(x, key_mask=mask)
    monkeypatch.setattr(convolution, "USE_KERNEL", True)
    monkeypatch.setattr(convolution, "runs_triton", lambda device: True)
    ours, _ = made(x, key_mask=mask)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    assert not torch.equal(ours, plain)
    assert not made.double()._has_kernel(x.double())
    assert not convolution.ShortConvolution(6, 19)._has_kernel(x)


COMPILE = """
import sys, torch
from cosformer.ops.gpu import long_convolution as ops
from tests.ops.triton.compiling import Launch, report

channels, size = int(sys.argv[2]), 67
x = torch.empty(2, 200, channels, dtype=torch.bfloat16, device="meta")
weight = torch.empty(size, channels, device="meta")
shared = {"T": 200, "parts": 4, "C": channels, "R": size // 2, "K": size, "BC": ops.CHANNELS, "num_warps": 4}
for kernel, own in (
    (ops.long_conv_fwd, {"X": x, "W": weight, "Y": x, "IDENTITY": True, "BT": ops.TOKENS}),
    (ops.long_conv_bwd_weight, {"G": x, "X": x, "DW": weight, "LENGTH": ops.PART, "BK": ops.WEIGHTS}),
):
    usage = report(Launch(kernel, {**shared, **own}).compile(int(sys.argv[1])))
    print(kernel.__name__, usage["stack"], usage["shared"])
"""


@pytest.mark.parametrize(("capability", "channels"), [(80, 64), (90, 256)])
def test_they_compile_for_gpus(capability, channels):
    """Without one: nothing is spilled, and next to no shared memory taken."""
    lines = [line.split() for line in run(COMPILE, capability, channels)]
    assert {name for name, *_ in lines} == {"long_conv_fwd", "long_conv_bwd_weight"}
    for name, stack, smem in lines:
        assert int(stack) == 0, name
        assert int(smem) <= 16 * 1024, name
