"""What bfloat16 kernels need of a tensor: rows that begin at multiples of 16 elements.

Other rows are loaded two bytes at a time, and on an H200 with Triton 3.6 chunk_attention over such rows
(heads of 17 and of 40) gave wrong gradients, and once an illegal access; the cause is not known. Heads are
padded with zeros, which add nothing to any sum: up to 32 to a power of two, above to a multiple of 16.
Results are narrowed again. Tensors with other strides are copied.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def padded(size: int, dtype: torch.dtype) -> int:
    """The head size that kernels get."""
    if dtype != torch.bfloat16:
        return size
    return max(16, 1 << (size - 1).bit_length()) if size <= 32 else -(-size // 16) * 16


def widen(x: Any, last: int, before: int | None = None) -> Any:
    """x, or None, with zeros up to `last` in its last dimension, and up to `before` in the one before."""
    if x is None or (x.shape[-1] == last and (before is None or x.shape[-2] == before)):
        return x
    more = [0, last - x.shape[-1]]
    return pad(x, more if before is None else [*more, 0, before - x.shape[-2]])


def with_aligned_rows(x: Tensor) -> Tensor:
    """x [B, T, H, D], copied unless its last dimension is contiguous and, in bfloat16, every row begins at a
    multiple of 16 elements."""
    aligned = x.stride(-1) == 1
    if x.dtype == torch.bfloat16:
        strides = [s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1]
        aligned = aligned and x.data_ptr() % 16 == 0 and all(s % 16 == 0 for s in strides)
    return x if aligned else x.clone(memory_format=torch.contiguous_format)
