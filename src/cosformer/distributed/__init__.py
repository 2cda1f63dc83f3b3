"""One sequence over many devices: the operator over a process group, exact for values and gradients."""

from cosformer.distributed.exchange import gather_sequence, group_sum
from cosformer.distributed.group import (
    SequenceGroup,
    SequenceParallelError,
    sequence_group,
    sequence_mesh,
)
from cosformer.distributed.operator import sequence_parallel_attention
from cosformer.distributed.shard import Shard

__all__ = [
    "SequenceGroup",
    "SequenceParallelError",
    "Shard",
    "gather_sequence",
    "group_sum",
    "sequence_group",
    "sequence_mesh",
    "sequence_parallel_attention",
]
