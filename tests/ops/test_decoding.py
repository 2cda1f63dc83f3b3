"""decode_step: the operator, one token at a time, in place."""

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops import decode_step

GPU = torch.cuda.is_available()


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not GPU, reason="no GPU"))]
)
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_steps_equal_the_whole(device, masked):
    q = torch.randn(3, 20, 4, 16, device=device)
    k, v = (torch.randn(3, 20, 2, n, device=device) for n in (16, 24))
    mask = torch.rand(3, 20, device=device) > 0.3 if masked else None
    whole = cosformer_attention(q, k, v, causal=True, horizon=64, key_mask=mask)
    state = CosformerState.zeros(3, 2, 16, 24, horizon=64, device=device)
    memory = state.numerator.data_ptr()
    for t in range(20):
        step = slice(t, t + 1)
        out, state = decode_step(
            q[:, step], k[:, step], v[:, step], state, key_mask=None if mask is None else mask[:, step]
        )
        assert torch.allclose(out, whole[:, step], atol=2e-6)
    assert state.numerator.data_ptr() == memory
    assert state.seen == 20
    assert state.positions.tolist() == [20] * 3


def test_more_than_a_token_is_refused():
    q = k = v = torch.randn(1, 2, 1, 8)
    with pytest.raises(ValueError, match=r"one token a row, but got 2 queries and 2 keys; use"):
        decode_step(q, k, v, CosformerState.zeros(1, 1, 8, horizon=8))


def test_the_horizon_is_respected():
    q = k = v = torch.randn(1, 1, 1, 8)
    state = CosformerState.zeros(1, 1, 8, horizon=2)
    for _ in range(3):
        _, state = decode_step(q, k, v, state)
    with pytest.raises(ValueError, match="horizon"):
        decode_step(q, k, v, state)
