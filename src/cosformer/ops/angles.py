"""The angles (pi/2) i / M of the cosine re-weighting, formed in float64 (float32 on Apple GPUs, which
have no other; the CUDA kernels form their own).

Casting a position or an angle to the inputs' own type first is what makes the authors' module
lose the cosine in half precision; float64 costs nothing here, there is one angle per position.
"""

import math

import torch
from torch import Tensor


def length_or(horizon: float | None, q: Tensor, k: Tensor) -> float:
    """M where it was given, else the paper's choice. The choice is made late because a compiled graph
    that carried it as a number would be compiled again for every length."""
    return float(max(q.shape[1], k.shape[1])) if horizon is None else horizon


def angle(positions: Tensor, horizon: float) -> Tensor:
    """(pi/2) positions / M; any shape."""
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    return positions.to(dtype) * (math.pi / 2 / horizon)


def cos_sin(positions: Tensor, horizon: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    theta = angle(positions, horizon)
    return theta.cos().to(dtype), theta.sin().to(dtype)
