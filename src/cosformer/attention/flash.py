"""Windows by flash-attention's kernel, `torch.nn.attention.varlen`, where it can serve."""

from typing import Any

import torch
from torch import Tensor

USE_KERNEL = True
HALF = (torch.float16, torch.bfloat16)
_NAMES_GROUPS = torch.__version__ >= "2.12"  # grouped heads have to be asked for since then


def can_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel can serve these inputs: on a CUDA GPU of compute capability 8.0 or more, in half
    precision, heads of one size up to 256, and outside of torch.func's transforms, which it does not know."""
    dim = q.shape[3]
    return (
        USE_KERNEL
        and q.is_cuda
        and torch.cuda.get_device_properties(q.device).major >= 8
        and not torch._C._are_functorch_transforms_active()
        and q.shape[0] > 0
        and all(dtype_of(x) in HALF for x in (q, k, v))
        and dim == v.shape[3]
        and dim % 8 == 0
        and dim <= 256
    )


def flash(q: Tensor, k: Tensor, v: Tensor, window: int, causal: bool, scale: float | None = None) -> Tensor:
    """[B, Tq, H, D]: the last query stands at the last key, and each sees |i - j| < window. `scale` of the
    scores: 1 / sqrt(D) where nothing else is said."""
    from torch.nn.attention.varlen import varlen_attn

    batch, tq, tk, dtype = q.shape[0], q.shape[1], k.shape[1], dtype_of(q)
    rows = torch.arange(batch + 1, device=q.device, dtype=torch.int32)
    more: dict[str, Any] = {}
    if q.shape[2] != k.shape[2] and _NAMES_GROUPS:
        more["enable_gqa"] = True
    out = varlen_attn(
        q.to(dtype).flatten(0, 1),
        k.to(dtype).flatten(0, 1),
        v.to(dtype).flatten(0, 1),
        rows * tq,
        rows * tk,
        tq,
        tk,
        scale=scale,
        window_size=(window - 1, 0 if causal else window - 1),
        **more,
    )
    assert isinstance(out, Tensor)
    return out.unflatten(0, (batch, tq))


def dtype_of(x: Tensor) -> torch.dtype:
    """That in which PyTorch's own attention would compute."""
    if x.is_cuda and torch.is_autocast_enabled("cuda") and x.dtype != torch.float64:
        return torch.get_autocast_dtype("cuda")
    return x.dtype
