"""Which samples each update sees: a pure function of the seed and the step.

The samples of all epochs form one sequence, each epoch a permutation of its own; update u takes the positions
u·B to (u + 1)·B of it, B the batch size. So every sample is seen equally often, no batch is ever short, any
position can be computed directly, and the division among processes and parts of an accumulation does not
change which samples an update sees.

Where lengths are given, samples of similar length come together, so that little is padded: of every
GROUPED batches the samples are sorted by length, and an epoch's batches are then shuffled.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cosformer.training.run import Run

GROUPED = 64  # batches whose samples are sorted together


@dataclass(frozen=True)
class Order:
    """The samples of a process.

    Args:
        samples: of the training split.
        batch: samples of an update, over all processes and parts.
        accumulation: parts of an update.
        seed: of the permutations.
        processes, process: how many share an update, and which of them this is.
        lengths: of the samples, int [samples], where batches shall hold similar ones.
    """

    samples: int
    batch: int
    accumulation: int = 1
    seed: int = 0
    processes: int = 1
    process: int = 0
    lengths: Tensor | None = field(default=None, repr=False, compare=False)
    _drawn: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError("the training split must hold at least one sample, but it is empty.")
        if self.batch % (self.accumulation * self.processes):
            raise ValueError(
                f"batch must be a multiple of accumulation times processes, {self.accumulation} × "
                f"{self.processes}, but got {self.batch}."
            )

    @classmethod
    def of(cls, run: Run, source: Any, processes: int = 1, process: int = 0) -> "Order":
        """That of a run over the samples of its training split."""
        lengths = source.sample_lengths() if run.group_by_length else None
        return cls(len(source), run.batch_size, run.accumulation, run.seed, processes, process, lengths)

    @property
    def part(self) -> int:
        """Samples of this process in one part of an update."""
        return self.batch // (self.accumulation * self.processes)

    def pieces(self, number: int) -> list[tuple[int, Tensor]]:
        """Epoch and indices of the samples of a part, in their order; more than one where epochs meet.

        Parts are numbered through all updates, from 0."""
        position = (number * self.processes + self.process) * self.part
        left, found = self.part, []
        while left:
            epoch, place = divmod(position, self.samples)
            taken = self.permutation(epoch)[place : place + left]
            found.append((epoch, taken))
            position, left = position + len(taken), left - len(taken)
        return found

    def keys(self, number: int) -> list[tuple[int, int]]:
        """The same as (epoch, index) of each sample."""
        return [(epoch, index) for epoch, piece in self.pieces(number) for index in piece.tolist()]

    def permutation(self, epoch: int) -> Tensor:
        """The samples of an epoch in their order, int64 [samples]."""
        if epoch not in self._drawn:
            while len(self._drawn) > 1:  # a batch may span two epochs
                del self._drawn[min(self._drawn)]
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            drawn = torch.randperm(self.samples, generator=generator)
            self._drawn[epoch] = drawn if self.lengths is None else self._grouped(drawn, epoch, generator)
        return self._drawn[epoch]

    def _grouped(self, drawn: Tensor, epoch: int, generator: torch.Generator) -> Tensor:
        """Batches of similar lengths; what belongs to a batch of two epochs stays as it was drawn."""
        assert self.lengths is not None
        first = min(-epoch * self.samples % self.batch, self.samples)
        count = (self.samples - first) // self.batch
        shared, inside, rest = drawn.split(
            (first, count * self.batch, self.samples - first - count * self.batch)
        )
        blocks = inside.split(GROUPED * self.batch)
        ordered = [block[self.lengths[block].argsort(stable=True)] for block in blocks]
        batches = torch.cat(ordered).view(count, self.batch)[torch.randperm(count, generator=generator)]
        return torch.cat((shared, batches.flatten(), rest))

    def epoch(self, updates: int) -> float:
        """Epochs seen after a number of updates."""
        return updates * self.batch / self.samples
