"""The step of one token inside a compiled graph: an op that overwrites the state it is given."""

import pytest
import torch

from cosformer import CosformerState
from cosformer.ops.args import AttentionArgs
from cosformer.ops.one_token import StepWeights, one_token
from cosformer.ops.triton.token_op import step_token

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("windows", [None, (3, None), (2, 2)], ids=str)
def test_in_a_graph_as_by_plain_operations(windows):
    """Kernels in Triton's interpreter where there is no GPU."""
    horizon = None if windows == (2, 2) else 32.0
    made = {"horizon": horizon, "windows": windows, "device": DEVICE}
    state = CosformerState.zeros(2, 2, 16, **made)
    twin = state.to("cpu").clone()
    of_heads = None if windows is None else tuple(w or 0 for w in windows)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v, state):
        args = AttentionArgs(
            q, k, v, None, None, state.numerator, state.denominator, state.positions, True, 0, state.horizon,
            1e-6, True, False, state.keys, state.values, of_heads,
        )  # fmt: skip
        out = step_token(args)
        state.positions.add_(1)
        return out * 1

    address = state.numerator.data_ptr()
    for _ in range(4):
        q = torch.randn(2, 1, 4, 16, device=DEVICE)
        k, v = (torch.randn(2, 1, 2, 16, device=DEVICE) for _ in range(2))
        expected = one_token(q.cpu(), k.cpu(), v.cpu(), twin, twin, StepWeights(twin.positions), 1e-6)
        twin.positions.add_(1)
        torch.testing.assert_close(step(q, k, v, state).cpu(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.numerator.cpu(), twin.numerator, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.denominator.cpu(), twin.denominator, rtol=1e-4, atol=1e-5)
        if windows is not None:
            torch.testing.assert_close(state.keys.cpu(), twin.keys)
            torch.testing.assert_close(state.values.cpu(), twin.values)
    assert state.numerator.data_ptr() == address
    assert state.positions.tolist() == [4, 4]
