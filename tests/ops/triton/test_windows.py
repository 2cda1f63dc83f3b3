"""The kernels of heads with a window against the equation: on a GPU where there is one, else in Triton's
interpreter. Rows are compared one by one."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.gpu.windows import launch
from tests.ops.triton.window_cases import Call, assert_right


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("windows", [(1, 2, 0, 3), (8, 63), (0, 64, 65), (200,), (256, 0)], ids=str)
def test_narrow_windows(windows, causal):
    assert_right(Call(windows, causal=causal))


KINDS = {
    "grouped": {"group": 2, "batch": 2, "dv": 24},
    "mask": {"masked": True, "batch": 2},
    "documents": {"documents": (0, 1, 3, 0, 66, 40, 0, 39, 1, 0)},
    "mask+documents+grouped": {"masked": True, "documents": (70, 0, 80), "group": 3, "d": 24},
    "later keys": {"tq": 90, "tk": 150, "offset": 37},
    "later queries": {"tq": 150, "tk": 70, "offset": -20, "masked": True},
    "queries alone": {"tq": 40, "tk": 0},
    "keys alone": {"tq": 0, "tk": 40},
    "far apart": {"tq": 70, "tk": 70, "offset": 300},
}


@pytest.mark.parametrize(
    "causal", [pytest.param(True, marks=pytest.mark.thorough), False], ids=["causal", "bidirectional"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_with_narrow_windows(kind, causal):
    assert_right(Call((3, 0, 64, 70), causal=causal, **KINDS[kind]))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize(
    "windows", [(320,), pytest.param((0, 512, 8, 320), marks=pytest.mark.thorough)], ids=str
)
def test_wide_windows(windows, causal):
    """In several segments, the first of which no window fills."""
    assert_right(Call(windows, tq=450, causal=causal))


WIDE = {n: KINDS[n] for n in ("grouped", "mask", "queries alone", "keys alone", "far apart")} | {
    "mask+documents+grouped": {"masked": True, "documents": (70, 0, 80), "group": 3, "d": 24},
    "documents": {"tq": 560, "documents": (0, 1, 380, 0, 65, 40, 74, 0)},
    "later keys": {"tq": 390, "tk": 450, "offset": 37},
    "later queries": {"tq": 450, "tk": 380, "offset": -20, "masked": True},
}


@pytest.mark.parametrize(
    "causal", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["causal", "bidirectional"]
)
@pytest.mark.parametrize("kind", WIDE)
def test_every_kind_of_call_with_wide_windows(kind, causal):
    assert_right(Call((320, 0, 2), causal=causal, **WIDE[kind]))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_segments_as_long_as_the_window(causal, monkeypatch):
    monkeypatch.setattr(launch, "sm_count", lambda device: 1)
    assert_right(Call((320,), tq=400, causal=causal))


@pytest.mark.parametrize("dims", [(64, 64), (17, 40), (128, 128)], ids=str)
def test_head_sizes(dims):
    assert_right(Call((5, 320), tq=100, d=dims[0], dv=dims[1]))


def test_half_precision():
    call = Call((5, 70), tq=100, d=32, dv=32, dtype=torch.float16)
    assert_right(call, bound=2e-3)


def test_strided_inputs():
    call = Call((5, 320), d=16, dv=16, batch=2)
    x = call.tensors()
    found = call.run(x, None)
    apart = {n: t.transpose(1, 2).contiguous().transpose(1, 2) for n, t in x.items()}
    apart["q"], apart["k"], apart["v"] = torch.cat([x[n] for n in "qkv"], -1).chunk(3, -1)
    for name, made in call.run(apart, None).items():
        assert torch.equal(made, found[name]), name


def test_repeated_calls_agree_to_the_bit():
    call = Call((1, 30, 320), group=2)
    x = call.tensors()
    first, second = call.run(x, None), call.run(x, None)
    assert all(torch.equal(first[n], second[n]) for n in first)
