"""Head sizes that bfloat16 kernels take only with zeros behind them.

Below 32 a head is padded to a power of two, above to a multiple of 8: rows of other sizes do not begin
at multiples of 16 bytes, are read slowly, and Triton 3.6 has compiled walks over them (17 columns in a
block of 32) that read beyond their tiles. Zeros add nothing to any sum; what comes out is cut again.
"""

from typing import Any

import torch
from torch.nn.functional import pad


def padded(size: int, dtype: torch.dtype) -> int:
    """The head size the kernels are given."""
    if dtype != torch.bfloat16:
        return size
    return max(16, 1 << (size - 1).bit_length()) if size <= 32 else -(-size // 8) * 8


def widen(x: Any, last: int, before: int | None = None) -> Any:
    """x, or None, with zeros up to `last` in its last dimension, and up to `before` in the one before."""
    if x is None or (x.shape[-1] == last and (before is None or x.shape[-2] == before)):
        return x
    more = [0, last - x.shape[-1]]
    return pad(x, more if before is None else [*more, 0, before - x.shape[-2]])
