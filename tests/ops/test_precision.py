"""Half, brain and single precision: at most twice the error of the reference in the same type."""

import pytest
import torch

from cosformer import cosformer_attention

from .cases import is_as_good_as, is_close, make, norm_distance

KINDS = {
    "causal": {"causal": True},
    "bidirectional": {"causal": False},
    "mask": {"causal": True, "mask": True},
    "packed": {"causal": False, "documents": 4},
    "state": {"causal": True, "state": True},
    "cross": {"causal": False, "tk": 333},
    "grouped": {"causal": True, "heads": 4, "kv_heads": 2},
    "narrow": {"causal": True, "heads": 4, "windows": (2, 4, 65, None)},
    "wide": {"causal": False, "heads": 3, "windows": (256, 320, 1024)},
    "windows, packed": {"causal": True, "heads": 3, "windows": (7, 512, None), "documents": 4},
    "windows, state": {"causal": True, "heads": 4, "kv_heads": 2, "windows": (64, 448), "state": True},
}
# What one rounding of the result costs: nothing can be closer than that to float64.
FLOOR = {torch.float32: 2**-24, torch.bfloat16: 2**-9, torch.float16: 2**-12}


@pytest.mark.parametrize("dtype", FLOOR, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [63, 500, 1000])
def test_error_at_most_twice_the_references(length, kind, dtype):
    case = make(batch=1 if length == 1000 else 2, tq=length, dim=32, **KINDS[kind]).to(dtype)
    exact = case.to(torch.float64).results("reference")
    ours, plain = case.results("chunked"), case.results("reference")
    for name, truth in exact.items():
        assert ours[name].isfinite().all(), name
        if plain[name].isfinite().all():  # plain half precision overflows now and then
            assert is_as_good_as(ours[name], plain[name], truth, FLOOR[dtype]), name


def test_ten_wrong_rows_of_many_are_seen():
    truth = torch.randn(1, 65536, 1, 16, dtype=torch.float64)
    plain = truth.bfloat16()
    wrong = plain.clone()
    wrong[:, -10:] = 0
    assert norm_distance(wrong, truth) < 2e-2, "a norm over everything does not see them"
    assert is_close(plain, truth, 5e-3)
    assert is_as_good_as(plain, plain, truth, 2**-9)
    assert not is_close(wrong, truth, 5e-3)
    assert not is_close(wrong, truth, 1e-2)
    assert not is_as_good_as(wrong, plain, truth, 2**-9)


def test_rows_out_of_range_hide_no_others():
    truth = torch.randn(50, 8, dtype=torch.float64)
    truth[3] = 1e6  # float16 ends at 65,504
    half = truth.half()
    assert is_as_good_as(half, half, truth, 2**-12)
    wrong = half.clone()
    wrong[7] = 0
    assert not is_as_good_as(wrong, half, truth, 2**-12)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_long_sums_do_not_drift(causal):
    """T = 65,536 in bfloat16: sums and denominators are as good at the end as at the start."""
    length = 65536
    q, k, v = (torch.randn(1, length, 1, 16, dtype=torch.bfloat16) for _ in range(3))
    v = v + 1  # a mean that must survive: random values alone would average to noise
    out = cosformer_attention(q, k, v, causal=causal, horizon=length)
    rows = torch.tensor([1, 100, 4095, 32768, 50000, 65535])
    for i in rows.tolist():
        n = i + 1 if causal else length
        exact = cosformer_attention(
            q[:, i : i + 1].double(), k[:, :n].double(), v[:, :n].double(), horizon=length, query_offset=i,
            backend="reference",
        )  # fmt: skip
        error = (out[:, i : i + 1].double() - exact).norm() / exact.norm()
        assert error <= 2e-2
