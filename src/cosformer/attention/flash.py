"""Windows by flash-attention's kernel, `torch.nn.attention.varlen`, where it can serve."""

from typing import Any

import torch
from torch import Tensor

USE_KERNEL = True
USE_FOR_DOCUMENTS = False  # to be switched on once a GPU has run them
HALF = (torch.float16, torch.bfloat16)
_NAMES_GROUPS = torch.__version__ >= "2.12"  # grouped heads have to be asked for since then


def can_flash(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel can serve these inputs: on CUDA, in half precision, heads of one size up to 256."""
    dim = q.shape[3]
    return (
        USE_KERNEL
        and q.is_cuda
        and all(_dtype(x) in HALF for x in (q, k, v))
        and dim == v.shape[3]
        and dim % 8 == 0
        and dim <= 256
    )


def flash(q: Tensor, k: Tensor, v: Tensor, window: int, causal: bool) -> Tensor:
    """[B, Tq, H, D]: the last query stands at the last key, and each sees |i - j| < window."""
    batch, tq, tk = q.shape[0], q.shape[1], k.shape[1]
    rows = torch.arange(batch + 1, device=q.device, dtype=torch.int32)
    out = _varlen(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), rows * tq, rows * tk, tq, tk, window, causal
    )
    return out.unflatten(0, (batch, tq))


def flash_documents(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, window: int, causal: bool) -> Tensor:
    """[1, T, H, D]: each document by itself, without reading its bounds on the host."""
    bounds, length = cu_seqlens.to(torch.int32), q.shape[1]
    return _varlen(q[0], k[0], v[0], bounds, bounds, length, length, window, causal)[None]


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int,
    window: int, causal: bool,
) -> Tensor:  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn

    dtype = _dtype(q)
    behind = window - 1
    more: dict[str, Any] = {}
    if q.shape[1] != k.shape[1] and _NAMES_GROUPS:
        more["enable_gqa"] = True
    out = varlen_attn(
        q.to(dtype), k.to(dtype), v.to(dtype), cu_q, cu_k, longest_q, longest_k,
        window_size=(behind, 0 if causal else behind), **more,
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out


def _dtype(x: Tensor) -> torch.dtype:
    """That in which PyTorch's own attention would compute."""
    if x.is_cuda and torch.is_autocast_enabled("cuda") and x.dtype != torch.float64:
        return torch.get_autocast_dtype("cuda")
    return x.dtype
