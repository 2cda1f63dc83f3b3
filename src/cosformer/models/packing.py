"""Documents of any lengths as one row without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class PackingCollator:
    """Collator for training without padding: {"input_ids": [...], "labels": [...]} of each document become
    one row, with its bounds as `cu_seqlens`.

        documents of 5, 1 and 3 tokens  ->  input_ids [1, 9], labels [1, 9], cu_seqlens [0, 5, 6, 9]

    Labels are the tokens themselves where a document brings none; the first token of a document is
    not predicted. Every language model of `cosformer.models` takes the result.

    Args:
        max_tokens: of a row, or None; documents that do not fit raise an error.
    """

    max_tokens: int | None = None

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        documents = [torch.as_tensor(f["input_ids"], dtype=torch.int64).flatten() for f in features]
        labels = [
            document.clone() if f.get("labels") is None else torch.as_tensor(f["labels"]).flatten().clone()
            for document, f in zip(documents, features, strict=True)
        ]
        lengths = [len(d) for d in documents]
        if self.max_tokens is not None and sum(lengths) > self.max_tokens:
            raise ValueError(
                f"{len(documents)} documents with {sum(lengths)} tokens do not fit a row of "
                f"{self.max_tokens}: take fewer at a time, or shorter ones."
            )
        for own in labels:
            own[:1] = -100
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        return {
            "input_ids": torch.cat(documents)[None],
            "labels": torch.cat(labels)[None],
            "cu_seqlens": bounds.to(torch.int32),
        }
