"""A long context read in pieces: what a call needs beside the state then does not grow with the context."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cosformer.models.cache import CosformerCache

if TYPE_CHECKING:
    from cosformer.models.model import CosformerModel

TOKENS = 16_384  # of a piece, those of all rows together
FEWEST = 64  # columns of a piece


def read_in_pieces(
    model: "CosformerModel",
    cache: CosformerCache,
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> Any:
    """The model's output for the last piece of a call whose outputs are wanted for its last column alone;
    None where the call is short, or of another kind.

    Rows are aligned at the end first, so that the last real token of each is in the last column: what a token
    gets does not depend on where the padding is. A call that fails leaves the cache as it was.
    """
    given = input_ids if inputs_embeds is None else inputs_embeds
    if given is None or (input_ids is not None and inputs_embeds is not None):
        return None
    batch, length = given.shape[:2]
    size = max(FEWEST, TOKENS // batch)
    if length <= size or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    # A state that grows makes each piece look at all keys before it, masks and scores written out.
    if not model.traits.constant_state:
        return None
    own = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "position_ids": position_ids}
    parts = {name: x.expand(batch, *x.shape[1:]) for name, x in own.items() if x is not None}
    past = cache.past
    columns = 0 if past is None else past.columns
    real = None if attention_mask is None else model.own_mask(attention_mask, batch, length, columns)
    longest = length + cache.seen
    if real is not None and real.all():
        real = None
    if real is not None:
        counts = real.sum(1)
        longest = int((counts if past is None else counts + past.positions).max())
        order = real.to(torch.uint8).argsort(dim=1, stable=True)  # padding in front
        parts = {name: _along(x, order) for name, x in parts.items()}
        real = _along(real, order)
        before = real.new_ones(batch, columns)
    model.check_length(longest, cache)
    kept = cache.snapshot()
    output = None
    try:
        for start in range(0, length, size):
            stop = min(start + size, length)
            mask = None if real is None else torch.cat([before, real[:, :stop]], 1)
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
