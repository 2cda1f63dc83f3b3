"""Attention maps of a trained model, for any mechanism, with the identity as values.

o_i = sum_j w_ij v_j with v_j the j-th unit vector is the row w_i: no mechanism has to return its weights.
"""

from typing import Any

import torch
from torch import Tensor

from cosformer.attention import Attention


def attention_maps(model: Any, ids: Tensor) -> list[Tensor]:
    """For each layer the weights [H, T, T] of ids [1, T], T at most 256."""
    found: list[Tensor] = []

    def look(mechanism: Attention, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        q, k, _ = args
        length, heads = k.shape[1], k.shape[2]
        unit = torch.eye(length, dtype=q.dtype)[None, :, None].expand(1, length, heads, length)
        handles.pop().remove()  # the call below would run this hook again
        weights = mechanism(q, k, unit, causal=kwargs["causal"])
        assert isinstance(weights, Tensor)
        found.append(weights[0].transpose(0, 1))

    mechanisms = [m for m in model.modules() if isinstance(m, Attention)]
    # Hooked from the last layer to the first, so that the hook of the current layer is the last in the list.
    handles = [m.register_forward_pre_hook(look, with_kwargs=True) for m in reversed(mechanisms)]
    with torch.inference_mode():
        model(ids, use_cache=False)
    return found


def most_concentrated(weights: Tensor) -> tuple[int, Tensor]:
    """The index of the head of [H, T, T] whose rows have the least entropy, and its map [T, T], each row
    divided by its largest weight."""
    share = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)
    entropy = -(share * share.clamp_min(1e-9).log()).sum((-2, -1))
    head = int(entropy.argmin())
    return head, over_largest(weights[head])


def over_largest(weights: Tensor) -> Tensor:
    """Each row divided by its largest weight."""
    return weights / weights.amax(-1, keepdim=True).clamp_min(1e-9)
