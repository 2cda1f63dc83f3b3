"""What the backend for Hopper says it cannot do; asked on any machine."""

import pytest
import torch

from cosformer import CosformerState, cosformer_attention
from cosformer.ops.args import AttentionArgs
from cosformer.ops.hopper import support


def reasons(*, q=(1, 100, 2, 64), k=None, v=None, dtype=torch.bfloat16, causal=True, horizon=None, offset=0,
            packed=False, seen=None):  # fmt: skip
    """All reasons but the first, which on any machine is that the tensors are not on a GPU."""
    k = k or q
    q, k, v = (torch.empty(shape, dtype=dtype, device="meta") for shape in (q, k, v or k))
    cu_seqlens = torch.tensor([0, q.shape[1]]) if packed else None
    args = AttentionArgs(
        q, k, v, None, cu_seqlens, None, None, None, causal, offset, horizon, 1e-6, False, False
    )
    first, *others = support.not_supported_reasons(args, seen)
    assert first == "the tensors are on meta, and it runs on Hopper GPUs"
    return others


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"causal": False},
        {"q": (1, 100, 4, 96), "k": (1, 100, 2, 96), "v": (1, 100, 2, 8)},
        {"causal": False, "k": (1, 300, 2, 64)},
        {"causal": False, "k": (1, 300, 2, 64), "offset": 50, "horizon": 299.0},
        {"seen": 1000, "horizon": 1099.0},
        {"causal": False, "offset": -20, "horizon": 130.0},
        {"causal": False, "packed": True, "horizon": 10.0},
    ],
    ids=str,
)
def test_what_it_serves(call):
    assert reasons(**call) == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"dtype": torch.float16}, "its sums would overflow in torch.float16"),
        ({"q": (1, 100, 2, 136), "v": (1, 100, 2, 64)}, "D must be a multiple of 8 up to 128, and is 136"),
        ({"v": (1, 100, 2, 12)}, "Dv must be a multiple of 8 up to 128, and is 12"),
        ({"k": (1, 0, 2, 64), "causal": False}, "there are no keys"),
        ({"q": (1, 50, 2, 64), "k": (1, 100, 2, 64), "offset": 50}, "causal queries must begin and end"),
        ({"q": (1, 1, 2, 64), "seen": 30, "horizon": 64.0}, "a step of decoding"),
        ({"causal": False, "seen": 30, "horizon": 100.0}, "every position must lie between"),
        ({"causal": False, "seen": 30, "offset": -31, "horizon": 500.0}, "every position must lie between"),
        ({"causal": False, "k": (1, 5, 2, 64), "offset": -60, "horizon": 70.0}, "every position must lie"),
    ],
    ids=str,
)
def test_what_it_leaves_to_others(call, reason):
    (found,) = reasons(**call)
    assert reason in found


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.5.1", "3.5.1 is installed"),
        ("3.10.0", "tried with Triton 3.6 and 3.7"),
        (None, "is not installed"),
    ],
)
def test_versions_of_triton_it_was_not_tried_with(version, words):
    assert words in support._wrong_triton(version)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1+git"])
def test_versions_of_triton_it_was_tried_with(version):
    assert support._wrong_triton(version) is None


def test_named_it_raises_with_its_reasons():
    q = torch.randn(1, 10, 1, 64)
    with pytest.raises(ValueError, match="hopper: "):
        cosformer_attention(q, q, q, backend="hopper")
    state = CosformerState.zeros(1, 1, 64, horizon=40)
    cosformer_attention(q, q, q, state=state, horizon=40, causal=True)  # "auto" finds another
