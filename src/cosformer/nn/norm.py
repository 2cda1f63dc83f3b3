"""The norms a block may use, and that of single heads."""

import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("layer", "rms")


def build_norm(kind: str, size: int, eps: float) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last axis."""
    if kind not in KINDS:
        raise ValueError(f"norm must be one of {', '.join(KINDS)}, but got {kind!r}.")
    return nn.LayerNorm(size, eps=eps) if kind == "layer" else nn.RMSNorm(size, eps=eps)


class HeadRMSNorm(nn.RMSNorm):
    """RMSNorm over the last axis of [B, T, heads, head_dim], in the dtype of its input: under autocast,
    float32 weights would make the queries and keys float32, and not the values."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps).to(x.dtype)
