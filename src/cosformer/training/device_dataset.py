"""A whole split as tensors on the device: a batch is then one gather, and a small model never waits for
data."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cosformer.tasks import Rows
from cosformer.training.loader import Batch, Keyed
from cosformer.training.order import Order

# Bytes, as stored; larger splits are read by the loader.
LIMIT = 2 * 2**30
_BLOCK = 1024  # samples collated at a time
IGNORED = -100  # a label that is none


class TooLarge(ValueError):
    """A split takes more of the device's memory than it may."""


class DeviceDataset:
    """A split, collated once, padded to its longest sample and kept in the smallest integers that hold it.

    A batch is cut to its own longest sample, rounded up as `tasks.base.padded` does. With `shapes`, for
    compiled models and graphs, it has one of at most that many lengths: equal parts of the longest of all. A
    split of more than `limit` bytes raises `TooLarge`, as soon as that is known.
    """

    def __init__(
        self, task: Any, dataset: Any, *, device: torch.device, shapes: int | None, limit: int | None = None
    ):
        self.device, self.shapes, self.samples = device, shapes, len(dataset)
        blocks: dict[str, list[Tensor]] = {}
        lengths: dict[str, list[Tensor]] = {}
        keyed = Keyed(dataset)
        ready = dataset.columns() if hasattr(dataset, "columns") else None
        if ready is not None:
            blocks = {name: [x] for name, x in ready.items()}
            _refuse(blocks, self.samples, limit)
        for at in range(0, self.samples if ready is None else 0, _BLOCK):
            rows = [keyed[0, i] for i in range(at, min(at + _BLOCK, self.samples))]
            for name, x in task.collate(rows).items():
                if len(x) != len(rows):
                    raise ValueError(
                        f"{name} of task {task.name!r} has {len(x)} rows for {len(rows)} samples, which "
                        'cannot be kept on the device: give data="loader".'
                    )
                blocks.setdefault(name, []).append(_small(x))
                if name.endswith("attention_mask"):
                    lengths.setdefault(name.replace("attention_mask", "input_ids"), []).append(_lengths(x))
                elif name == "labels" and task.head == "conditional_generation":
                    lengths.setdefault(name, []).append(_lengths(x != IGNORED))
            _refuse(blocks, self.samples, limit)
        pad = task.pad_token_id or 0
        filler = {"input_ids": pad, "pair_input_ids": pad, "labels": IGNORED}
        self.dtypes = {name: x.dtype for name, x in task.collate([keyed[0, 0]]).items()}
        self.columns = {n: _joined(parts, filler.get(n, 0)).to(device) for n, parts in blocks.items()}
        # Of texts, and of labels that are texts of their own. On the CPU: the length of a batch is then known
        # without waiting for the device.
        self.lengths = {name: torch.cat(parts) for name, parts in lengths.items()}

    def __len__(self) -> int:
        return self.samples

    def sample_lengths(self) -> Tensor:
        """Tokens of each sample, int64 [samples]; of a pair, both together."""
        texts = (x for name, x in self.lengths.items() if name.endswith("input_ids"))
        return sum(texts, torch.zeros(self.samples, dtype=torch.int64))

    def _unit(self, name: str) -> int:
        """What the length of a batch is a multiple of."""
        longest = self.columns[name].shape[1]
        return 8 if self.shapes is None else -(-longest // (8 * self.shapes)) * 8

    def training(self, order: Order, first: int, last: int) -> Iterator[Batch]:
        """Parts `first` to `last` - 1 of the order."""
        for number in range(first, last):
            yield self._batch(torch.cat([piece for _, piece in order.pieces(number)]))

    def by_length(self, indices: Sequence[int]) -> list[int]:
        """The places of these samples, the longest first: batches are then cut to their own lengths."""
        chosen = torch.tensor(list(indices), dtype=torch.int64)
        return self.sample_lengths()[chosen].argsort(stable=True, descending=True).tolist()

    def evaluation(self, indices: Sequence[int], batch: int) -> Iterator[Batch]:
        """These samples in their order, the last batch as short as it may be."""
        for at in range(0, len(indices), batch):
            yield self._batch(torch.tensor(list(indices[at : at + batch]), dtype=torch.int64))

    def _batch(self, chosen: Tensor) -> Batch:
        rows = chosen.to(self.device, non_blocking=True)
        batch = {name: x[rows].to(self.dtypes[name]) for name, x in self.columns.items()}
        if self.shapes != 1:
            units = {name: self._unit(name) for name in self.lengths}
            parts = {
                name: -(-max(1, int(n[chosen].max())) // units[name]) for name, n in self.lengths.items()
            }
            for name, unit in units.items():
                # The texts of a pair are cut by the same share, else there would be shapes for both.
                longest = unit * (parts[name] if self.shapes is None else max(parts.values()))
                for column in self._beside(name):
                    batch[column] = batch[column][:, :longest].contiguous()
        return batch

    def _beside(self, name: str) -> list[str]:
        """The columns that have a place for each token of this one."""
        found = [name, name.replace("input_ids", "attention_mask")] if name.endswith("input_ids") else [name]
        labels = name == "input_ids" and "labels" not in self.lengths and self.columns["labels"].dim() == 2
        return [*found, "labels"] if labels else found


def is_static(dataset: Any) -> bool:
    """Whether a split has samples, and the same ones in every epoch: only then may it be kept."""
    changing = getattr(type(dataset), "set_epoch", Rows.set_epoch) is not Rows.set_epoch
    return not changing and len(dataset) > 0


def _refuse(blocks: dict[str, list[Tensor]], samples: int, limit: int | None) -> None:
    """Raises where `samples` samples, padded to the longest seen so far, take more bytes than the limit."""
    if limit is None:
        return
    width = sum(
        max(math.prod(x.shape[1:]) for x in parts) * max(x.element_size() for x in parts)
        for parts in blocks.values()
    )
    if samples * width > limit:
        raise TooLarge(f"{samples} samples of {width} bytes are more than {limit} bytes.")


def _small(x: Tensor) -> Tensor:
    """Integers in the smallest type that holds them."""
    if x.is_floating_point() or x.dtype == torch.bool or not x.numel():
        return x
    least, most = int(x.min()), int(x.max())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if torch.iinfo(dtype).min <= least and most <= torch.iinfo(dtype).max:
            return x.to(dtype)
    return x


def _joined(parts: list[Tensor], filler: int) -> Tensor:
    """Concatenates blocks [n, T] of different lengths and integer types."""
    dtype = _small(torch.tensor([filler])).dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    if parts[0].dim() < 2:
        return torch.cat([part.to(dtype) for part in parts])
    longest = max(part.shape[1] for part in parts)
    joined = torch.full((sum(map(len, parts)), longest, *parts[0].shape[2:]), filler, dtype=dtype)
    for part, rows in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        rows[:, : part.shape[1]] = part
    return joined


def _lengths(mask: Tensor) -> Tensor:
    """The columns of each row [N] up to its last real token."""
    places = torch.arange(1, mask.shape[1] + 1)
    return (places * (mask != 0)).amax(1)
