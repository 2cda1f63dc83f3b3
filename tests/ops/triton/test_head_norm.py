"""RMSNorm of heads by a kernel, against PyTorch's in float64; on a GPU, and else in Triton's interpreter."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.nn import norm
from cosformer.ops.gpu import head_norm
from cosformer.ops.gpu.head_norm import HeadNorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def results(function, x, weight, g):
    x, weight = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    y = function(x, weight)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), g.to(y.dtype))]


def plain(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 70, 3, 64), (1, 1, 1, 16), (3, 5, 2, 40), (2, 9, 4, 256), (0, 4, 2, 32)]
)
def test_is_the_equation(shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE).to(dtype)
    weight, g = torch.randn(shape[-1], device=DEVICE), torch.randn(shape, device=DEVICE).to(dtype)
    ours = results(lambda x, w: HeadNorm.apply(x, w, 1e-5), x, weight, g)
    exact = results(plain, x.double(), weight.to(dtype).double(), g.double())
    for mine, truth, like in zip(ours, exact, (x, x, weight), strict=True):
        assert (mine.shape, mine.dtype) == (like.shape, like.dtype)
        if truth.numel():
            error = (mine.double() - truth).norm(dim=-1)
            assert (error <= TOLERANCE[dtype] * truth.norm(dim=-1)).all()


def test_weights_have_the_type_of_what_they_weigh():
    """As in PyTorch's, which serves small calls: 1.001 is 1 in bfloat16."""
    x, one = torch.randn(9, 32, device=DEVICE).bfloat16(), torch.ones(32, device=DEVICE)
    assert torch.equal(HeadNorm.apply(x, 1.001 * one, 1e-5), HeadNorm.apply(x, one, 1e-5))


def test_rows_are_apart():
    """NaN in a row moves no bit of another, nor of its gradient."""
    x, weight = torch.randn(200, 32, device=DEVICE), torch.randn(32, device=DEVICE)
    g = torch.randn_like(x)
    whole = results(lambda x, w: HeadNorm.apply(x, w, 1e-5), x, weight, g)
    x[70] = float("nan")
    spoilt = results(lambda x, w: HeadNorm.apply(x, w, 1e-5), x, weight, g)
    others = torch.arange(200, device=DEVICE) != 70
    for a, b in zip(whole[:2], spoilt[:2], strict=True):
        assert torch.equal(a[others], b[others])
        assert b[70].isnan().all()


def test_the_gradient_has_a_gradient():
    x, weight, g = torch.randn(6, 16, device=DEVICE), torch.randn(16, device=DEVICE), torch.randn(6, 16)
    found = []
    for function in (lambda x, w: HeadNorm.apply(x, w, 1e-5), plain):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf, weight), leaf, g.to(DEVICE), create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_module_keeps_to_pytorch_where_the_kernel_cannot_serve(monkeypatch):
    monkeypatch.setattr(norm, "FEWEST_NUMBERS", 0)
    made = norm.HeadRMSNorm(16, eps=1e-5)
    for x in (torch.randn(2, 3, 16), torch.randn(2, 3, 16, dtype=torch.float64)):
        assert torch.equal(made(x), F.rms_norm(x, (16,), made.weight.to(x.dtype), 1e-5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_module_takes_the_kernel_where_there_is_much_to_do(monkeypatch):
    made = norm.HeadRMSNorm(64, eps=1e-5).cuda()
    x = torch.randn(2, 2048, 16, 64, device="cuda", dtype=torch.bfloat16)
    ours = made(x)
    assert torch.equal(ours, HeadNorm.apply(x, made.weight, 1e-5))
    assert not made(x[:, :8]).isnan().any()
    monkeypatch.setattr(norm, "FEWEST_NUMBERS", 2**60)
    torch.testing.assert_close(ours, made(x), rtol=2**-6, atol=2**-6)


def test_it_starts_on_the_device_of_its_tensors(monkeypatch):
    """Which need not be the current one: layers of a model may lie on several."""
    inside, outside = [], []

    @contextmanager
    def entered(x):
        inside.append(x)
        yield
        inside.pop()

    def launched(*arguments, **options):
        outside.append(not inside)
        return launch(*arguments, **options)

    launch = head_norm.cached_call
    monkeypatch.setattr(head_norm, "on_device", entered)
    monkeypatch.setattr(head_norm, "cached_call", launched)
    x, weight = torch.randn(1, 4, 2, 16, device=DEVICE), torch.randn(16, device=DEVICE)
    results(lambda x, w: HeadNorm.apply(x, w, 1e-5), x, weight, x)
    assert outside == [False, False]
