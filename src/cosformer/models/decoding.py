"""Steps of one token a row as one compiled graph, over tensors that stay where they are: on a CUDA device
they are captured once and replayed for each token.

The tensors belong to the model, for one batch size at a time, and are lent to one cache at a time: a second
generation of the same batch size finds the graph as it was captured. A cache whose place another one takes
gets its own copies first.
"""

import operator
import weakref
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cosformer.attention import State
from cosformer.models.cache import CosformerCache
from cosformer.models.cache_layer import overwrite
from cosformer.models.step import through_layers

if TYPE_CHECKING:
    from cosformer.models.language import CosformerForCausalLM


class Decoding:
    """The compiled steps of a model.

    Args:
        model: whose steps they are.
        settings: arguments of `torch.compile`.
    """

    def __init__(self, model: "CosformerForCausalLM", settings: dict[str, Any]):
        self.model, self.settings = model, settings
        self.call = torch.compile(_token, **settings)
        self.states: list[State] = []
        self.positions: Tensor | None = None
        self._owner: weakref.ref[CosformerCache] | None = None

    def step(self, ids: Tensor, cache: CosformerCache) -> Tensor | None:
        """Logits [B, 1, vocabulary] of tokens ids [B, 1], every one of them real, behind a cache that this
        model has filled. None where the call is of another kind."""
        base, device = self.model.model, ids.device
        limit, like = base.limit, base.embed_tokens.weight
        if (
            ids.shape[1:] != (1,)
            or torch.is_grad_enabled()
            or base.training
            or torch.compiler.is_compiling()
            or torch.is_autocast_enabled(device.type)
            or (limit is not None and cache.seen >= limit)
            or any(entry.made_with != (like.dtype, device) for entry in cache.layers)
        ):
            return None
        positions = self._settle(cache)
        if ids.shape[0] != positions.shape[0]:
            return None
        base.check_ids(ids)
        if ids.stride() != (1, 1):  # a slice: a graph is compiled for strides too
            ids = ids.clone(memory_format=torch.contiguous_format)
        try:
            logits: Tensor = self.call(self.model, ids, positions, self.states)
        except BaseException:
            for entry in cache.layers:
                entry.lose()
            raise
        for entry in cache.layers:
            entry.lent_step()
        return logits

    def select(self, cache: CosformerCache, rows: Tensor) -> bool:
        """Chooses as many rows as there are, in place, if the states of this cache lie here."""
        positions = self.positions
        if not self._lies_here(cache) or positions is None or rows.shape != positions.shape:
            return False
        if rows.dtype == torch.bool:
            return False
        rows = rows.to(positions.device)
        positions.copy_(positions.index_select(0, rows))
        for state in self.states:
            overwrite(state, state.select(rows))
        return True

    def _lies_here(self, cache: CosformerCache) -> bool:
        return self._owner is not None and self._owner() is cache

    def _settle(self, cache: CosformerCache) -> Tensor:
        """Puts the states of the cache into the tensors of the graph; the positions of its next tokens."""
        found = [entry.parts_for_step()[0] for entry in cache.layers]
        positions = self.positions
        if positions is not None and all(map(operator.is_, found, self.states)):
            return positions
        past = cache.past
        assert past is not None
        previous = None if self._owner is None else self._owner()
        if previous is not None and previous is not cache:
            for entry, state in zip(previous.layers, self.states, strict=True):
                entry.take_back(state)
        self._owner = weakref.ref(cache)
        if positions is None or not _same(self.states, found):
            # Tensors made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.positions = positions = _fixed(torch.empty_like(past.positions))
                self.states = [_room(state, positions) for state in found]
        if found[0] is not self.states[0]:
            positions.copy_(past.positions)
        for entry, state in zip(cache.layers, self.states, strict=True):
            entry.lend(state, positions)
        return positions


def _token(model: "CosformerForCausalLM", ids: Tensor, positions: Tensor, states: Sequence[State]) -> Tensor:
    """Logits [B, 1, vocabulary]; the states and positions [B] after the token take the place of those before
    it."""
    x = model.model.embed_tokens(ids)
    x, after = through_layers(model.model, x, positions, 0, [(state, state) for state in states])
    for state, new in zip(states, after, strict=True):
        overwrite(state, new)
    positions.add_(1)
    return model.lm_head(x)


def _fixed(x: Tensor) -> Tensor:
    """A tensor that will stay where it is: a captured graph need not copy it."""
    torch._dynamo.mark_static_address(x)
    return x


def _room(state: Any, positions: Tensor) -> Any:
    """Tensors like those of a state. What counts tokens is 0: a graph would be compiled for every number."""
    changes: dict[str, Any] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if field.name == "positions":
            changes[field.name] = positions
        elif field.name == "seen":
            changes[field.name] = 0
        elif isinstance(value, Tensor):
            changes[field.name] = _fixed(torch.empty_like(value, memory_format=torch.contiguous_format))
        elif is_dataclass(value):
            changes[field.name] = _room(value, positions)
    return replace(state, **changes)


def _same(rooms: Sequence[Any], states: Sequence[Any]) -> bool:
    """Whether the states fit into these tensors."""
    shapes = ([_shapes(state) for state in own] for own in (rooms, states))
    return next(shapes) == next(shapes)


def _shapes(state: Any) -> list[Any]:
    found: list[Any] = []
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            found.append((value.shape, value.dtype, value.device))
        elif is_dataclass(value):
            found += _shapes(value)
    return found
