"""Models over a sequence that the ranks of a process group share: each holds a part of every row."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from cosformer.distributed import SequenceGroup, Shard, sequence_group
from cosformer.distributed.exchange import group_gather, group_sum
from cosformer.distributed.group import AnyGroup
from cosformer.models.config import CosformerConfig
from cosformer.models.layout import loss_exclusion_mask
from cosformer.models.pooling import pool
from cosformer.models.targets import IGNORED
from cosformer.ops.packing import document_bounds

M = TypeVar("M", bound=nn.Module)
_PADDED = (
    "attention_mask must have all padding at the end of the whole sequence where that is split over a group, "
    "but there is some before a real token: cut batches with shard_batch, which moves it there."
)


def sequence_parallel(model: M, group: AnyGroup) -> M:
    """Splits the sequences of a model over a process group, or one dimension of a DeviceMesh. From then on
    each rank calls the model with its own shard of a batch (`shard_batch`), and all of them together.

    Losses are means over all tokens of all ranks, the same on every rank. The mean over the ranks of the
    gradients is the gradient of the loss, as DDP and FSDP2 form it.
    """
    ranks, config = sequence_group(group), cast(CosformerConfig, model.config)
    if config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} cannot be split over a sequence group: its cross-attention reads a "
            "whole source. Give each process whole sequences."
        )
    if not getattr(model, "splits_sequences", True):
        raise ValueError(
            f"{type(model).__name__} cannot be split over a sequence group: its loss is that of whole "
            "sequences. Give each process whole sequences."
        )
    unable = config.lacking("sequence_parallel")
    if unable is not None:
        raise ValueError(
            f"attention {unable!r} cannot be split over a sequence group: its trait sequence_parallel is "
            "False. Give each process whole sequences, or choose another attention."
        )
    for module in model.modules():
        if hasattr(module, "sequence_group"):
            cast(Any, module).sequence_group = None if ranks.size == 1 else ranks
    return model


@contextmanager
def with_whole_sequences(model: nn.Module) -> Iterator[None]:
    """Inside this context, each rank calls the model with whole sequences of its own."""
    found = [m for m in model.modules() if getattr(m, "sequence_group", None) is not None]
    groups = [cast(Any, m).sequence_group for m in found]
    for m in found:
        cast(Any, m).sequence_group = None
    try:
        yield
    finally:
        for m, group in zip(found, groups, strict=True):
            cast(Any, m).sequence_group = group


def shard_batch(batch: Mapping[str, Any], group: AnyGroup, *, causal: bool) -> dict[str, Any]:
    """The shard of this rank of a batch that every rank of the group holds whole.

    Tokens [B, T] are padded at the end to a multiple of the ranks; the padding is masked, or a document of
    its own where documents are packed. Padding elsewhere is moved to the end. Labels of a causal model become
    `shift_labels`, so that a token at the end of a shard has the first of the next one as its target, and
    `num_items_in_batch` says how many labels count in the whole batch. Other entries are left as they are.

    Args:
        batch: input_ids or inputs_embeds, and attention_mask, labels, cu_seqlens where there are any; those
            of a second sequence have names that begin with pair_.
        group: of the model.
        causal: whether the labels are those of the next token.
    """
    ranks, made = sequence_group(group), dict(batch)
    for prefix in ("", "pair_"):
        names = [prefix + name for name in ("input_ids", "inputs_embeds") if prefix + name in batch]
        if names:
            made |= _sharded(batch, ranks, causal, prefix, names[0])
    if batch.get("position_ids") is not None:
        raise ValueError(
            "position_ids must be left out of a batch that is split over a sequence group: give cu_seqlens "
            "for packed documents, attention_mask for padding."
        )
    return made


def _sharded(
    batch: Mapping[str, Any], ranks: SequenceGroup, causal: bool, prefix: str, name: str
) -> dict[str, Any]:
    tokens = batch[name]
    rows, length = tokens.shape[:2]
    short = -length % ranks.size
    own = slice(
        ranks.rank * (length + short) // ranks.size, (ranks.rank + 1) * (length + short) // ranks.size
    )
    mask, cu_seqlens = batch.get(prefix + "attention_mask"), batch.get(prefix + "cu_seqlens")
    labels, made = batch.get("labels") if not prefix else None, dict[str, Any]()
    if labels is not None and labels.shape[:2] == tokens.shape[:2]:
        if causal:
            blind = loss_exclusion_mask(labels, mask, None, cu_seqlens)
            labels = labels if blind is None else labels.masked_fill(blind, IGNORED)
    else:
        labels = None
    if mask is not None:
        mask = mask != 0
        order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
        at = torch.arange(rows, device=order.device)[:, None], order
        tokens, mask = tokens[at], mask[at]
        labels = None if labels is None else labels[at].masked_fill(~mask, IGNORED)
    elif short and cu_seqlens is None:
        mask = torch.ones((rows, length), dtype=torch.bool, device=tokens.device)

    def cut(x: Tensor, value: Any) -> Tensor:
        return F.pad(x, (*[0, 0] * (x.dim() - 2), 0, short), value=value)[:, own].contiguous()

    made[name] = cut(tokens, 0)
    if mask is not None:
        made[prefix + "attention_mask"] = cut(mask, False)
    if cu_seqlens is not None and short:
        made[prefix + "cu_seqlens"] = F.pad(cu_seqlens, (0, 1), value=length + short)
    if labels is not None:
        if causal:
            labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
            made["labels"] = None
        made["shift_labels" if causal else "labels"] = cut(labels, IGNORED)
        if batch.get("num_items_in_batch") is None:
            made["num_items_in_batch"] = (labels != IGNORED).sum()
    return made


def forward(
    model: Any,
    ids: Tensor | None,
    embedded: Tensor | None,
    attention_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    output_hidden_states: bool | None,
    refused: Mapping[str, Any],
) -> BaseModelOutputWithPastAndCrossAttentions:
    """`CosformerModel.forward` for the shard of this rank: hidden states [B, L, hidden_size]."""
    group: SequenceGroup = model.sequence_group
    x, shard, error = torch.empty(0), Shard(group, 1), None
    try:
        for name, value in refused.items():
            if value is not None and value is not False:
                raise ValueError(f"{name} must be left out where a sequence is split over a group.")
        x = model._embed(ids, embedded)
        shard = _shard(model, x, attention_mask, cu_seqlens)
    except (TypeError, ValueError) as found:
        error = found
    # The ranks compare their calls once for all layers, between hosts, before anything else is sent.
    documents = "" if shard.packed is None else f", documents {hash(shard.packed):x}"
    masked = "" if attention_mask is None else ", attention_mask"
    group.agree(f"tokens {list(x.shape)}, {x.dtype}, training={model.training}{masked}{documents}", error)
    positions, lengths, real = shard.positions(x.device), None, None
    if attention_mask is not None:
        lengths = _lengths(model, attention_mask != 0, shard)
        real = torch.arange(shard.start, shard.stop, device=x.device) < lengths[:, None]
        positions = positions.expand(x.shape[0], -1).masked_fill(~real, 0)
        x = x.masked_fill(~real[..., None], 0)
    x = model.dropout(model.position.embed(x, positions))
    if not model.config.pre_norm:
        x = model.norm(x)
    rotate = model.position.rotation(positions)
    hidden = [x]
    for block in model.layers:
        x, *_ = block(x, None, rotate=rotate, lengths=lengths, shard=shard)
        hidden.append(x)
    if model.config.pre_norm:
        x = hidden[-1] = model.norm(x)
    if real is not None:
        x = x.masked_fill(~real[..., None], 0)
    return BaseModelOutputWithPastAndCrossAttentions(
        last_hidden_state=x, hidden_states=tuple(hidden) if output_hidden_states else None
    )


def _shard(model: Any, x: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> Shard:
    batch, length = x.shape[:2]
    shard = Shard(model.sequence_group, length)
    if cu_seqlens is not None:
        if mask is not None or batch != 1:
            raise ValueError("cu_seqlens needs a batch of 1 (one packed row) and no attention_mask.")
        bounds = document_bounds(cu_seqlens, shard.total)
        model.check_length(max(b - a for a, b in itertools.pairwise(bounds)), None)
        return Shard(model.sequence_group, length, tuple(bounds))
    if mask is None:
        model.check_length(shard.total, None)
    else:
        own = model.own_mask(mask, batch, length, None)
        if own.device.type == "cpu" and (own[:, 1:] & ~own[:, :-1]).any():
            raise ValueError(_PADDED)
    return shard


def _lengths(model: Any, mask: Tensor, shard: Shard) -> Tensor:
    """int64 [B]: real tokens of each row over all ranks, which lie before its padding."""
    counts = mask.sum(1)
    every = [torch.empty_like(counts) for _ in range(shard.group.size)]
    dist.all_gather(every, counts, group=shard.group.group)
    by_rank = torch.stack(every)
    lengths = by_rank.sum(0)
    if lengths.device.type == "cpu":  # elsewhere a check would wait for the device
        starts = torch.arange(shard.group.size)[:, None] * shard.length
        if not torch.equal(by_rank, (lengths - starts).clamp(0, shard.length)):
            raise ValueError(_PADDED)
    if model.limit is not None and shard.total > model.limit:
        model.check_length(int(lengths.max()), None)
    return lengths


def labels_that_count(labels: Tensor, group: SequenceGroup) -> Tensor:
    """How many labels all ranks have together."""
    count = (labels != IGNORED).sum()
    dist.all_reduce(count, group=group.group)
    return count


def pool_over_group(hidden: Tensor, mask: Tensor | None, kind: str, group: SequenceGroup) -> Tensor:
    """[B, L, C] of each rank to [B, C], as `pool` of the whole sequence."""
    if kind == "cls":  # the first token is the first rank's
        first = pool(hidden, mask, kind)
        return group_sum(first if group.rank == 0 else first * 0, group)
    if mask is None:
        mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    mask = mask != 0
    if kind == "mean":
        sums = torch.cat([(hidden * mask[..., None]).sum(1), mask.sum(1, keepdim=True).to(hidden.dtype)], -1)
        sums = group_sum(sums, group)
        return sums[:, :-1] / sums[:, -1:].clamp_min(1)
    largest = group_gather(hidden.masked_fill(~mask[..., None], -torch.inf).amax(1), group).amax(0)
    return largest.masked_fill(largest == -torch.inf, 0)
