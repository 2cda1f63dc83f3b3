"""What bfloat16 kernels need of a tensor: rows that begin at multiples of 16 numbers.

Rows that do not are read two bytes at a time, and on an H200 with Triton 3.6 walks over such rows (heads of
17 and of 40) gave wrong gradients, and once an illegal access; why is not established. Heads are padded with
zeros, which add nothing to any sum, below 32 to a power of two, above to a multiple of 16, and what comes
out is cut again; tensors that lie otherwise are copied.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def padded(size: int, dtype: torch.dtype) -> int:
    """The head size the kernels are given."""
    if dtype != torch.bfloat16:
        return size
    return max(16, 1 << (size - 1).bit_length()) if size <= 32 else -(-size // 16) * 16


def widen(x: Any, last: int, before: int | None = None) -> Any:
    """x, or None, with zeros up to `last` in its last dimension, and up to `before` in the one before."""
    if x is None or (x.shape[-1] == last and (before is None or x.shape[-2] == before)):
        return x
    more = [0, last - x.shape[-1]]
    return pad(x, more if before is None else [*more, 0, before - x.shape[-2]])


def laid_out(x: Tensor) -> Tensor:
    """x [B, T, H, D] as kernels can read it: its last dimension without gaps and, if it is bfloat16, every
    row at a multiple of 16."""
    fits = x.stride(-1) == 1
    if x.dtype == torch.bfloat16:
        strides = [s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1]
        fits = fits and x.data_ptr() % 16 == 0 and all(s % 16 == 0 for s in strides)
    return x if fits else x.clone(memory_format=torch.contiguous_format)
