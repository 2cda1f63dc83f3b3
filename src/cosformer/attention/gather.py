"""Softmax attention over a sparse pattern, by gathering: the one computation that all patterns share.

o_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j

A pattern S is a union of relations. Each relation sorts the queries into groups that look at one common
list of keys (a window, the tokens of one residue class, some chosen columns); scores are computed group
by group, reordered to the order of the queries, concatenated, and normalised by one softmax. A
pair that two relations share counts once. Time and memory are those of the lists: no T × T tensor.

FlexAttention would say the same in a mask function, but on CPU it has no backward, and uncompiled it
computes every score.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Lists(NamedTuple):
    """queries [G, b] and keys [B or 1, Hk or 1, G, M]: the indices of G groups, -1 where there is none.

    Every query of the sequence is in exactly one group.
    """

    queries: Tensor
    keys: Tensor


class Relation(Protocol):
    """Which keys a query may see."""

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        """bool: whether the query at position i sees the key at position j; shapes broadcast."""

    def lists(self, length: int, device: torch.device) -> Lists:
        """Groups that hold all the pairs of `seen` in a sequence of this length, and perhaps more."""


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    relations: Sequence[Relation],
    *,
    causal: bool,
    key_mask: Tensor | None,
    full_rows: Tensor | None = None,
) -> Tensor:
    """[B, T, H, Dv] for q [B, T, H, D], k [B, T, Hk, D] and v [B, T, Hk, Dv], each token at its index.

    `full_rows` [B or 1, F] are the indices of queries that see every key, whatever the relations say, each
    named once (-1: none). A query that sees no key gives zeros.
    """
    length, heads, size = q.shape[1:]
    kv_heads = k.shape[2]
    if key_mask is not None:
        # Zero times NaN is NaN: masked keys and values are set to zero.
        k, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (k, v))
    k, v = k.transpose(1, 2), v.transpose(1, 2)  # [B, Hk, T, D]
    q = q.unflatten(2, (kv_heads, heads // kv_heads)).permute(0, 2, 3, 1, 4) / math.sqrt(size)

    listed = [relation.lists(length, q.device) for relation in relations]
    masks = [
        _mask(relations[: p + 1], lists, causal, key_mask, length) for p, lists in enumerate(listed)
    ]  # each [B or 1, Hk or 1, T, M]
    scores = [_scores(q, k, lists) for lists in listed]  # each [B, Hk, H/Hk, T, M]
    weights = masked_softmax(torch.cat(scores, -1), torch.cat(_alike(masks), -1)[:, :, None])
    parts = weights.to(v.dtype).split([lists.keys.shape[-1] for lists in listed], -1)
    out = sum(_mix(w, v, lists) for w, lists in zip(parts, listed, strict=True))
    assert isinstance(out, Tensor)
    if full_rows is not None:
        out = _with_full_rows(out, q, k, v, full_rows, key_mask)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def masked_softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Over the last dimension and where `seen`, in float32 or better; zeros where nothing is seen."""
    upcast = scores if scores.dtype == torch.float64 else scores.float()
    weights = upcast.masked_fill(~seen, torch.finfo(upcast.dtype).min).softmax(-1)
    return weights.masked_fill(~seen, 0)


def take(x: Tensor, index: Tensor) -> Tensor:
    """x [B, Hk, T, D] at index [B, Hk, ...], -1 taken as 0: [B, Hk, ..., D]; B and Hk may be 1 in either."""
    flat = index.clamp_min(0).flatten(2)
    if flat.shape[:2] == (1, 1):
        found = x.index_select(2, flat[0, 0])
    else:
        shape = torch.broadcast_shapes(x.shape[:2], flat.shape[:2])
        found = x.expand(*shape, -1, -1).gather(2, flat[..., None].expand(*shape, -1, x.shape[3]))
    return found.unflatten(2, index.shape[2:])


def _mask(
    relations: Sequence[Relation], lists: Lists, causal: bool, key_mask: Tensor | None, length: int
) -> Tensor:
    """Which entries of the lists the last relation may use: those seen by none before it."""
    i, j = lists.queries[:, :, None], lists.keys[..., None, :]
    seen = relations[-1].seen(i, j) & (i >= 0) & (j >= 0)
    for earlier in relations[:-1]:
        seen = seen & ~earlier.seen(i, j)
    if causal:
        seen = seen & (j <= i)
    if key_mask is not None:
        seen = seen & take(key_mask[:, None, :, None], lists.keys)[..., None, :, 0]
    return _in_order(seen.expand(*seen.shape[:2], *lists.queries.shape, -1), lists, length)


def _in_order(x: Tensor, lists: Lists, length: int) -> Tensor:
    """[..., G, b, M], group by group, as [..., T, M], query by query."""
    flat = lists.queries.flatten()
    real = (flat >= 0).nonzero().flatten()
    place = torch.empty(length, dtype=torch.int64, device=x.device)
    place[flat[real]] = real
    x = x.flatten(-3, -2)
    if torch.equal(place, torch.arange(length, device=x.device)):
        return x.narrow(-2, 0, length)
    return x.index_select(-2, place)


def _in_groups(x: Tensor, lists: Lists) -> Tensor:
    """[B, Hk, H/Hk, T, M], query by query, as [B, Hk, G, (H/Hk) b, M], group by group."""
    groups, size = lists.queries.shape
    x = x.index_select(3, lists.queries.clamp_min(0).flatten()).unflatten(3, (groups, size))
    return x.transpose(2, 3).flatten(3, 4)


def _scores(q: Tensor, k: Tensor, lists: Lists) -> Tensor:
    scores = _in_groups(q, lists) @ take(k, lists.keys).mT
    grouped = scores.unflatten(3, (q.shape[2], -1)).transpose(2, 3)  # [B, Hk, H/Hk, G, b, M]
    return _in_order(grouped, lists, q.shape[3])


def _mix(weights: Tensor, v: Tensor, lists: Lists) -> Tensor:
    mixed = _in_groups(weights, lists) @ take(v, lists.keys)
    grouped = mixed.unflatten(3, (weights.shape[2], -1)).transpose(2, 3)
    return _in_order(grouped, lists, weights.shape[3])


def _alike(masks: list[Tensor]) -> list[Tensor]:
    """Expanded to one batch and one number of heads."""
    shape = [max(m.shape[d] for m in masks) for d in (0, 1)]
    return [m.expand(*shape, -1, -1) for m in masks]


def _with_full_rows(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, key_mask: Tensor | None
) -> Tensor:
    """out [B, Hk, H/Hk, T, Dv] with these rows, named once each, replaced by full attention."""
    real = (rows >= 0)[:, None, None, :, None]
    index = rows.clamp_min(0)[:, None, None, :, None].expand(*q.shape[:3], -1, -1)
    scores = q.gather(3, index.expand(*q.shape[:3], -1, q.shape[4])) @ k.mT[:, :, None]
    seen = scores.new_ones(1, k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    found = masked_softmax(scores, seen[:, None, None, None]).to(v.dtype) @ v[:, :, None]
    # The difference is added, so that an index of -1 changes nothing.
    index = index.expand(*found.shape)
    return out.scatter_add(3, index, (found - out.gather(3, index)).masked_fill(~real, 0))
