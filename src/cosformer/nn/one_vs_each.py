"""The one-vs-each loss (Titsias, NeurIPS 2016, arXiv:1609.07410): a softmax for large vocabularies.

With scores f_1 .. f_V and the label y, the softmax is bounded from below by pairs,

    log p(y) >= sum_{n != y} log sigmoid(f_y - f_n),

with equality for two classes. A sum over classes may be sampled: with S sampled uniformly among
the others,

    (V - 1) / |S| sum_{n in S} log sigmoid(f_y - f_n)

has the whole sum as its expectation, and the scores of V - |S| - 1 classes are never computed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.checks import positive_int


def one_vs_each(logits: Tensor, labels: Tensor) -> Tensor:
    """The bound itself, over all classes: logits [..., V], labels [...], out [...]."""
    margin = logits.gather(-1, labels[..., None]) - logits  # 0 at the label, where log sigmoid is -log 2
    return F.logsigmoid(margin).sum(-1) - F.logsigmoid(logits.new_zeros(()))


def one_vs_each_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    samples: int | None = None,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    num_items: int | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Minus the bound, averaged over the labels that count (0 where none does).

    Args:
        hidden: [..., C], the hidden states that the scores are computed from.
        weight: [V, C], the output embedding; bias [V] beside it.
        labels: [...], class numbers; ignore_index where no loss is wanted.
        samples: number of classes to compare the label with, at least 2, sampled at each call and shared by
            all positions; None: all of them.
        num_items: divide by this in place of the number of labels that count.
    """
    classes = weight.shape[0]
    counts = labels != ignore_index
    hidden, labels = hidden[counts], labels[counts]
    total = labels.numel() if num_items is None else num_items
    if labels.numel() == 0:
        return hidden.sum() * 0.0
    if samples is None or samples >= classes:
        bound = one_vs_each(_wide(F.linear(hidden, weight, bias)), labels)
        return -bound.sum() / total
    if positive_int("samples", samples) < 2:
        raise ValueError("samples must be at least 2: one of them may be the label itself.")
    others = torch.randperm(classes, generator=generator, device=labels.device)[:samples]
    own = (hidden * weight[labels]).sum(-1)  # (N,)
    scores = F.linear(hidden, weight[others], None if bias is None else bias[others])  # (N, S)
    if bias is not None:
        own = own + bias[labels]
    same = others == labels[:, None]
    each = F.logsigmoid(_wide(own[:, None] - scores)).masked_fill(same, 0)
    bound = each.sum(-1) * (classes - 1) / (samples - same.sum(-1))
    return -bound.sum() / total


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
