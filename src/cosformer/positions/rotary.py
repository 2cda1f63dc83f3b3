"""Rotary positions (Su et al., RoFormer, 2021, arXiv:2104.09864, equation 34).

The pair (x_c, x_{c+D/2}) of a head is rotated by the angle i / base^(2c/D): the product of a query and a
key then depends on the distance between them. The pairing of halves is that of Llama.
"""

import torch
from torch import Tensor

from cosformer.ops.checks import positive, positive_int
from cosformer.positions.base import Position, Rotate
from cosformer.positions.registry import register
from cosformer.positions.sinusoidal import waves


@register("rotary")
class RotaryPosition(Position):
    """Turns the heads of queries and keys.

    Args:
        head_dim: size of a head, an even number.
        base: the slowest pair turns once in about 2 pi base positions.
    """

    def __init__(self, *, head_dim: int, base: float = 10_000.0):
        super().__init__()
        if positive_int("head_dim", head_dim) % 2 != 0:
            raise ValueError(f"head_dim must be even for rotary positions, but got {head_dim}.")
        self.base = positive("base", base)
        self.head_dim = head_dim

    def rotation(self, positions: Tensor) -> Rotate:
        angle = waves(positions, self.head_dim, self.base)[:, :, None]  # (B, T, 1, D/2)
        cos, sin = angle.cos(), angle.sin()
        wide = (torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))
        narrow = (wide[0].float(), wide[1].float())  # made once, and not in every layer

        def rotate(x: Tensor, *, key: bool = False) -> Tensor:
            c, s = wide if x.dtype == torch.float64 else narrow
            return torch.addcmul(x * c.to(x.dtype), x.roll(self.head_dim // 2, -1), s.to(x.dtype))

        return rotate
