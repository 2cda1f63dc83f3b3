"""Keys hidden from fused softmax kernels that take no mask, by columns added to queries and keys.

A mask [B, 1, Tq, Tk] is large, and the kernels that take one are slow. With q' = [q, c], and k' = [k, 0] for
a key that is seen and [k, -c] for one that is hidden, q' . k' of a hidden key is -8 c^2 = -8.4 million, and
its weight exp(-1,048,576) = 0 with heads of 64, as long as q . k of a seen key stays above that. Keys and
values that are hidden are zeros, so a finite query that sees no key gives zeros. c is no larger because the
backward computes exp(score - log-sum-exp) in float32, and for such a query both are near -8 c^2 / sqrt(D).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.flash import can_flash, dtype_of

COLUMNS = 8  # head sizes of the kernels are multiples of it
SIZE = 1024.0  # c
LARGEST_HEAD = 64  # with heads of 128 the kernels are slower with the columns than with a mask
FEWEST_QUERIES = 64  # for fewer a mask is small, and keys would be copied


def can_hide(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel without a mask serves these inputs with the columns added."""
    if not can_flash(q, k, v) or q.shape[3] > LARGEST_HEAD or k.shape[1] == 0:
        return False
    # A length that is free in an export stays free: a step of one token is the only one told apart.
    return q.shape[1] >= (2 if torch.compiler.is_exporting() else FEWEST_QUERIES)


def with_columns(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with `COLUMNS` more; those of the values, and so of the result, are zeros.

    key_mask bool [B, Tk]; keys and values that it hides are zeros. Scores are scaled by the size of the heads
    without the columns.
    """
    q, k, v = (x.to(dtype_of(x)) for x in (q, k, v))
    hidden = (~key_mask)[:, :, None, None].to(k.dtype) * -SIZE
    k = torch.cat((k, hidden.expand(*k.shape[:3], COLUMNS)), 3)
    return F.pad(q, (0, COLUMNS), value=SIZE), k, F.pad(v, (0, COLUMNS))
