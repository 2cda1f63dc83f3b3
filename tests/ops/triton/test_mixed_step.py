"""A step of both kinds of heads in one launch, against plain operations in float64 and, token by token,
against the whole text at once: on a GPU where there is one, else in Triton's interpreter."""

import dataclasses

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import decode_step
from cosformer.ops.args import AttentionArgs
from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.windows.step import step_entries
from cosformer.ops.triton.stepping import step
from cosformer.ops.windows import fits_step
from tests.ops.triton.window_cases import DEVICE

CALLS = {
    "both kinds": {"windows": (2, 4, 40, None, 16, 17, None, 1), "batch": 3},
    "grouped, mask": {"windows": (1, 2, None, 100, 5), "group": 3, "d": 24, "dv": 40, "masked": True},
    "every head a window": {"windows": (3, 16), "dtype": torch.float16, "masked": True},
    "only its own position": {"windows": (1, 1)},
    "no small ones": {"windows": (70, None), "dv": 128},
    "from a table": {"windows": (2,) * 13 + (None,) * 3 + (20,), "group": 2},
    "plain heads apart": {"windows": (None, None, 20, None, 3, None, None), "masked": True},
    "wide windows": {"windows": (576, None, 320), "d": 64, "dv": 64, "batch": 1},
    "wide heads": {"windows": (70, None, 8, 4), "d": 256, "dv": 200},
    "wide heads, grouped": {"windows": (33, 2, None), "d": 200, "dv": 256, "group": 2},
}


class Steps:
    """The kernel's state beside one in float64 on the CPU, which plain operations update."""

    def __init__(self, windows, batch, d, dv, dtype, horizon):
        made = {"horizon": horizon, "windows": windows, "input_dtype": dtype, "device": DEVICE}
        self.state = CosformerState.zeros(batch, len(windows), d, dv, **made)
        self.of_heads = tuple(w or 0 for w in windows)

    def begin(self, position):
        """As after many tokens."""
        s = self.state
        for x in (s.numerator, s.denominator, s.keys, s.values):
            x.copy_(torch.rand(x.shape))
        s.positions.fill_(position)

    def twin(self):
        return self.state.clone().to("cpu", torch.float64)

    def __call__(self, q, k, v, mask):
        s = self.state
        args = AttentionArgs(
            q, k, v, mask, None, s.numerator, s.denominator, s.positions, True, 0, s.horizon, 1e-6, True,
            False, s.keys, s.values, self.of_heads,
        )  # fmt: skip
        return step(args, advance=True)


@pytest.mark.parametrize("call", CALLS)
def test_as_plain_operations(call):
    """Three tokens, the second of the first row with NaN."""
    options = {"batch": 2, "group": 1, "d": 16, "dv": 16, "dtype": torch.float32, "masked": False}
    windows, batch, group, d, dv, dtype, masked = (
        (options | CALLS[call])[n] for n in ("windows", "batch", "group", "d", "dv", "dtype", "masked")
    )
    steps, heads = Steps(windows, batch, d, dv, dtype, 2e6), len(windows)
    steps.begin(1_000_000)
    twin, bound = steps.twin(), 2e-3 if dtype == torch.float16 else 1e-5
    for t in range(3):
        q, k, v = (torch.randn(batch, 1, n, m) for n, m in ((heads * group, d), (heads, d), (heads, dv)))
        mask = torch.rand(batch, 1) > 0.3 if masked else None
        if t == 1:
            k[0, 0, -1, 1], v[0, 0, 0, 0] = torch.nan, torch.nan
        q, k, v = (x.to(dtype) for x in (q, k, v))
        expected, twin = decode_step(q.double(), k.double(), v.double(), twin, key_mask=mask)
        found = steps(*(None if x is None else x.to(DEVICE) for x in (q, k, v, mask)))
        torch.testing.assert_close(found.cpu().double(), expected, rtol=bound, atol=bound, equal_nan=True)
    mine = steps.twin()
    for name in ("numerator", "denominator"):
        close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
        torch.testing.assert_close(getattr(mine, name), getattr(twin, name), **close)
    for name in ("keys", "values", "positions"):
        exact = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(getattr(mine, name), getattr(twin, name), **exact)


