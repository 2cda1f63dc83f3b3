"""A depthwise convolution over both sides with many weights, on a GPU, x [B, T, C] and weights w [C, K]:

    y_t  = x_t + sum_i w_i x_{t + r - i}         r = floor(K / 2), i = 0 .. K - 1, K odd
    dx_t = g_t + sum_i w_i g_{t - r + i}         the same with the weights reversed
    dw_i = sum_t g_t x_{t + r - i}               over all rows, too

A tile of tokens and channels stays in registers, and its neighbours are read again for each weight: from the
cache, where a product of Fourier transforms writes each spectrum to memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS, CHANNELS, WEIGHTS = 64, 64, 16  # of a tile


@triton.jit(do_not_specialize=["T"])
def long_conv_fwd(X, W, Y, T, C, R, K: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    """W [K, C] in float32."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    row = tl.program_id(2).to(tl.int64) * T * C
    here = (t < T)[:, None] & (c < C)[None, :]
    y = tl.load(X + row + t[:, None] * C + c[None, :], mask=here, other=0.0).to(tl.float32)
    for i in range(K):
        at = t + R - i
        inside = ((at >= 0) & (at < T))[:, None] & (c < C)[None, :]
        x = tl.load(X + row + at[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        y += x * tl.load(W + i * C + c, mask=c < C, other=0.0)[None, :]
    tl.store(Y + row + t[:, None] * C + c[None, :], y.to(Y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["T"])
def long_conv_bwd_weight(G, X, DW, T, C, R, K: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr):
    """DW [B, K, C] in float32: the part of each row."""
    i = tl.program_id(0) * BK + tl.arange(0, BK)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    b = tl.program_id(2).to(tl.int64)
    dw = tl.zeros((BK, BC), tl.float32)
    each = 0 * i[:, None] + c[None, :]  # read as it is multiplied: not exchanged through shared memory
    for t in range(T):
        g = tl.load(G + (b * T + t) * C + each, mask=each < C, other=0.0).to(tl.float32)
        at = t + R - i
        inside = ((at >= 0) & (at < T))[:, None] & (c < C)[None, :]
        x = tl.load(X + b * T * C + at[:, None] * C + c[None, :], mask=inside, other=0.0)
        dw += x.to(tl.float32) * g
    tl.store(DW + (b * K + i)[:, None] * C + c[None, :], dw, mask=(i < K)[:, None] & (c < C)[None, :])


@torch.library.custom_op("cosformer::long_convolution", mutates_args=())
def long_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """y [B, T, C] in the dtype of x [B, T, C], for weights [C, K] of an odd number."""
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    batch, length, channels = x.shape
    size = weight.shape[1]
    if x.numel():
        grid = (triton.cdiv(length, TOKENS), triton.cdiv(channels, CHANNELS), batch)
        flat = weight.T.float().contiguous()
        long_conv_fwd[grid](x, flat, y, length, channels, size // 2, size, TOKENS, CHANNELS, num_warps=4)
    return y


@torch.library.custom_op("cosformer::long_convolution_weight", mutates_args=())
def long_convolution_weight(grad: Tensor, x: Tensor, size: int) -> Tensor:
    """The gradient of the weights, float32 [C, size]."""
    grad, x = grad.contiguous(), x.contiguous()
    batch, length, channels = x.shape
    parts = x.new_empty((batch, size, channels), dtype=torch.float32)
    if parts.numel():
        grid = (triton.cdiv(size, WEIGHTS), triton.cdiv(channels, CHANNELS), batch)
        long_conv_bwd_weight[grid](
            grad, x, parts, length, channels, size // 2, size, WEIGHTS, CHANNELS, num_warps=4
        )
    return parts.sum(0).T.contiguous()


@long_convolution.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@long_convolution_weight.register_fake
def _(grad: Tensor, x: Tensor, size: int) -> Tensor:
    return x.new_empty((x.shape[2], size), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dx = long_convolution(g, weight.flip(1)) if wanted[0] else None
    dw = long_convolution_weight(g, x, weight.shape[1]).to(weight.dtype) if wanted[1] else None
    return dx, dw


def _gradients_of_weight(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    """The sums alone, without the identity."""
    grad, x = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dg = long_convolution(x, g) - x if wanted[0] else None
    dx = long_convolution(grad, g.flip(1)) - grad if wanted[1] else None
    return dg, dx, None


long_convolution.register_autograd(_gradients, setup_context=_save)
long_convolution_weight.register_autograd(_gradients_of_weight, setup_context=_save)
