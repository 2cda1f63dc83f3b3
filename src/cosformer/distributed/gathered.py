"""Attention that compares queries with keys: those of other ranks on each of them, all or the near ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.distributed.exchange import Exchange, gather_sequence, tie
from cosformer.distributed.shard import Shard

Attend = Callable[[Tensor], Tensor]


def with_all_keys(
    attention: Any, k: Tensor, v: Tensor, shard: Shard, *, causal: bool, lengths: Tensor | None
) -> Attend:
    """From queries [B, L, H, D] of this shard to their output, by a mechanism that takes queries and keys of
    different lengths; k, v [B, L, Hk, .] are gathered with their gradients."""
    every = gather_sequence(torch.cat([k, v], -1), shard.group)
    return lambda q: _by_document(attention, q, every, 0, shard, causal, lengths)


def with_near_keys(
    attention: Any, k: Tensor, v: Tensor, shard: Shard, *, causal: bool, lengths: Tensor | None, reach: int
) -> Attend:
    """The same where no query sees further than `reach` tokens: what is sent depends on that alone."""
    exchange = Exchange(shard.group, before=reach, behind=0 if causal else reach)
    own = torch.cat([k, v], -1)
    exchange.begin(None, own)

    def attend(q: Tensor) -> Tensor:
        _, before, behind = exchange.end()
        assert before is not None
        assert behind is not None
        near, first = torch.cat([before, own, behind], 1), shard.start - before.shape[1]
        return tie(_by_document(attention, q, near, first, shard, causal, lengths), before, behind)

    return attend


def _by_document(
    attention: Any, q: Tensor, kv: Tensor, first: int, shard: Shard, causal: bool, lengths: Tensor | None
) -> Tensor:
    """The queries [B, L, H, D] of a shard against kv [B, T, Hk, D + Dv], keys and values of the tokens from
    `first` on."""
    k, v = kv[..., : q.shape[3]], kv[..., q.shape[3] :]
    stop, key_mask, outs = first + k.shape[1], None, []
    if lengths is not None:
        key_mask = torch.arange(first, stop, device=k.device) < lengths[:, None]
    for document in range(shard.first, shard.last + 1):
        start, end = shard.bounds[document : document + 2]
        a, b = max(start, shard.start), min(end, shard.stop)
        if a < b:
            start = max(start, first)
            columns = slice(start - first, min(end, stop) - first)
            out: Tensor = attention(
                q[:, a - shard.start : b - shard.start], k[:, columns], v[:, columns], causal=causal,
                key_mask=None if key_mask is None else key_mask[:, columns], query_offset=a - start,
            )  # fmt: skip
            outs.append(out)
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1)
