"""Rows of a batch that end before the others, in a cache that a next turn goes on from."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers.generation import StoppingCriteriaList

from cosformer.models.cache import CosformerCache
from cosformer.models.layout import Past


class Padded(NamedTuple):
    """The column that generate() made last, the rows [B] that had ended before it, and the token that it is
    filled with there."""

    column: int
    rows: Tensor
    token: Tensor


class Watched(StoppingCriteriaList):
    """Tells a cache which rows had ended before the column that was made last, which is padding in them."""

    def __init__(self, criteria: StoppingCriteriaList, cache: CosformerCache, token: Tensor):
        super().__init__(criteria)
        self.cache, self.token, self.ended = cache, token, torch.zeros((), dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        ends = cast(Tensor, super().__call__(input_ids, scores, **kwargs))
        before = self.ended.to(ends.device).expand_as(ends)
        self.cache.padded = Padded(self.cache.get_seq_length(), before, self.token)
        self.ended = before | ends
        return ends


def without_ended(cache: CosformerCache) -> Tensor | None:
    """attention_mask for the column that was made last, in a cache that the caller will go on from: a row
    that has ended reads no padding. None where no row has ended."""
    past, ended = cache.past, cast(Padded, cache.padded).rows
    if past is None or not ended.any():
        return None
    return torch.cat([_as_read(past), ~ended[:, None]], 1)


def as_turned(mask: Tensor, cache: CosformerCache, text: Tensor) -> Tensor:
    """A mask [B, T] of a whole text (ids, or embeddings [B, T, width]) that knows what the cache has read of
    it, and what of the last column of the turn before is padding: where a row had ended and the text has the
    token of padding there. The cache may have a row for each beam."""
    past = cache.past
    if past is None or mask.shape[1] <= past.columns or len(past.positions) % len(mask):
        return mask
    mask[:, : past.columns] = _as_read(past)[:: len(past.positions) // len(mask)]
    padded = cache.padded
    if padded is not None and padded.column == past.columns and len(mask) % len(padded.rows) == 0:
        padding = padded.rows.repeat_interleave(len(mask) // len(padded.rows)).to(mask.device)
        if text.dim() == 2:
            padding &= text[:, padded.column] == padded.token.to(text.device)
        mask[:, padded.column].masked_fill_(padding, 0)
    return mask


def _as_read(past: Past) -> Tensor:
    """A mask of the columns so far, with as many real tokens as were read."""
    return torch.arange(past.columns, device=past.positions.device) < past.positions[:, None]
