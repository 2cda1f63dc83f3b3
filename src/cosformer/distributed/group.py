"""The processes that share a sequence: who they are, and whether they all make the same call."""

from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from cosformer.ops.checks import positive_int

_MESSAGE = 1024  # bytes of a rank's description of its call


class SequenceParallelError(RuntimeError):
    """A call over a sequence group that another rank made impossible. Every rank of the group raises."""


class SequenceGroup:
    """The ranks of a process group in the order of their shards: rank r holds tokens r L .. (r + 1) L - 1.

    Args:
        group: a process group, a DeviceMesh of one dimension, or None for all processes.

    Attributes:
        group, rank, size: of torch.distributed.
    """

    def __init__(self, group: "ProcessGroup | DeviceMesh | None" = None):
        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise ValueError(
                    f"a sequence group is one dimension of a DeviceMesh, but got a mesh of {group.ndim}, "
                    f'{group.mesh_dim_names}: name the one, as in mesh["sequence"].'
                )
            group = group.get_group()
        if not dist.is_initialized():
            raise RuntimeError(
                "a sequence group needs torch.distributed: start with torchrun and call init_process_group."
            )
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError(
                f"process {dist.get_rank()} is not a member of this sequence group: give each process the "
                'group it belongs to, as mesh["sequence"] of a DeviceMesh does.'
            )
        # Messages go over gloo where the group has it ("cpu:gloo,cuda:nccl"), so that no GPU is waited for.
        of_hosts = "cpu:" in dist.get_backend_config(self.group)
        self.words_on = torch.device("cpu" if of_hosts else "cuda")

    def __deepcopy__(self, memo: object) -> "SequenceGroup":
        return self  # a copy of a model works with the same ranks

    def agree(self, call: str, error: Exception | None = None) -> None:
        """Raises on every rank where one has an error, or makes a different call. Costs one message between
        hosts; a group with NCCL alone sends it between its GPUs, and waits for them."""
        if self.size == 1:
            if error is not None:
                raise error
            return
        said = self._gather_words(f"={call}" if error is None else f"!{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, words in enumerate(said):
            if words.startswith("!"):
                raise SequenceParallelError(
                    f"rank {rank} of the sequence group of {self.size} stopped: {words[1:]}"
                )
        usual = max(said, key=said.count)
        odd = [rank for rank, words in enumerate(said) if words != usual]
        if odd:
            raise SequenceParallelError(
                f"the ranks of a sequence group must make the same call, but rank {odd[0]} of {self.size} "
                f"has {said[odd[0]][1:]}, and rank {said.index(usual)} has {usual[1:]}: give every rank a "
                "shard of one batch, as shard_batch cuts it."
            )

    def _gather_words(self, words: str) -> list[str]:
        raw = words.encode()[:_MESSAGE].ljust(_MESSAGE, b"\0")
        own = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(self.words_on)
        every = [torch.empty_like(own) for _ in range(self.size)]
        try:
            dist.all_gather(every, own, group=self.group)
        except RuntimeError as error:
            raise SequenceParallelError(
                f"rank {self.rank} of the sequence group of {self.size} lost the others: one of them has "
                f"ended, and its own words say why ({str(error).splitlines()[0][:200]})."
            ) from error
        return [bytes(x.tolist()).rstrip(b"\0").decode(errors="replace") for x in every]


AnyGroup: TypeAlias = SequenceGroup | ProcessGroup | DeviceMesh | None


def sequence_group(group: AnyGroup) -> SequenceGroup:
    return group if isinstance(group, SequenceGroup) else SequenceGroup(group)


def sequence_mesh(size: int, *, device_type: str | None = None) -> DeviceMesh:
    """All processes as a mesh ("data", "sequence"): `size` neighbours share a sequence, and
    world size / `size` such groups work in parallel. mesh["sequence"] is the group of this process."""
    from torch.distributed.device_mesh import init_device_mesh

    size, world = positive_int("sequence_parallel", size), dist.get_world_size()
    if world % size:
        raise ValueError(
            f"sequence_parallel={size} must divide the number of processes, but there are {world}: start a "
            f"multiple of {size} of them, or choose another size."
        )
    device_type = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    return init_device_mesh(device_type, (world // size, size), mesh_dim_names=("data", "sequence"))
