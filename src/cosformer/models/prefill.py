"""Chunked prefill: memory beside the state does not grow with the length of the context."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cosformer.models.cache import CosformerCache

if TYPE_CHECKING:
    from cosformer.models.model import CosformerModel

TOKENS = 16_384  # of a chunk, over all rows
FEWEST = 64  # columns of a chunk


def chunked_prefill(
    model: "CosformerModel",
    cache: CosformerCache,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> Any:
    """The model's output for the last chunk of a call that needs the output of its last column alone; None
    where the call is short, or cannot be split.

    Rows are aligned at the end first, so that the last real token of each is in the last column: outputs do
    not depend on where the padding is. A call that fails leaves the cache as it was.
    """
    given = input_ids if inputs_embeds is None else inputs_embeds
    if given is None or (input_ids is not None and inputs_embeds is not None):
        return None
    batch, length = given.shape[:2]
    size = max(FEWEST, TOKENS // batch)
    if length <= size or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    # With a state that grows, each chunk sees all keys before it, with masks and scores in memory.
    if not model.traits.constant_state:
        return None
    own = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "position_ids": position_ids}
    parts = {name: x.expand(batch, *x.shape[1:]) for name, x in own.items() if x is not None}
    past = cache.past
    real = before = None
    if attention_mask is not None:
        real = model.own_mask(attention_mask, batch, length, past)
        before = attention_mask[:, :-length] != 0
    longest = length + cache.seen
    if real is not None and real.all():
        real = None
    if real is not None:
        counts = real.sum(1)
        longest = int((counts if past is None else counts + past.positions).max())
        order = real.to(torch.uint8).argsort(dim=1, stable=True)  # padding first
        parts = {name: _along(x, order) for name, x in parts.items()}
        real = _along(real, order)
    model.check_length(longest, cache)
    kept = cache.snapshot()
    output = None
    try:
        for start in range(0, length, size):
            stop = min(start + size, length)
            mask = None if real is None or before is None else torch.cat([before, real[:, :stop]], 1)
            output = model(
                **{name: x[:, start:stop] for name, x in parts.items()},
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                only_state=stop < length,
                return_dict=True,
            )
    except BaseException:
        cache.restore(kept)
        raise
    return output


def _along(x: Tensor, order: Tensor) -> Tensor:
    """The columns of x [B, T, ...] in the order [B, T] of each row."""
    return x[torch.arange(x.shape[0], device=x.device)[:, None], order]
