"""States on their way between kernels."""

from typing import NamedTuple

from torch import Tensor, contiguous_format


class State(NamedTuple):
    """Numerators [2, D, Dv] and denominators [2, D] of all rows and key heads (or of all pieces and key
    heads), and how far apart these are."""

    s: Tensor
    z: Tensor
    s_stride: int
    z_stride: int

    @classmethod
    def of(cls, numerator: Tensor, denominator: Tensor) -> "State":
        """From the two tensors of a CosformerState."""
        s, z = _laid_out(numerator), _laid_out(denominator)
        return cls(s, z, s.stride(1), z.stride(1))

    @classmethod
    def given(cls, numerator: Tensor | None, denominator: Tensor | None) -> "State | None":
        return None if numerator is None or denominator is None else cls.of(numerator, denominator)

    @classmethod
    def within(cls, together: Tensor, d: int) -> "State":
        """From a tensor [rows, Hk, 2 D (Dv + 1)] that holds both, one behind the other."""
        size = together.shape[-1]
        return cls(together, together.view(-1)[size - 2 * d :], size, size)


def _laid_out(x: Tensor) -> Tensor:
    """Without gaps, at an address that kernels are compiled for."""
    return x if x.is_contiguous() and x.data_ptr() % 16 == 0 else x.clone(memory_format=contiguous_format)


NOTHING = (None, None, 0, 0)
