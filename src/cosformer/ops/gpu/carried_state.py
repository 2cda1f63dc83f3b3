"""States passed between kernels."""

from typing import NamedTuple

from torch import Tensor, contiguous_format


class State(NamedTuple):
    """S [2, D, Dv] and z [2, D] for every row (or split) and key head, and the strides between heads in
    elements."""

    s: Tensor
    z: Tensor
    s_stride: int
    z_stride: int

    @classmethod
    def of(cls, numerator: Tensor, denominator: Tensor) -> "State":
        """From the two tensors of a CosformerState."""
        s, z = _contiguous_and_aligned(numerator), _contiguous_and_aligned(denominator)
        # Not the strides: that of a single head may be anything in a tensor that counts as contiguous.
        d, dv = s.shape[-2:]
        return cls(s, z, 2 * d * dv, 2 * d)

    @classmethod
    def given(cls, numerator: Tensor | None, denominator: Tensor | None) -> "State | None":
        """As `of`; None where there is no state."""
        return None if numerator is None or denominator is None else cls.of(numerator, denominator)

    @classmethod
    def from_packed(cls, packed: Tensor, d: int) -> "State":
        """From one tensor [rows, Hk, 2 D (Dv + 1)] that holds S followed by z."""
        size = packed.shape[-1]
        return cls(packed, packed.view(-1)[size - 2 * d :], size, size)


def _contiguous_and_aligned(x: Tensor) -> Tensor:
    """Kernels are compiled for addresses that are multiples of 16 bytes."""
    return x if x.is_contiguous() and x.data_ptr() % 16 == 0 else x.clone(memory_format=contiguous_format)


NO_STATE = (None, None, 0, 0)
