"""How tensors must be aligned for bfloat16 kernels. Needs no GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.gpu.padding import padded, widen, with_aligned_rows


def test_head_sizes():
    sizes = [padded(n, torch.bfloat16) for n in (8, 16, 17, 32, 33, 40, 64, 80, 100, 250, 256)]
    assert sizes == [16, 16, 32, 32, 48, 48, 64, 80, 112, 256, 256]
    assert padded(17, torch.float32) == padded(17, torch.float16) == 17


def test_zeros_go_behind():
    x = torch.ones(3, 2)
    assert widen(x, 4).tolist() == [[1, 1, 0, 0]] * 3
    assert widen(x, 3, 4).tolist() == [[1, 1, 0]] * 3 + [[0, 0, 0]]
    assert widen(x, 2, 3) is x
    assert widen(None, 5) is None


@pytest.mark.parametrize(
    ("x", "copied"),
    [
        (torch.zeros(2, 5, 3, 32, dtype=torch.bfloat16), False),
        (torch.zeros(2, 5, 3, 64, dtype=torch.bfloat16)[..., 16:48], False),
        (torch.zeros(2, 3, 5, 32, dtype=torch.bfloat16).transpose(1, 2), False),
        (torch.zeros(2, 5, 3, 64, dtype=torch.bfloat16)[..., 1:33], True),  # begins at an odd address
        (torch.zeros(2, 5, 3, 40, dtype=torch.bfloat16)[..., :32], True),  # rows at multiples of 8
        (torch.zeros(2, 5, 32, 3, dtype=torch.bfloat16).transpose(2, 3), True),  # gaps
        (torch.zeros(2, 5, 3, 40)[..., :32], False),  # float32 takes any rows
        (torch.zeros(2, 5, 32, 3).transpose(2, 3), True),
    ],
    ids=["whole", "columns", "transposed", "odd", "eights", "gaps", "float32", "float32 gaps"],
)
def test_rows_at_multiples_of_16(x, copied):
    y = with_aligned_rows(x)
    assert (y is not x) == copied
    assert torch.equal(y, x)
    if copied:
        assert y.is_contiguous()
