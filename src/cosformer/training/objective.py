"""From a batch to its loss, and what it counts by."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cosformer.models import shard_batch
from cosformer.models.layout import loss_exclusion_mask
from cosformer.tasks import Task
from cosformer.training.evaluation import autocast
from cosformer.training.loader import Batch
from cosformer.training.mesh import Mesh


class Objective:
    """The loss of an update is the mean over its items: the tokens that the model is asked for, or samples.
    An update is computed in parts, by several processes: each part counts by its items."""

    def __init__(self, task: Task, mesh: Mesh, *, batch: int, precision: str):
        self.head, self.mesh, self.batch, self.precision = task.head, mesh, batch, precision
        self.counts_tokens = task.head in ("causal_lm", "masked_lm", "conditional_generation")

    def count(self, parts: Sequence[Batch]) -> tuple[Tensor | int, Tensor]:
        """Items of an update, over all processes; real tokens of this process's parts. Nothing waits for the
        device."""
        tokens = torch.stack([_tokens(part) for part in parts]).sum()
        if not self.counts_tokens:
            return self.batch, tokens
        items = torch.stack([self._items(part) for part in parts]).sum()
        return (self.mesh.sum(items) // self.mesh.sequence).clamp_min(1), tokens

    def loss(self, model: Any, part: Batch, items: Tensor | int) -> Tensor:
        """A part's share of the update's loss, times the number of groups of processes, over which the
        gradients are averaged: sum over its items / items of the update · groups."""
        group, inputs = self.mesh.sequence_group, dict[str, Any](part)
        if self.counts_tokens:
            inputs |= {"num_items_in_batch": items, "labels": self._asked(part)}
        if group is not None:
            inputs = shard_batch(inputs, group, causal=self.head == "causal_lm")
        with autocast(self.precision, self.mesh.device):
            loss: Tensor = model(**inputs)["loss"]
        if not self.counts_tokens:
            loss = loss * (len(part["labels"]) / items)
        return loss * self.mesh.data_size

    def _items(self, batch: Batch) -> Tensor:
        labels = self._asked(batch)
        return ((labels[:, 1:] if self.head == "causal_lm" else labels) != -100).sum()

    def _asked(self, batch: Batch) -> Tensor:
        """Labels, -100 where the model has no loss whatever they say."""
        labels: Tensor = batch["labels"]
        if self.head != "causal_lm":
            return labels
        hidden = loss_exclusion_mask(
            labels, batch.get("attention_mask"), batch.get("position_ids"), batch.get("cu_seqlens")
        )
        return labels if hidden is None else labels.masked_fill(hidden, -100)


def _tokens(batch: Batch) -> Tensor:
    """Real tokens of a part."""
    counts = [
        x.sum() if name.endswith("attention_mask") else x.new_full((), x.numel())
        for name, x in batch.items()
        if name.endswith("attention_mask")
        or (name.endswith("input_ids") and name.replace("input_ids", "attention_mask") not in batch)
    ]
    return torch.stack(counts).sum()
