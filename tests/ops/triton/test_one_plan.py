"""Heads with and without windows in one call of the Triton backend, through the public function: one plan for
all heads where that is possible, else one for each kind."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.args import AttentionArgs
from cosformer.ops.gpu.windows import one_plan
from cosformer.ops.triton.stepping import step
from cosformer.ops.windows import check_windows
from tests.ops.cases import distance, make
from tests.ops.triton.window_cases import DEVICE

ONE = (3, 7, None, None)
EACH = (None, 3, None, 7)  # its heads without a window are no neighbours
CALLS = {
    "causal": {"windows": ONE, "causal": True},
    "bidirectional": {"windows": ONE, "mask": True},
    "grouped": {"windows": ONE, "heads": 8, "causal": True, "mask": True},
    "every head a window": {"windows": (3, 5, 9, 64), "causal": True},
    "apart": {"windows": EACH, "causal": True},
    "one token after a state": {"windows": ONE, "causal": True, "state": True, "return_state": True, "tq": 1},
    "apart, one token": {"windows": EACH, "causal": True, "state": True, "return_state": True, "tq": 1},
}


@pytest.mark.parametrize("kind", CALLS)
def test_all_heads_of_a_call(kind, monkeypatch):
    plans = []
    really = one_plan.forward
    monkeypatch.setattr(one_plan, "forward", lambda *call: plans.append(1) or really(*call))
    options = {"tq": 70, "heads": 4} | CALLS[kind]
    case = make(batch=2, dim=16, kv_heads=4, horizon=200, **options)
    exact = case.results("reference")
    ours = case.to(torch.float32).on(DEVICE).results("triton")
    for name, truth in exact.items():
        assert distance(ours[name], truth) <= 1e-5, name
    assert bool(plans) == (options["windows"] is not EACH and "state" not in options)


@pytest.mark.parametrize("windows", [ONE, EACH, (None, None, 5, 1)], ids=str)
def test_a_step_in_place(windows):
    """All heads write into one tensor, and the state is overwritten."""
    case = make(batch=3, dim=16, heads=8, kv_heads=4, tq=1, windows=windows, causal=True, state=True)
    case = case.to(torch.float32).on(DEVICE)
    expected, after = case.call("chunked")
    x = {name: tensor.clone() for name, tensor in case.tensors.items()}
    state = case.options["state"]
    args = AttentionArgs(
        x["q"], x["k"], x["v"], None, None, x["numerator"], x["denominator"], state.positions, True, 0,
        state.horizon, 1e-6, True, False, x["keys"], x["values"], check_windows(windows, 4),
    )  # fmt: skip
    assert distance(step(args), expected) <= 1e-5
    for name in ("numerator", "denominator", "keys", "values"):
        assert distance(x[name], getattr(after, name)) <= 1e-5, name
