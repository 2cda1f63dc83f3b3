"""What makes a call impossible on one rank ends it on all, in a sentence that names the rank and says why."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from cosformer import attention
from cosformer.distributed import (
    SequenceGroup,
    SequenceParallelError,
    Shard,
    sequence_mesh,
    sequence_parallel_attention,
)
from cosformer.models import (
    CosformerConfig,
    CosformerForConditionalGeneration,
    CosformerForTokenClassification,
    CosformerModel,
    sequence_parallel,
    shard_batch,
)
from tests.distributed.test_models import SMALL, build
from tests.distributed.workers import Workers


def message(error, call):
    with pytest.raises(error) as found:
        call()
    return str(found.value)


def operator_errors(group):
    def call(length=4, **how):
        x = torch.randn(1, length, 2, 8)
        return message(
            (SequenceParallelError, ValueError),
            lambda: sequence_parallel_attention(x, x, x, group=group, **how),
        )

    odd = group.rank == 2
    said = [call(5 if odd else 4), call(causal=odd), call(horizon=7.0)]
    said.append(call(key_mask=torch.ones(1, 3, dtype=torch.bool) if odd else None))
    said.append(call(cu_seqlens=torch.tensor([0, 5 if odd else 6, 16])))
    x = torch.randn(1, 4, 2, 8)
    said.append(
        message(
            ValueError, lambda: sequence_parallel_attention(x[:, :3], x, x, group=group)
        )
    )  # fmt: skip
    assert sequence_parallel_attention(x, x, x, group=group).shape == x.shape  # the group is still of use
    return said


def test_operator(workers):
    for rank, said in enumerate(workers.run(operator_errors)):
        shapes, causal, horizon, mask, documents, lengths = said
        assert "rank 2 of 4 has q [1, 5, 2, 8]" in shapes
        assert "rank 0 has q [1, 4, 2, 8]" in shapes
        assert "rank 2 of 4" in causal
        assert "causal=True" in causal
        assert "horizon 7 is too small" in horizon
        assert "key_mask must have shape [B, Tk] = [1, 4], but got [1, 3]" in mask
        assert ("rank 2 of the sequence group of 4 stopped: ValueError" in mask) == (rank != 2)
        assert "rank 2 of 4" in documents
        assert "the same length L" in lengths


def model_errors(group):
    model = sequence_parallel(build("causal"), group)
    ids = torch.zeros(1, 5 if group.rank == 1 else 4, dtype=torch.int64)
    said = [message(SequenceParallelError, lambda: model(ids))]
    odd = torch.full((1, 4), 99 if group.rank == 1 else 0)
    said.append(message((SequenceParallelError, ValueError), lambda: model(odd)))
    ids = torch.zeros(1, 4, dtype=torch.int64)
    said.append(message(ValueError, lambda: model(ids, labels=ids)))
    said.append(message(ValueError, lambda: model(ids, use_cache=True)))
    for holes in ([1, 1, 1, 0] * 2 + [1] * 4, [1] * 8 + [1, 0, 1, 0]):
        mask = torch.tensor([holes[4 * group.rank : 4 * group.rank + 4]])
        call = lambda: model(ids, attention_mask=mask)  # noqa: B023, E731
        said.append(message((SequenceParallelError, ValueError), call))
    long = torch.zeros(1, 14, dtype=torch.int64)
    said.append(message(ValueError, lambda: model(long)))
    batch = {"input_ids": long, "position_ids": long}
    said.append(message(ValueError, lambda: shard_batch(batch, group, causal=True)))
    return said


def test_model(workers):
    for rank, said in enumerate(workers.run(model_errors, size=3)):
        shapes, ids, labels, cache, *holes, long, positions = said
        assert "rank 1 of 3 has tokens [1, 5, 32]" in shapes
        assert "input_ids must be from 0 to 31" in ids
        assert ("rank 1 of the sequence group of 3 stopped" in ids) == (rank != 1)
        assert "shift_labels" in labels
        assert "use_cache must be left out" in cache
        assert all("padding at the end of the whole sequence" in words for words in holes)
        assert "position 41 is past the end" in long
        assert "position_ids must be left out" in positions


def group_errors(group):
    said = [message(ValueError, lambda: sequence_mesh(3, device_type="cpu"))]
    mesh = sequence_mesh(2, device_type="cpu")
    assert SequenceGroup(mesh["sequence"]).size == 2
    said.append(message(ValueError, lambda: SequenceGroup(mesh)))
    others = dist.new_group([0, 1])
    if group.rank > 1:
        said.append(message(ValueError, lambda: SequenceGroup(others)))
    return said


def test_groups_of_the_wrong_size(workers):
    for said in workers.run(group_errors):
        assert "sequence_parallel=3 must divide the number of processes, but there are 4" in said[0]
        assert 'mesh["sequence"]' in said[1]
        assert all("is not a member of this sequence group" in words for words in said[2:])


def mechanism_errors(group):
    config = CosformerConfig.paper(**SMALL | {"num_key_value_heads": 4}, attention=["cosformer", "linformer"])
    said = [message(ValueError, lambda: sequence_parallel(CosformerModel(config), group))]
    pair = CosformerForConditionalGeneration(CosformerConfig.paper(**SMALL))
    said.append(message(ValueError, lambda: sequence_parallel(pair, group)))
    tagger = CosformerForTokenClassification(CosformerConfig.paper(**SMALL))
    said.append(message(ValueError, lambda: sequence_parallel(tagger, group)))
    x = torch.randn(1, 4, 2, 8)
    one = attention.build("performer", head_dim=8)
    said.append(
        message(ValueError, lambda: one.split(x, x, Shard(group, 4), causal=True, lengths=None))
    )  # fmt: skip
    return said


def test_mechanisms_that_cannot_be_split(workers):
    for linformer, cross, tagger, performer in workers.run(mechanism_errors, size=2):
        assert "attention 'linformer' cannot be split over a sequence group" in linformer
        assert "CosformerForConditionalGeneration cannot be split" in cross
        assert "CosformerForTokenClassification cannot be split" in tagger
        assert "attention 'performer' cannot be split over a sequence group" in performer


def last_rank_ends(group):
    if group.rank == group.size - 1:
        os._exit(1)
    model = sequence_parallel(build("causal"), group)
    start = time.monotonic()
    said = message(SequenceParallelError, lambda: model(torch.zeros(1, 4, dtype=torch.int64)))
    return said, time.monotonic() - start


def test_a_rank_that_ends(tmp_path):
    """Processes of their own: they are of no use afterwards."""
    own = Workers(tmp_path, size=3)
    for pipe in own.pipes:
        pipe.send((last_rank_ends, 3, ()))
    for rank, pipe in enumerate(own.pipes[:2]):
        assert pipe.poll(30)
        error, (said, seconds) = pipe.recv()
        assert error is None
        assert f"rank {rank} of the sequence group of 3 lost the others" in said
        assert seconds < 10
    own.close()


def test_the_trait_is_what_an_attention_can_do():
    for name in attention.names():
        own = type(attention.build(name)).split is not attention.Attention.split
        assert attention.traits(name).sequence_parallel == own, name


def test_without_processes():
    with pytest.raises(RuntimeError, match="init_process_group"):
        SequenceGroup()
