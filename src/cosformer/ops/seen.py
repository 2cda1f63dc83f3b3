"""Masked matrix products in which a masked element has no influence, even if it is NaN or inf.

Multiplying by a mask of zeros is not enough: zero times NaN is NaN.

    sum      y_i = sum_j w_ij x_j        over the j that i sees
    scores   s_ij = a_i . b_j            0 where i does not see j

A non-finite x_j makes the same column of y NaN in all rows i that see j, and in no others. In the backward,
a row whose gradient is zero (nothing uses it) is left out, whatever it holds.
"""

import math
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.autograd import is_traced


def apart(x: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., j, e] with its non-finite elements set to zero, and a mask of the elements of y [..., i, e]
    that they reach; sees [i, j]."""
    bad = ~x.isfinite()
    return x.masked_fill(bad, 0), sees.to(x.dtype) @ bad.to(x.dtype) > 0


def finite(x: Tensor) -> bool:
    """Whether the sum of all elements is finite. False does not prove that an element is not (a sum can
    overflow); callers then look at each element."""
    return math.isfinite(float(x.sum(dtype=torch.promote_types(x.dtype, torch.float32))))


def _unused(grad: Tensor) -> Tensor:
    return (grad == 0).all(-1, keepdim=True)


def _sum(w: Tensor, x: Tensor, sees: Tensor) -> Tensor:
    if not is_traced(w, x, sees) and finite(x):
        return w @ x
    clean, lost = apart(x, sees)
    return (w @ clean).masked_fill(lost, torch.nan)


class SeenSum(torch.autograd.Function):
    """w [..., i, j], zero where nothing is seen, times x [..., j, e]; sees [i, j] bool."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, x: Tensor, sees: Tensor) -> Tensor:
        return _sum(w, x, sees)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        w, x, sees = ctx.saved_tensors
        unused = _unused(grad)
        w = w.masked_fill(unused, 0)
        return (
            SeenScores.apply(grad, x, sees).masked_fill(unused, 0),
            SeenSum.apply(w.mT, grad, sees.mT),
            None,
        )


class SeenScores(torch.autograd.Function):
    """a [..., i, d] times b [..., j, d], zero where nothing is seen; sees [i, j] bool."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, sees: Tensor) -> Tensor:
        return (a @ b.mT).masked_fill(~sees, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b, sees = ctx.saved_tensors
        grad = grad.masked_fill(~sees, 0)
        a = a.masked_fill(_unused(grad), 0)
        return SeenSum.apply(grad, b, sees), SeenSum.apply(grad.mT, a, sees.mT), None


class Quotient(torch.autograd.Function):
    """n [..., e] / d [..., 1]; rows with a zero gradient are left out of the backward, as above."""

    generate_vmap_rule = True

    @staticmethod
    def forward(n: Tensor, d: Tensor) -> Tensor:
        return n / d

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        d, out = ctx.saved_tensors
        unused = _unused(grad)
        dn = (grad / d).masked_fill(unused, 0)
        return dn, (dn * out).sum(-1, keepdim=True).neg().masked_fill(unused, 0)
