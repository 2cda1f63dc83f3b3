"""Batches collated on the CPU, by worker processes where asked for; the same ones however many there are."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cosformer.training.order import Order

Batch = dict[str, Tensor]
Key = tuple[int, int]
_PR_SET_PDEATHSIG = 1


class Keyed(Dataset[Batch]):
    """A split under keys (epoch, index).

    Samples that change from epoch to epoch (`set_epoch`) do so here, where they are fetched: a worker has its
    own copy of the data set, which the main process cannot reach.
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset
        self.epoch: int | None = None

    def __getitem__(self, key: Key) -> Batch:
        epoch, index = key
        if epoch != self.epoch:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(epoch)
            self.epoch = epoch
        return self.dataset[index]


class LoaderDataset:
    """Batches of a split through a `DataLoader`."""

    def __init__(self, task: Any, dataset: Any, *, workers: int, device: torch.device):
        self.task, self.dataset, self.workers, self.device = task, dataset, workers, device

    def __len__(self) -> int:
        return len(self.dataset)

    def sample_lengths(self) -> Tensor:
        """Tokens of each sample, int64 [samples]; of a pair, both together; zeros where nothing is padded."""
        if not any(name.endswith("attention_mask") for name in self.task.collate([self.dataset[0]])):
            return torch.zeros(len(self), dtype=torch.int64)
        rows = (self.dataset[i] for i in range(len(self)))
        return torch.tensor(
            [sum(len(x) for name, x in row.items() if name.endswith("input_ids")) for row in rows]
        )

    def training(self, order: Order, first: int, last: int) -> Iterator[Batch]:
        """Parts `first` to `last` - 1 of the order."""
        return self._batches(order.keys, range(first, last))

    def by_length(self, indices: Sequence[int]) -> list[int]:
        """The places of these samples, in their own order: their lengths are not known before they are
        read."""
        return list(range(len(indices)))

    def evaluation(self, indices: Sequence[int], batch: int) -> Iterator[Batch]:
        """These samples in their order, the last batch as short as it may be."""

        def keys(start: int) -> list[Key]:
            return [(0, i) for i in indices[start : start + batch]]

        return self._batches(keys, range(0, len(indices), batch))

    def _batches(self, choose: Callable[[int], list[Key]], numbers: range) -> Iterator[Batch]:
        loader = DataLoader(
            Keyed(self.dataset),
            batch_sampler=map(choose, numbers),
            collate_fn=self.task.collate,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            # The workers' seeds would otherwise come from the generator that dropout uses.
            generator=torch.Generator().manual_seed(0),
            worker_init_fn=partial(_bind, os.getpid()),
        )
        for batch in loader:
            yield {name: x.to(self.device, non_blocking=True) for name, x in batch.items()}


def _bind(parent: int, worker: int) -> None:
    """A worker lives exactly as long as the process it works for.

    Ctrl-C reaches all processes of a terminal; only the main process handles it. If that is killed, its
    workers are killed with it: PyTorch's own watchdog starts too late for a process that is killed at its
    start.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
