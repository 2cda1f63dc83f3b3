"""The core of the linear attentions: its memory, its precision, and what it refuses."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer import attention
from cosformer.attention.linear_core import CHUNK, LinearState


class Largest(TorchDispatchMode):
    """The most numbers that any one tensor had."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


def qkv(length, dim=64, dtype=torch.float32, heads=1):
    return [torch.randn(1, length, heads, dim, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize(
    ("name", "parameters", "causal"),
    [("relu", {}, True), ("relu", {}, False), ("rfa", {"num_kv_heads": 1, "gate": True}, True)],
)
def test_no_tensor_is_quadratic_in_the_length_or_in_the_head(name, parameters, causal):
    run, sizes = attention.build(name, **parameters), []
    for length in (1024, 4096):
        inputs = qkv(length)
        with Largest() as largest:
            torch.autograd.grad(run(*inputs, causal=causal).sum(), inputs)
        sizes.append(largest.numel)
    features = run.feature_dim(64)
    assert sizes[1] <= 4 * sizes[0], "linear in the length"
    assert sizes[1] <= 4096 * max(CHUNK, features), "and no T x F x Dv, which would be 64 times this"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_wide_whatever_the_inputs_are(dtype):
    """A thousand tokens: the error is that of rounding the output, not that of summing in a narrow type."""
    run, inputs = attention.build("linear"), qkv(1000, dim=16, dtype=dtype)
    out, state = run(*inputs, causal=True, return_state=True)
    exact = run(*(x.double() for x in inputs), causal=True)
    assert out.dtype == dtype
    assert state.numerator.dtype == torch.float32
    assert (out - exact).abs().max() <= 2 * torch.finfo(dtype).eps * exact.abs().max()
    with torch.autocast("cpu", torch.bfloat16):
        under = run(*inputs, causal=True)
    assert torch.equal(under, out)


def test_states_stay_wide_and_move():
    run, (q, k, v) = attention.build("relu"), qkv(5)
    _, state = run(q, k, v, causal=True, return_state=True)
    with pytest.raises(ValueError, match=r"LinearState.to: a state cannot become torch.float16"):
        state.to(torch.float16)
    assert state.to(torch.float64).numerator.dtype == torch.float64
    assert state.to("meta").positions.device.type == "meta"
    assert state.batch == 1
    assert state.nbytes == 4 * 64 * 65 + 8
    assert not state.detach().numerator.requires_grad
    with pytest.raises(ValueError, match="times must be a positive int"):
        state.repeat(0)


def test_refusals():
    run, (q, k, v) = attention.build("relu"), qkv(6)
    _, state = run(q, k, v, causal=True, return_state=True)
    with pytest.raises(
        ValueError, match="query_offset must be at least -1 where causal queries meet a state"
    ):
        run(q, k, v, causal=True, state=state, query_offset=-2)
    run(q, k, v, causal=True, state=state, query_offset=-1)
    with pytest.raises(ValueError, match="cu_seqlens must end at the length of the row, 6"):
        run(q, k, v, cu_seqlens=torch.tensor([0, 5]))


def test_queries_before_every_key_see_nothing():
    run, (q, k, v) = attention.build("linear"), qkv(6)
    out = run(q, k, v, causal=True, query_offset=-2)
    assert (out[:, :2] == 0).all()
    torch.testing.assert_close(out[:, 2:], run(q[:, 2:], k, v, causal=True, query_offset=0))


def test_the_state_before_the_first_token_is_empty():
    run, (q, k, v) = attention.build("relu"), qkv(4)
    empty = LinearState.zeros(k, v)
    assert torch.equal(run(q, k, v, causal=True, state=empty), run(q, k, v, causal=True))


@pytest.mark.parametrize("name", ["identity", "leaky_relu"])
def test_weights_of_either_sign_are_never_divided_by_almost_nothing(name):
    """A sum of weights near zero: the output is bounded by the weighted values themselves."""
    k = torch.tensor([[1.0, 0.0], [-1.0, 1e-4]]).view(1, 2, 1, 2)
    q, v = torch.tensor([1.0, 1.0]).view(1, 1, 1, 2), torch.tensor([[5.0], [-5.0]]).view(1, 2, 1, 1)
    parameters = {"slope": 1.0} if name == "leaky_relu" else {}
    run = attention.build(name, **parameters)
    assert run(q, k, v).abs().item() == pytest.approx(10, rel=1e-3)
    assert attention.build(name, eps=1e-6, **parameters)(q, k, v).abs().item() > 1e4
