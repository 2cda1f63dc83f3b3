"""What every mechanism promises about length: its cost, and that padding behind a text does not count."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cosformer import attention
from cosformer.attention.base import with_positions
from tests.attention.zoo import both_ways, build, close, having, variations

# Growth allowed from 1,024 to 4,096 tokens: the exponent, and a little for what is constant or logarithmic.
EXPONENTS = {"linear": 1.1, "log-linear": 1.15, "length^1.5": 1.55}


class Sizes(TorchDispatchMode):
    """The elements of the largest tensor that any operation makes, and of all of them together."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and not func.is_view]
        if "expand" not in func.name():
            self.largest = max([self.largest, *(x.numel() for x in made)])
            self.total += sum(x.numel() for x in made)
        return out


def work(case, length, causal):
    """Forward and backward together."""
    cost = attention.traits(case[0], **case[1]).cost
    # A stride is chosen for the length; whatever else depends on max_length is the model's, and stays.
    sizes = {"max_length": length if cost == "length^1.5" else 4096, "horizon": 4096}
    # So wide that a state weighs as much as its chunk: what grows with their number squared would show.
    run = build(case, num_heads=1, num_kv_heads=1, head_dim=64, **sizes)
    inputs = [torch.randn(1, length, 1, 64, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    with FlopCounterMode(display=False) as flops, Sizes() as sizes:
        run(*inputs, causal=causal).sum().backward()
    return {
        "operations of products": flops.get_total_flops(),
        "elements of the largest tensor": sizes.largest,
        "elements of all tensors": sizes.total,
    }


def subquadratic():
    """Every mechanism that claims to be, as it is by default, in each of its kinds, and with a window, both
    ways."""
    for name in attention.names():
        kinds = [x for x in variations(name) if x and all(isinstance(value, str) for value in x.values())]
        if "windows" in attention.parameters(name):
            kinds += [{"windows": (window,)} for window in (9, 64)]
        for parameters in [{}, *kinds]:
            traits = attention.traits(name, **parameters)
            for causal in (True, False) if traits.cost != "quadratic" else ():
                if traits.causal if causal else traits.bidirectional:
                    words = [name, *map(str, parameters.values()), "causal" if causal else "both"]
                    yield pytest.param((name, parameters), causal, id="-".join(words))


@pytest.mark.parametrize(("case", "causal"), list(subquadratic()))
def test_the_cost_is_the_one_claimed(case, causal):
    allowed = EXPONENTS[attention.traits(case[0], **case[1]).cost]
    short, long = work(case, 1024, causal), work(case, 4096, causal)
    for what in short:
        if short[what]:
            assert math.log(long[what] / short[what], 4) < allowed, what


@both_ways(key_mask=True)
def test_padding_behind_a_text_does_not_count(case, causal):
    run = build(case)
    q, k, v = (torch.randn(2, 120, 4, 16, dtype=torch.float64) for _ in range(3))
    real = torch.arange(120) < torch.tensor([[70], [120]])
    padded = run(q, k, v, causal=causal, key_mask=real)
    close(padded[:1, :70], run(q[:1, :70], k[:1, :70], v[:1, :70], causal=causal))


@having(recurrent=True, causal=True, key_mask=True)
def test_a_padded_beginning_goes_on_as_it_does_alone(case):
    """The padding of a row has no position: the next token stands behind the last real one."""
    run = build(case)
    q, k, v = (torch.randn(2, 90, 4, 16, dtype=torch.float64) for _ in range(3))
    lengths = torch.tensor([35, 60])
    _, state = run(q[:, :60], k[:, :60], v[:, :60], causal=True, lengths=lengths, return_state=True)
    assert torch.equal(state.positions, lengths)
    out = run(q[:, 60:], k[:, 60:], v[:, 60:], causal=True, state=with_positions(state, lengths, 60))
    for row, n in enumerate((35, 60)):
        own = [torch.cat([x[row : row + 1, :n], x[row : row + 1, 60:]], 1) for x in (q, k, v)]
        close(out[row : row + 1], run(*own, causal=True)[:, n:])


@both_ways()
def test_half_precision_is_near(case, causal):
    run = build(case).bfloat16()
    qkv = [torch.randn(2, 40, 4, 16).bfloat16() for _ in range(3)]
    out = run(*qkv, causal=causal)
    wide = run.float()(*(x.float() for x in qkv), causal=causal)
    assert out.dtype == torch.bfloat16
    assert (out.float() - wide).norm() < 0.05 * wide.norm()
