"""Attention that must see every key: the keys and values of all ranks on each of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.distributed.exchange import gather_sequence
from cosformer.distributed.shard import Shard


def with_all_keys(
    attention: Any, k: Tensor, v: Tensor, shard: Shard, *, causal: bool, lengths: Tensor | None
) -> Callable[[Tensor], Tensor]:
    """From queries [B, L, H, D] of this shard to their output, by a mechanism that takes queries and keys of
    different lengths; k, v [B, L, Hk, .] are gathered with their gradients."""
    key_mask = None
    if lengths is not None:
        key_mask = torch.arange(shard.total, device=k.device) < lengths[:, None]
    dim = k.shape[3]
    every = gather_sequence(torch.cat([k, v], -1), shard.group)
    k, v = every[..., :dim], every[..., dim:]

    def attend(q: Tensor) -> Tensor:
        outs = []
        for document in range(shard.first, shard.last + 1):
            start, stop = shard.bounds[document : document + 2]
            first, last = max(start, shard.start), min(stop, shard.stop)
            if first < last:
                out: Tensor = attention(
                    q[:, first - shard.start : last - shard.start], k[:, start:stop], v[:, start:stop],
                    causal=causal, key_mask=key_mask, query_offset=first - start,
                )  # fmt: skip
                outs.append(out)
        return outs[0] if len(outs) == 1 else torch.cat(outs, 1)

    return attend
