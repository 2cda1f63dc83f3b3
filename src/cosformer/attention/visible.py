"""Which keys a query sees, as masks: causality, padding, and the windows of heads."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cosformer.ops.windows import check_windows, public

Windows = tuple[int | None, ...]


def visible(
    tq: int, tk: int, offset: int, causal: bool, key_mask: Tensor | None, device: torch.device
) -> Tensor:
    """bool [B or 1, 1, Tq, Tk]; `offset` is the column of the first query among the keys."""
    i = torch.arange(tq, device=device)[:, None] + offset
    j = torch.arange(tk, device=device)
    seen = (j <= i if causal else (j >= 0).expand(tq, tk))[None, None]
    return seen if key_mask is None else seen & key_mask[:, None, None, :]


def within_windows(i: Tensor, j: Tensor, windows: Sequence[int | None]) -> Tensor:
    """bool [B or 1, Hk, Tq, Tk]: whether |i - j| < W, for positions i [B or 1, Tq] of queries and positions
    j [B or 1, Tk] of keys; always True where a head has no window."""
    distance = (i[:, :, None] - j[:, None, :]).abs()
    # One head at a time: a tensor of windows would have to be copied to the device in every call.
    return torch.stack([distance >= 0 if w is None else distance < w for w in windows], 1)


def windows_of_heads(windows: Sequence[int | None] | None, kv_heads: int | None) -> Windows | None:
    """The windows as users give them, validated; None where no head has one."""
    return public(check_windows(windows, kv_heads))