@pytest.mark.parametrize(
    ("group", "dtype"),
    [pytest.param(3, torch.float32, marks=pytest.mark.thorough), (1, torch.float16)],
    ids=str,
)
def test_token_by_token_as_all_at_once(group, dtype):
    """The state holds the last W - 1 keys and values of each head, bit for bit. Up to three tiles; what is
    masked holds NaN."""
    windows, batch, length, d, dv = (1, 2, None, 40, 5), 2, 44, 24, 200
    q = torch.randn(batch, length, 5 * group, d).to(dtype)
    k, v = (torch.randn(batch, length, 5, n).to(dtype) for n in (d, dv))
    mask = torch.rand(batch, length) < 0.7
    mask[:, 5:30] = False
    k[~mask], v[~mask] = torch.nan, torch.nan
    whole, after = cosformer_attention(
        q.double(), k.double(), v.double(), causal=True, horizon=100, windows=windows, key_mask=mask,
        return_state=True, backend="reference",
    )  # fmt: skip
    steps, bound = Steps(windows, batch, d, dv, dtype, 100), 2e-3 if dtype == torch.float16 else 1e-5
    for t in range(length):
        found = steps(*(x[:, t : t + 1].to(DEVICE) for x in (q, k, v, mask)))
        torch.testing.assert_close(found.cpu().double(), whole[:, t : t + 1], rtol=bound, atol=bound)
    mine = steps.twin()
    assert torch.equal(mine.keys, after.keys)
    assert torch.equal(mine.values, after.values)


def test_a_state_of_one_head_whose_stride_says_nothing():
    """A tensor is contiguous whatever the stride of its only head is."""
    steps = Steps((None, 5), 3, 16, 16, torch.float32, 100)
    steps.begin(7)
    s, twin, turned = steps.state, steps.twin(), {}
    for name in ("numerator", "denominator"):
        x = getattr(s, name)
        turned[name] = x.new_empty(1, 3, *x.shape[2:]).transpose(0, 1).copy_(x)
        assert turned[name].is_contiguous()
        assert turned[name].stride(1) != x.stride(1)
    given = State.of(turned["numerator"], turned["denominator"])
    assert (given.s_stride, given.z_stride) == (2 * 16 * 16, 2 * 16)
    steps.state = dataclasses.replace(s, **turned)
    q, k, v = (torch.randn(3, 1, 2, 16) for _ in range(3))
    expected, twin = decode_step(q.double(), k.double(), v.double(), twin)
    found = steps(*(x.to(DEVICE) for x in (q, k, v)), None)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(steps.twin().numerator, twin.numerator, rtol=1e-5, atol=1e-5)


def test_no_rows_and_rows_apart():
    steps = Steps((2, None), 1, 16, 16, torch.float32, 100)
    steps.state = steps.state.select(torch.tensor([], dtype=torch.int64, device=DEVICE))
    nothing = torch.zeros(0, 1, 2, 16, device=DEVICE)
    assert steps(nothing, nothing, nothing, None).shape == (0, 1, 2, 16)
    steps = Steps((2, None), 2, 16, 16, torch.float32, 100)
    apart = torch.zeros(4, dtype=torch.int64, device=DEVICE)[::2]
    steps.state = dataclasses.replace(steps.state, positions=apart)
    q = torch.randn(2, 1, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"must be contiguous; call state\.clone\(\) first"):
        steps(q, q, q, None)
    steps.state = steps.state.clone()
    steps(q, q, q, None)
    assert steps.state.positions.tolist() == [1, 1]


def test_what_the_numbers_of_a_head_hold():
    """Up to here the kernel serves a step, from there on plain operations."""
    assert not any(map(fits_step, ((2,) * 4097, (2**24,), (2**24 - 64,) * 5)))
    windows = (*(2**24 - 64,) * 3, *(1,) * 4091, 5, 0)
    assert fits_step(windows)
    found = step_entries(windows, torch.device("cpu"))
    assert (found.plain, found.longs, found.smalls) == (1, 3, 4092)
    assert found.table.tolist() == list(found.packed)
    unpacked = [(e & 0xFFF, e >> 12 & 0xFFFFFF, e >> 36 & 0x3FFFFFF, e >> 62) for e in found.packed]
    assert unpacked[:2] == [(4095, 0, 3 * (2**24 - 65) + 4, 1), (0, 2**24 - 64, 0, 1)]
    assert unpacked[4] == (4094, 5, 3 * (2**24 - 65), 1)
