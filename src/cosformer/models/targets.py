"""What the columns of a language model have to say, for its loss."""

import torch.nn.functional as F
from torch import Tensor

from cosformer.models.layout import loss_exclusion_mask

IGNORED = -100  # a target that carries no loss


def next_tokens(
    labels: Tensor | None,
    shift_labels: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cu_seqlens: Tensor | None,
    ignore_index: int | None,
) -> Tensor | None:
    """The target of each column [B, T]: the token behind it, IGNORED where no loss is wanted, where that is
    padding, and where it begins another document. None without labels.

    `shift_labels` are targets already, and go before labels: where a text is cut among processes, what stands
    behind the last column is known to the caller alone, and is taken as it is given.
    """
    given = labels if shift_labels is None else shift_labels
    if given is None:
        return None
    hidden = loss_exclusion_mask(given, attention_mask, position_ids, cu_seqlens)
    if shift_labels is None:
        given = given if hidden is None else given.masked_fill(hidden, IGNORED)
        given = F.pad(given[:, 1:], (0, 1), value=IGNORED)
    elif hidden is not None:
        given = given.masked_fill(F.pad(hidden[:, 1:], (0, 1), value=False), IGNORED)
    return without(given, ignore_index).contiguous()


def without(targets: Tensor, ignore_index: int | None) -> Tensor:
    """Targets with IGNORED in place of another number that means the same."""
    return targets if ignore_index is None else targets.masked_fill(targets == ignore_index, IGNORED)
