"""Several documents in one row (`cu_seqlens`): each is computed as if it were alone.

Long documents go through the operator one by one, as views; short ones are gathered side by side as
rows of a batch, padded to the next power of two behind their last token, and masked there. No sum
ever runs over tokens of two documents, so nothing one of them holds can reach another.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.checks import within_horizon

_SHORT = 256  # longer documents fill the operator's buffers by themselves
_GATHERED = 8192  # tokens at a time, so that the copies stay small


class Bundle(NamedTuple):
    """Documents computed together: their numbers, their tokens [documents, length], the real ones."""

    documents: Tensor
    tokens: Tensor | slice
    real: Tensor | None

    def take(self, x: Tensor) -> Tensor:
        """[1, T, ...] as [documents, length, ...]."""
        return x[:, self.tokens] if isinstance(self.tokens, slice) else x[0, self.tokens]

    def put(self, into: Tensor, x: Tensor) -> None:
        if isinstance(self.tokens, slice):
            into[:, self.tokens] = x
        else:
            into[0, self.tokens[self.real]] = x[self.real]


def document_bounds(cu_seqlens: Tensor, length: int) -> list[int]:
    """The bounds as ints, validated."""
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, but it starts at {bounds[0]}.")
    for i, (a, b) in enumerate(itertools.pairwise(bounds)):
        if b < a:
            raise ValueError(
                f"cu_seqlens must never fall, but it goes from {a} to {b} (document {i}); it holds the "
                "running sum of the documents' lengths."
            )
    if bounds[-1] != length:
        raise ValueError(
            f"cu_seqlens must end at the length of the row, {length}, but it ends at {bounds[-1]}."
        )
    return bounds


def check_documents(cu_seqlens: Tensor, length: int, positions: Tensor | None, horizon: float) -> list[int]:
    """The bounds; raises if a document, with what its state has seen, is longer than the horizon."""
    bounds = document_bounds(cu_seqlens, length)
    past = [0] * (len(bounds) - 1) if positions is None else positions.tolist()
    documents = zip(itertools.pairwise(bounds), past, strict=True)
    furthest = max((seen + b - a - 1 for (a, b), seen in documents if b > a), default=0)
    within_horizon(furthest, horizon, furthest)
    return bounds


def bundles(bounds: list[int], device: torch.device) -> Iterator[Bundle]:
    by_size: dict[int, list[int]] = {}
    for n, (a, b) in enumerate(itertools.pairwise(bounds)):
        if b - a > _SHORT:
            yield Bundle(torch.tensor([n], device=device), slice(a, b), None)
        elif b > a:
            by_size.setdefault(1 << (b - a - 1).bit_length(), []).append(n)
    bound = torch.tensor(bounds, device=device)
    for size, numbers in sorted(by_size.items()):
        for i in range(0, len(numbers), _GATHERED // size):
            documents = torch.tensor(numbers[i : i + _GATHERED // size], device=device)
            start, stop = bound[documents, None], bound[documents + 1, None]
            tokens = start + torch.arange(size, device=device)
            yield Bundle(documents, torch.minimum(tokens, stop - 1), tokens < stop)
