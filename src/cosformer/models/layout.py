"""Where the real tokens of a call are, and their positions in their documents.

A token's position is the number of real tokens before it in its own document; padding has none. Inside
the model the real tokens of a row are moved together to its front, in order, so that positions are
consecutive there: left, right and interior padding are then one and the same, and a padded row is
computed exactly as it is alone. Packed documents need no moving, only their bounds.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cosformer.attention.growing import GrowingState
from cosformer.ops.packing import document_bounds


@dataclass(frozen=True)
class Past:
    """The past of a call: positions [B] of the next real tokens, `seen` the largest of them, `columns` the
    number of columns so far, padding included."""

    positions: Tensor
    seen: int
    columns: int


@dataclass(frozen=True)
class Layout:
    """The layout of the tokens of a call inside the layers.

    Attributes:
        positions: [B, T] or [1, T], of each token in its document.
        starts: [B], positions before this call.
        counts: [B], real tokens of this call.
        longest: the length of the longest text after this call, as an int.
        columns: tokens of each row of this call, padding included.
        real: bool [B, T], True at the front of each row; None if every token is real.
        cu_seqlens: bounds of packed documents; T is then the length of the one packed row.
        order: [B, T], the column of the call that each token comes from (None: nothing moved).
        back: [B, T], the place of each column's token; for padding, that of the last real token before it.
        blank: bool [B, T], columns before the first real token.
        mask: bool [B, T], which columns of the call are real (None: nothing moved).
        rows: batch and length before rows were concatenated, where several were packed.
    """

    positions: Tensor
    starts: Tensor
    counts: Tensor
    longest: int
    columns: int
    real: Tensor | None = None
    cu_seqlens: Tensor | None = None
    order: Tensor | None = None
    back: Tensor | None = None
    blank: Tensor | None = None
    mask: Tensor | None = None
    rows: tuple[int, int] | None = None

    @property
    def seen(self) -> int:
        """An upper bound of the positions before this call."""
        return self.longest - self.positions.shape[1]

    def pack(self, x: Tensor) -> Tensor:
        """Tokens [B, T, C] in the layout of the layers: real ones first, padding set to zero."""
        if self.rows is not None:
            return x.flatten(0, 1)[None]
        if self.real is None:
            return x
        if self.order is not None:
            x = x[_rows(self.order), self.order]
        return x.masked_fill(~self.real[..., None], 0)

    def unpack(self, x: Tensor) -> Tensor:
        """Back to the columns of the call. A column of padding gets the output of the last real token before
        it, so that the last column always predicts the next token; zeros if there is none."""
        if self.rows is not None:
            return x[0].unflatten(0, self.rows)
        if self.back is not None:
            x = x[_rows(self.back), self.back]
        return x if self.blank is None else x.masked_fill(self.blank[..., None], 0)

    def unpack_state(self, state: Any) -> Any:
        """The state after this call; where it keeps every key, with the keys in the columns of the call."""
        if self.back is None or self.mask is None or not isinstance(state, GrowingState):
            return state
        before = self.mask.cumsum(1) - self.mask.to(torch.int64)
        return state.in_columns(self.positions.shape[1], self.back, self.mask, self.starts[:, None] + before)


def _rows(columns: Tensor) -> Tensor:
    return torch.arange(columns.shape[0], device=columns.device)[:, None]


def whole(batch: int, length: int, device: torch.device, past: Past | None) -> Layout:
    """Every token is real."""
    column = torch.arange(length, device=device)
    starts = torch.zeros(batch, dtype=torch.int64, device=device) if past is None else past.positions
    at = column[None] if past is None else starts[:, None] + column
    seen = 0 if past is None else past.seen
    return Layout(at, starts, torch.full_like(starts, length), seen + length, length)


def padded(
    mask: Tensor, past: Past | None, limit: int | None, *, keeps: bool = True, empty_rows: bool = False
) -> Layout:
    """Real tokens where mask [B, T] is True, anywhere in the row.

    A call longer than `limit` may have fewer real tokens: then columns of padding are removed. None: no
    limit. `keeps`: whether a state is carried, for which the lengths of the rows have to be read from the
    device; without one, as in training, nothing waits for it. `empty_rows`: a row may have no real token in
    this call after real tokens in an earlier one, because its last column is not used.
    """
    batch, length = mask.shape
    starts = mask.new_zeros(batch, dtype=torch.int64) if past is None else past.positions
    counts = mask.sum(1)
    seen = 0 if past is None else past.seen
    bound = seen + length
    rank = mask.cumsum(1) - 1  # index among the real tokens; for padding, that of the last one before it
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    too_long = limit is not None and bound > limit
    if length > 1 and (keeps or too_long) and not torch.compiler.is_compiling():
        bound = int((starts + counts).max())
        if past is not None and not empty_rows and ((counts == 0) & (starts > 0)).any():
            raise ValueError(
                "attention_mask leaves a row without a single real token in this call, behind real tokens of "
                "an earlier one: there is nothing to say for it. Pad prompts on the left when they are cut "
                "into pieces (prefill_chunk_size)."
            )
        if too_long:
            length = max(1, int(counts.max()))
            order = order[:, :length]
    column = torch.arange(length, device=mask.device)
    real = column < counts[:, None]
    at = (starts[:, None] + column).masked_fill(~real, 0)
    moved = mask.shape[1] > 1
    return Layout(
        at,
        starts,
        counts,
        bound,
        mask.shape[1],
        real=real,
        order=order if moved else None,
        back=rank.clamp_min(0) if moved else None,
        blank=rank < 0,
        mask=mask if moved else None,
    )


def packed(cu_seqlens: Tensor, length: int, rows: tuple[int, int] | None = None) -> Layout:
    """Documents end to end in one row of `length` tokens."""
    column = torch.arange(length, device=cu_seqlens.device)
    bounds = cu_seqlens.to(torch.int64)
    document = torch.searchsorted(bounds, column, right=True) - 1
    sizes = bounds.diff()
    longest = 0
    if not torch.compiler.is_compiling():  # no values in a graph: the operator checks them when it runs
        document_bounds(cu_seqlens, length)
        longest = int(sizes.max())
    at = (column - bounds[document.clamp(0, len(sizes) - 1)])[None]
    return Layout(at, torch.zeros_like(sizes), sizes, longest, length, cu_seqlens=cu_seqlens, rows=rows)


def restarts(position_ids: Tensor) -> Tensor | None:
    """The bounds of the documents in position_ids [B, T], rows laid end to end; None where each row is
    one document that starts at 0.

    While a graph is traced, the number of documents is unknown: there are then as many bounds as tokens, and
    most documents are empty.
    """
    batch, length = position_ids.shape
    first = torch.zeros_like(position_ids, dtype=torch.bool)
    first[:, 0] = True
    first[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    total = batch * length
    if torch.compiler.is_compiling():
        column = torch.arange(total, device=position_ids.device)
        starts = torch.where(first.flatten(), column, total).sort().values
        return torch.nn.functional.pad(starts, (0, 1), value=total)
    if (position_ids[first] != 0).any():
        raise ValueError(
            "position_ids must count 0, 1, 2, ... from the start of each document (they say where packed "
            "documents begin), but some document starts elsewhere or has a gap. Leave position_ids out, or "
            "give cu_seqlens; padding is told by attention_mask."
        )
    starts = first.flatten().nonzero().flatten()
    if len(starts) == batch:
        return None
    return torch.nn.functional.pad(starts, (0, 1), value=total)


def check_positions(position_ids: Tensor, layout: Layout) -> None:
    """Positions follow from the mask and the cache; position_ids that say something else are refused.

    They are not checked for calls of one token: that would wait for the device at every step.
    """
    if position_ids.shape[1] <= 1 or torch.compiler.is_compiling():
        return
    batch = layout.starts.shape[0]
    given = position_ids.expand(batch, -1)
    if layout.order is not None:
        given = given[_rows(layout.order), layout.order]
    wrong = given != layout.positions
    if layout.real is not None:
        wrong = wrong & layout.real
    if wrong.any():
        raise ValueError(
            "position_ids must be the number of real tokens before each token (by attention_mask and the "
            "cache), but they are not. Leave them out; for packed documents give position_ids or cu_seqlens "
            "without attention_mask."
        )


def loss_exclusion_mask(
    labels: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Tensor | None:
    """bool like labels [B, T]: True for padding and for the first token of each document, which no token of
    its own document predicts. None where that is column 0 alone, which no loss uses."""
    if attention_mask is not None:
        mask = attention_mask != 0
        return (~mask | (mask.cumsum(1) == 1))[:, -labels.shape[1] :]
    if cu_seqlens is not None:
        first = labels.new_zeros(labels.shape[1] + 1, dtype=torch.bool)
        return first.index_fill(0, cu_seqlens.to(torch.int64), True)[None, :-1]
    return None if position_ids is None else (position_ids == 0).expand_as(labels)
