"""Sinusoidal positions (Vaswani et al., 2017, arXiv:1706.03762, section 3.5):

P[i, 2c] = sin(i / base^(2c/C)),   P[i, 2c+1] = cos(i / base^(2c/C))
"""

import torch
from torch import Tensor

from cosformer.ops.checks import positive
from cosformer.positions.base import Position
from cosformer.positions.registry import register


def waves(positions: Tensor, width: int, base: float) -> Tensor:
    """The angles i / base^(2c/width) for c = 0 .. width/2 - 1: [..., width/2], float64.

    Computed at each call and never stored: a buffer that is not saved comes back from a model built on
    the meta device as uninitialised memory, and float32 angles are coarse at large positions.
    """
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    c = torch.arange(0, width, 2, device=positions.device, dtype=dtype)
    return positions[..., None].to(dtype) * base ** (-c / width)


@register("sinusoidal")
class SinusoidalPosition(Position):
    """Adds the paper's table, computed for the positions of the call.

    Args:
        base: the longest wave is 2 pi base.
    """

    def __init__(self, *, base: float = 10_000.0):
        super().__init__()
        self.base = positive("base", base)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        width = x.shape[-1]
        angle = waves(positions, width, self.base)
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]
        return x + table.to(x.dtype)
