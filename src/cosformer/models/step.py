"""Decoding steps of one token per row: a fast path through the layers, without the general layout, validation
and dispatch in each of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from cosformer.attention import State
from cosformer.models.cache import CosformerCache
from cosformer.nn import Block, CrossAttentionState
from cosformer.nn.state import TokenStep
from cosformer.ops.one_token import StepWeights

if TYPE_CHECKING:
    from cosformer.models.model import CosformerModel

DEVICES: tuple[str, ...] = ("cpu", "cuda")  # where it has been tested


def fast_step(
    model: "CosformerModel",
    x: Tensor,
    attention_mask: Tensor | None,
    cache: CosformerCache,
    source: Tensor | None,
) -> Tensor | None:
    """Hidden states [B, 1, hidden_size] of embedded tokens x [B, 1, hidden_size]: one real token per row,
    given a cache that this model has filled, without gradients. None where the call is not such a step.

    What a general call checks in every layer is checked once here. The cache is updated after the last layer,
    so that a call that fails leaves it as it was.
    """
    past = cache.past
    if past is None or x.shape[1] != 1 or x.shape[0] != past.positions.shape[0]:
        return None
    device, limit = x.device, model.limit
    if (
        torch.is_grad_enabled()
        or model.training
        or torch.compiler.is_compiling()
        or device.type not in DEVICES
        or torch.is_autocast_enabled(device.type)
        or (limit is not None and past.seen >= limit)
        or any(entry.made_with != (x.dtype, device) for entry in cache.layers)
    ):
        return None
    if attention_mask is not None and not model.own_mask(attention_mask, x.shape[0], 1, past).all():
        return None
    states = [entry.parts_for_step() for entry in cache.layers]
    memories = [entry.memory for entry in cache.layers]
    x, after = through_layers(model, x, past.positions, past.seen, states, source, memories)
    positions = past.positions + 1
    for entry, state, block in zip(cache.layers, after, model.layers, strict=True):
        reuse = cast(Block, block).attention.attention.writes_into
        entry.step(state, positions, past.seen + 1, reuse=reuse)
    return x


def through_layers(
    model: "CosformerModel",
    x: Tensor,
    positions: Tensor,
    seen: int,
    states: Sequence[tuple[State | None, State | None]],
    source: Tensor | None = None,
    memories: Sequence[State | None] = (),
    column: Tensor | None = None,
) -> tuple[Tensor, list[State]]:
    """Embedded tokens x [B, 1, hidden_size] at positions [B], of which `seen` is the largest: hidden states,
    and the state of each layer after the token. `states` has that before it and, or None, tensors that the
    new one may be written to; `column`: see `StepWeights`. Nothing is validated."""
    at, weights = positions[:, None], StepWeights(positions, column)
    pre_norm = model.config.pre_norm
    x = model.position.embed(x, at)
    if not pre_norm:
        x = model.norm(x)
    rotate = model.position.rotation(at)
    after = []
    for i, block in enumerate(model.layers):
        before, into = states[i]
        memory = None if source is None else CrossAttentionState(None, memories[i], positions, seen)
        x, state, _ = block(
            x,
            source,
            rotate=rotate,
            state=before,
            return_state=True,
            memory=memory,
            step=TokenStep(weights, seen, into),
        )
        after.append(state)
    return model.norm(x) if pre_norm else x, after
