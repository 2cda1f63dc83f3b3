"""The cross entropy of a language model without the logits of all its tokens.

There is a logit for each token and each word: 65,536 tokens and 50,000 words have 13 GB of them in float32,
where the attention of the same text needs a state of constant size. Here they are computed for some tokens
at a time, summed up to their loss and thrown away; the backward computes them again, which costs one more
product with the head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cosformer.ops.checks import positive_int


def chunked_cross_entropy(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    *,
    chunk: int,
    num_items: int | Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The mean cross entropy of `head(hidden)` [..., V] and targets [...] over those that count.

    Args:
        head: from hidden states [N, C] to logits [N, V].
        hidden: [..., C].
        chunk: tokens whose logits exist at a time.
        num_items: divide by this in place of the number of targets that count.
    """
    positive_int("chunk", chunk)
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            "targets must have the shape of hidden without its last dimension, "
            f"{list(hidden.shape[:-1])}, but got {list(targets.shape)}."
        )

    def summed(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = head(hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="sum")

    parts = zip(hidden.flatten(0, -2).split(chunk), targets.flatten().split(chunk), strict=True)
    # Nothing in it is random.
    losses = [checkpoint(summed, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    total: Tensor = sum(losses[1:], losses[0])
    return total / ((targets != ignore_index).sum() if num_items is None else num_items)
