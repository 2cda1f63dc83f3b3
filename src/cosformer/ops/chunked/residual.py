"""Rounding residuals of gradients that cancel: measured, and subtracted.

o_i stays the same when q'_i is multiplied by a number, wherever d_i >= eps. So q'_i . dq'_i = 0 for

    dq'_i = sum_j c_ij (g_i . v_j + delta_i) k'_j / d_i,    delta_i = -(g_i . o_i)

Where a query sees one key, or has one positive feature, dq'_i itself is zero: what is computed of it is the
rounding of g . v and of delta (and of o, which is kept in the inputs' type), divided by a weight that may be
small. But q'_i . dq'_i, computed, tells by how much delta_i does not fit the products g . v that it is added
to. That is subtracted where both have cancelled already: delta itself has no digits for it.
"""

import torch
from torch import Tensor

# Of the root of the sum of squares of q'_e dq'_e: rounding alone leaves some five of them in their sum.
ROUNDINGS = 64


def residual(q: Tensor, dq: Tensor, free: Tensor, products: Tensor) -> Tensor | None:
    """-(q'_i . dq'_i) [..., 1] of the rows where it is more than rounding, and zero elsewhere; None where no
    row has any. What becomes of a row depends on that row alone. `free`: -1, and 0 where eps holds d;
    `products`: workspace, as large as q."""
    torch.mul(q, dq, out=products)
    rho = products.sum(-1, keepdim=True).mul_(free)
    size = torch.linalg.vector_norm(products, dim=-1, keepdim=True)
    large = rho.abs() > size.mul_(ROUNDINGS * torch.finfo(q.dtype).eps)
    return rho.masked_fill_(~large, 0) if large.any() else None


def span(rho: Tensor, along: int) -> slice:
    """From the first to the last place along an axis where a row has a residual."""
    at = rho.movedim(along, 0).flatten(1).any(1).nonzero()
    return slice(int(at[0]), int(at[-1]) + 1)
