"""Pooling: the hidden states of a sequence as one vector."""

import torch
from torch import Tensor


def pool(hidden: Tensor, attention_mask: Tensor | None, kind: str) -> Tensor:
    """[B, T, C] to [B, C]: the first real token ("cls"), or the mean or maximum of the real ones.

    A row without a single real token gives zeros.
    """
    if attention_mask is None:
        mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    else:
        mask = attention_mask != 0
    some = mask.any(1, keepdim=True)
    if kind == "cls":
        first = mask.to(torch.uint8).argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), first] * some
    if kind == "mean":
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
    return hidden.masked_fill(~mask[..., None], -torch.inf).amax(1).masked_fill(~some, 0)
