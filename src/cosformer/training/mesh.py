"""The processes of a run: which of them this is, which samples it computes, and how results are reduced. The
rest of training gets this information only from here."""

import hashlib

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from torch import Tensor

from cosformer.distributed import SequenceGroup, sequence_group, sequence_mesh


class Mesh:
    """Processes in rows and columns: `data_size` groups, each of `sequence` processes that compute the same
    samples together.

    Attributes:
        rank, size: of this process, and how many there are.
        alone: whether there is no other, be it that a launcher has started it: nothing is sent, no weight is
            wrapped.
        data_rank, data_size: of its group, and how many groups share the samples of an update.
        sequence: processes of a group, each with a part of every text.
        sequence_group: the processes of the group; None where each process has whole texts.
    """

    def __init__(self, device: str, sequence: int = 1):
        # State of an earlier run in this process, perhaps on another device.
        AcceleratorState._reset_state(reset_partial_state=True)
        # The run says how it computes: what `accelerate launch` was told of that does not count.
        self.accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no", dynamo_backend="no")
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.size: int = self.accelerator.num_processes
        self.alone = self.size == 1
        if self.size % sequence:
            raise ValueError(
                f"{self.size} processes cannot be divided into groups of sequence_parallel = {sequence}: "
                f"start a multiple of {sequence}."
            )
        self.sequence = sequence
        self.sequence_group: SequenceGroup | None = None
        if sequence > 1:
            self.sequence_group = sequence_group(
                sequence_mesh(sequence, device_type=self.device.type)["sequence"]
            )
        self.data_rank, self.data_size = self.rank // sequence, self.size // sequence

    def refuse_others(self, run: str) -> None:
        """Raises unless every process was started with the same run."""
        if self.alone:
            return
        own = int.from_bytes(hashlib.sha256(run.encode()).digest()[:7], "big")
        every = self.accelerator.gather(torch.tensor([own], device=self.device)).tolist()
        others = [rank for rank, number in enumerate(every) if number != every[0]]
        if others:
            raise ValueError(
                f"rank {others[0]} of {self.size} was started with another run than rank 0: start all alike."
            )

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        self.accelerator.wait_for_everyone()

    def sum(self, x: Tensor) -> Tensor:
        """Over all processes."""
        return x if self.alone else self.accelerator.reduce(x, "sum")

    def gather(self, x: Tensor) -> Tensor:
        """Of every process, [size, ...]."""
        return self.accelerator.gather(x[None])
