"""A depthwise convolution over both sides with many weights, on a GPU, x [B, T, C] and weights w [C, K]:

    y_t  = x_t + sum_i w_i x_{t + r - i}         r = floor(K / 2), i = 0 .. K - 1, K odd
    dx_t = g_t + sum_i w_i g_{t - r + i}         the same with the weights reversed
    dw_i = sum_t g_t x_{t + r - i}               over all rows, too

A tile of tokens and channels stays in registers, and its neighbours are read again for each weight: from the
cache, where a product of Fourier transforms writes each spectrum to memory.

Nothing calls it yet (`USE_KERNEL` in nn/convolution.py): it has been compiled for GPUs and run by Triton's
interpreter, but not on a GPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cosformer.ops.gpu.windows.heads import on_device

TOKENS, CHANNELS, WEIGHTS = 64, 64, 16  # of a tile
PART = 1024  # tokens that a program of the weights' gradient goes through


@triton.jit(do_not_specialize=["T", "parts"])
def long_conv_fwd(
    X, W, Y, T, parts, C, R, K: tl.constexpr, IDENTITY: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr
):
    """W [K, C] in float32; without IDENTITY the sum alone."""
    b = (tl.program_id(0) // parts).to(tl.int64)
    t = (tl.program_id(0) % parts).to(tl.int64) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    X += b * T * C
    here = (t < T)[:, None] & (c < C)[None, :]
    y = tl.zeros((BT, BC), tl.float32)
    if IDENTITY:
        y = tl.load(X + t[:, None] * C + c[None, :], mask=here, other=0.0).to(tl.float32)
    for i in range(K):
        at = t + R - i
        inside = ((at >= 0) & (at < T))[:, None] & (c < C)[None, :]
        x = tl.load(X + at[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        y += x * tl.load(W + i * C + c, mask=c < C, other=0.0)[None, :]
    tl.store(Y + (b * T + t)[:, None] * C + c[None, :], y.to(Y.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["T", "parts"])
def long_conv_bwd_weight(
    G, X, DW, T, parts, C, R, K: tl.constexpr, LENGTH: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr
):
    """DW [B * parts, K, C] in float32: what each part of LENGTH tokens of a row adds."""
    b = (tl.program_id(0) // parts).to(tl.int64)
    first = (tl.program_id(0) % parts).to(tl.int64) * LENGTH
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    i = tl.program_id(2) * BK + tl.arange(0, BK)
    G += b * T * C
    X += b * T * C
    dw = tl.zeros((BK, BC), tl.float32)
    each = 0 * i[:, None] + c[None, :]  # read as it is multiplied: not exchanged through shared memory
    for t in range(first, tl.minimum(first + LENGTH, T)):
        g = tl.load(G + t * C + each, mask=each < C, other=0.0).to(tl.float32)
        at = t + R - i
        inside = ((at >= 0) & (at < T))[:, None] & (c < C)[None, :]
        x = tl.load(X + at[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        dw += x * g
    own = tl.program_id(0).to(tl.int64) * K
    tl.store(DW + (own + i)[:, None] * C + c[None, :], dw, mask=(i < K)[:, None] & (c < C)[None, :])


@torch.library.custom_op("cosformer::long_convolution", mutates_args=())
def long_convolution(x: Tensor, weight: Tensor, identity: bool = True) -> Tensor:
    """y [B, T, C] in the dtype of x [B, T, C], for weights [C, K] of an odd number; the sum alone without
    `identity`."""
    x = x.contiguous()
    y = torch.empty_like(x)
    batch, length, channels = x.shape
    size, parts = weight.shape[1], triton.cdiv(length, TOKENS)
    if x.numel():
        flat = weight.T.float().contiguous()
        sizes = (length, parts, channels, size // 2, size, identity, TOKENS, CHANNELS)
        with on_device(x):
            grid = (batch * parts, triton.cdiv(channels, CHANNELS))
            long_conv_fwd[grid](x, flat, y, *sizes, num_warps=4)
    return y


@torch.library.custom_op("cosformer::long_convolution_weight", mutates_args=())
def long_convolution_weight(grad: Tensor, x: Tensor, size: int) -> Tensor:
    """The gradient of the weights, float32 [C, size]."""
    grad, x = grad.contiguous(), x.contiguous()
    batch, length, channels = x.shape
    parts = triton.cdiv(length, PART)
    dw = x.new_empty((batch * parts, size, channels), dtype=torch.float32)
    if dw.numel():
        sizes = (length, parts, channels, size // 2, size, PART, WEIGHTS, CHANNELS)
        with on_device(x):
            grid = (batch * parts, triton.cdiv(channels, CHANNELS), triton.cdiv(size, WEIGHTS))
            long_conv_bwd_weight[grid](grad, x, dw, *sizes, num_warps=4)
    return dw.sum(0).T.contiguous()


@long_convolution.register_fake
def _(x: Tensor, weight: Tensor, identity: bool = True) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@long_convolution_weight.register_fake
def _(grad: Tensor, x: Tensor, size: int) -> Tensor:
    return x.new_empty((x.shape[2], size), dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.setting = inputs[2]


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dx = long_convolution(g, weight.flip(1), ctx.setting) if wanted[0] else None
    dw = long_convolution_weight(g, x, weight.shape[1]).to(weight.dtype) if wanted[1] else None
    return dx, dw, None


def _gradients_of_weight(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    grad, x = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dg = long_convolution(x, g, False) if wanted[0] else None
    dx = long_convolution(grad, g.flip(1), False) if wanted[1] else None
    return dg, dx, None


long_convolution.register_autograd(_gradients, setup_context=_save)
long_convolution_weight.register_autograd(_gradients_of_weight, setup_context=_save)
