"""The kernels of heads with a window against the equation: on a GPU where there is one, else in Triton's
interpreter. Rows are compared one by one."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.gpu.windows import launch
from tests.ops.triton.window_cases import DEVICE, EPS, UNTOUCHED, Call, assert_right, rows_apart


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


@pytest.mark.parametrize(
    ("group", "dtype"),
    [pytest.param(3, torch.float32, marks=pytest.mark.thorough), (1, torch.float16)],
    ids=str,
)
def test_token_by_token_as_all_at_once(group, dtype):
    """The state holds the last W - 1 keys and values of each head, bit for bit. Up to three tiles."""
    call = Call((1, 2, 0, 40, 5), tq=44, batch=2, group=group, d=24, dv=200, masked=True, dtype=dtype)
    x, mask = call.tensors(), call.mask()
    table = launch.window_table(call.windows, x["q"].device)
    keys, values = (torch.zeros(2, table.places, n, dtype=dtype, device=DEVICE) for n in (24, 200))
    x["k"][~mask], x["v"][~mask] = torch.nan, torch.nan
    exact, scale = call.exact({n: t.nan_to_num() for n, t in x.items()}, mask)["out"]
    for t in range(call.tq):
        out = torch.full((2, 1, x["q"].shape[2], 200), UNTOUCHED, dtype=dtype, device=DEVICE)
        token = [x[n][:, t : t + 1] for n in "qkv"]
        launch.decode(*token, out, keys, values, table, mask[:, t : t + 1], EPS)
        for head, window in enumerate(call.windows):
            mine = slice(head * group, head * group + group)
            if window == 0:
                assert (out[:, :, mine] == UNTOUCHED).all()
            else:
                apart = rows_apart(out[:, 0, mine].cpu(), exact[:, t, mine], scale[:, t, mine])
                assert apart <= (1e-5 if dtype == torch.float32 else 2e-3)
    place = 0
    for head, window in enumerate(call.windows):
        for stored, name in ((keys, "k"), (values, "v")):
            real = x[name].masked_fill(~mask[..., None, None], 0)[:, call.tq - max(window, 1) + 1 :, head]
            assert torch.equal(stored[:, place : place + max(window, 1) - 1], real)
        place += max(window, 1) - 1
    assert place == table.places
