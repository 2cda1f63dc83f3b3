"""States on their way between kernels."""

from typing import NamedTuple

from torch import Tensor


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
        s, z = numerator.contiguous(), denominator.contiguous()
        return cls(s, z, s.stride(1), z.stride(1))

    @classmethod
    def within(cls, together: Tensor, d: int) -> "State":
        """From a tensor [rows, Hk, 2 D (Dv + 1)] that holds both, one behind the other."""
        size = together.shape[-1]
        return cls(together, together.view(-1)[size - 2 * d :], size, size)


NOTHING = (None, None, 0, 0)
