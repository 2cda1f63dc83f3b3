"""Documents of any lengths as one row without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# What a document may bring that no loss depends on.
_UNREAD = {"token_type_ids", "special_tokens_mask", "offset_mapping", "length"}


@dataclass
class PackingCollator:
    """Collator for training without padding: {"input_ids": [...], "labels": [...]} of each document become
    one row, with its bounds as `cu_seqlens`.

        documents of 5, 1 and 3 tokens  ->  input_ids [1, 9], labels [1, 9], cu_seqlens [0, 5, 6, 9]

    Labels are the tokens themselves where a document brings none; the first token of a document is
    not predicted, and what its `attention_mask` hides is left out. Every language model of
    `cosformer.models` takes the result.

    Args:
        max_tokens: of a row, or None; documents that do not fit raise an error.
    """

    max_tokens: int | None = None

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        if not features:
            raise ValueError("there are no documents to pack: a row needs at least one.")
        documents, labels = zip(*(_document(feature) for feature in features), strict=True)
        lengths = [len(d) for d in documents]
        if self.max_tokens is not None and sum(lengths) > self.max_tokens:
            raise ValueError(
                f"{len(documents)} documents with {sum(lengths)} tokens do not fit a row of "
                f"{self.max_tokens}: take fewer at a time, or shorter ones."
            )
        if sum(lengths) == 0:
            raise ValueError(
                "the documents have no token to pack, of those that attention_mask leaves: give one that has."
            )
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        return {
            "input_ids": torch.cat(documents)[None],
            "labels": torch.cat(labels)[None],
            "cu_seqlens": bounds.to(torch.int32),
        }


def _document(feature: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Tokens and labels of a document, of which the first has no label."""
    given = {name for name, value in feature.items() if value is not None and not isinstance(value, str)}
    unknown = given - {"input_ids", "labels", "attention_mask"} - _UNREAD
    if unknown or feature.get("input_ids") is None:
        what = f"got {', '.join(sorted(unknown))}" if unknown else "input_ids is missing"
        raise ValueError(
            "PackingCollator reads input_ids of each document, and its labels and attention_mask where it "
            f"has them, but {what}: give the loss of each token by labels, -100 for none, and leave out the "
            "rest."
        )
    ids = _whole_numbers("input_ids", feature["input_ids"])
    own, mask = feature.get("labels"), feature.get("attention_mask")
    labels = ids.clone() if own is None else _whole_numbers("labels", own, len(ids))
    if mask is not None:
        real = _whole_numbers("attention_mask", mask, len(ids)) != 0
        ids, labels = ids[real], labels[real]
    labels[:1] = -100
    return ids, labels


def _whole_numbers(name: str, given: Any, length: int | None = None) -> Tensor:
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{name} of a document must be a list or tensor [T] of whole numbers, but got a "
            f"{type(given).__name__} of something else: encode texts with the tokenizer."
        ) from None
    if found.dim() == 2 and len(found) == 1:  # as a tokenizer gives a text as tensors
        found = found[0]
    if found.dim() != 1 or (found.numel() and (found.is_floating_point() or found.is_complex())):
        raise ValueError(
            f"{name} of a document must be a list or tensor [T] of whole numbers, but got {found.dtype} of "
            f"shape {list(found.shape)}."
        )
    if length is not None and len(found) != length:
        raise ValueError(
            f"{name} must have an entry for each of a document's {length} tokens, but has {len(found)}."
        )
    return found.to(torch.int64, copy=True)
