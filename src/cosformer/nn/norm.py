"""The norms a block may use."""

from torch import nn

KINDS = ("layer", "rms")


def build_norm(kind: str, size: int, eps: float) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last axis."""
    if kind not in KINDS:
        raise ValueError(f"norm must be one of {', '.join(KINDS)}, but got {kind!r}.")
    return nn.LayerNorm(size, eps=eps) if kind == "layer" else nn.RMSNorm(size, eps=eps)
