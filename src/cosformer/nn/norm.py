"""The norms a block may use, and that of single heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.ops.autograd import is_traced
from cosformer.ops.backends import runs_triton

KINDS = ("layer", "rms")
# What a kernel of our own normalises on a GPU: heads of at most, and numbers of at least. Below that PyTorch
# is done before the next operation can be asked for.
WIDEST_HEAD, FEWEST_NUMBERS = 256, 2**22


def build_norm(kind: str, size: int, eps: float) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm (Ba et al., 2016) or RMSNorm (Zhang and Sennrich, 2019) over the last axis."""
    if kind not in KINDS:
        raise ValueError(f"norm must be one of {', '.join(KINDS)}, but got {kind!r}.")
    return nn.LayerNorm(size, eps=eps) if kind == "layer" else nn.RMSNorm(size, eps=eps)


class HeadRMSNorm(nn.RMSNorm):
    """RMSNorm over the last axis of [B, T, heads, head_dim], in the dtype of its input: under autocast,
    float32 weights would make the queries and keys float32, and not the values."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and self._fits(x):
            from cosformer.ops.gpu.head_norm import HeadNorm

            assert self.eps is not None
            y: Tensor = HeadNorm.apply(x, self.weight, self.eps)
            return y
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps).to(x.dtype)

    def _fits(self, x: Tensor) -> bool:
        """Whether the kernel of our own can serve the call. What is compiled is fused by the compiler."""
        return (
            x.numel() >= FEWEST_NUMBERS
            and x.is_contiguous()
            and x.shape[-1] <= WIDEST_HEAD
            and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
            and self.weight is not None
            and self.eps is not None
            and not is_traced(x, self.weight, x)
            and torch.autograd.forward_ad._current_level < 0
            and runs_triton(x.device)
        )
