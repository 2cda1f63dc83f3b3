"""The tokens around a shard."""

import torch
from torch import Tensor

from cosformer.distributed.exchange import Exchange
from cosformer.distributed.shard import Shard


def with_neighbours(x: Tensor, shard: Shard, before: int, behind: int) -> tuple[Tensor, int, Tensor | None]:
    """x [B, L, ...] with up to `before` and `behind` tokens of its neighbours around it; the number of tokens
    added in front; and `cu_seqlens` of all of these, where documents are packed."""
    exchange = Exchange(shard.group, before=before, behind=behind)
    exchange.begin(None, x)
    _, left, right = exchange.end()
    assert left is not None
    assert right is not None
    bounds = None
    if shard.packed is not None:
        _, found = shard.cut(shard.start - left.shape[1], shard.stop + right.shape[1])
        bounds = torch.tensor(found, device=x.device)
    return torch.cat([left, x, right], 1), left.shape[1], bounds
