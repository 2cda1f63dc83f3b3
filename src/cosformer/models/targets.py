"""Targets of a language model's loss."""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from cosformer.models.layout import loss_exclusion_mask
from cosformer.ops.checks import readable

IGNORED = -100  # a target that carries no loss


def next_tokens(
    labels: Tensor | None,
    shift_labels: Tensor | None,
    shape: Sequence[int],
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cu_seqlens: Tensor | None,
    ignore_index: int | None,
) -> Tensor | None:
    """The target of each column of the logits, [B, T]: the next token; IGNORED where no loss is asked for,
    where that is padding, and where it begins another document. None without labels.

    `shift_labels` are targets already, and are used in place of labels: where a sequence is split over
    processes, only the caller knows the token after the last column.
    """
    given = labels if shift_labels is None else shift_labels
    if given is None:
        return None
    _check_shape("labels" if shift_labels is None else "shift_labels", given, shape)
    hidden = loss_exclusion_mask(given, attention_mask, position_ids, cu_seqlens)
    if shift_labels is None:
        given = given if hidden is None else given.masked_fill(hidden, IGNORED)
        given = F.pad(given[:, 1:], (0, 1), value=IGNORED)
    elif hidden is not None:
        given = given.masked_fill(F.pad(hidden[:, 1:], (0, 1), value=False), IGNORED)
    return _without(given, ignore_index).contiguous()


def recount(kwargs: dict[str, Any], labels: Tensor, targets: Tensor) -> None:
    """Corrects `num_items_in_batch` where it is given: transformers' Trainer counts all labels of an update,
    and some are no targets here (padding, first tokens of documents). By their share in these rows, which is
    exact for an update in one part. In several it is where every label behind the first column is a target:
    padding and, where it is on the left, the first token of each text have -100. Elsewhere it is as near as
    the shares of the parts are alike."""
    items = kwargs.get("num_items_in_batch")
    if items is not None:
        counted, asked = ((y != IGNORED).sum().clamp_min(1) for y in (labels, targets))
        kwargs["num_items_in_batch"] = items * (asked / counted)


def real_targets(
    labels: Tensor, shape: Sequence[int], attention_mask: Tensor | None, ignore_index: int | None
) -> Tensor:
    """Labels [B, T], which is the shape of the logits, with IGNORED in columns of padding and in place of
    `ignore_index`. A mask that is longer begins with columns of earlier calls."""
    _check_shape("labels", labels, shape)
    targets = _without(labels, ignore_index)
    if attention_mask is not None:
        targets = targets.masked_fill(attention_mask[:, -targets.shape[1] :] == 0, IGNORED)
    return targets.contiguous()


def check_targets(targets: Tensor, size: int, of: str) -> None:
    """Raises where a target is no number of `of`, which has `size` of them."""
    if not readable(targets) or targets.is_floating_point():
        return
    wrong = (targets != IGNORED) & ((targets < 0) | (targets >= size))
    if wrong.any():
        raise ValueError(
            f"labels must be from 0 to {size - 1}, {of}, or {IGNORED} for none, but got "
            f"{int(targets[wrong][0])}."
        )


def _check_shape(name: str, given: Any, shape: Sequence[int]) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a tensor [B, T], but got {type(given).__name__}.")
    if tuple(given.shape) != tuple(shape):
        raise ValueError(
            f"{name} must have shape [B, T] = {list(shape)}, one for each column of the logits, but got "
            f"{list(given.shape)}."
        )


def _without(targets: Tensor, ignore_index: int | None) -> Tensor:
    """Targets with IGNORED in place of `ignore_index`."""
    return targets if ignore_index is None else targets.masked_fill(targets == ignore_index, IGNORED)
