"""Steps of one token a row as one graph, over tensors that stay where they are: on a CUDA device they are
captured once, compiled or as they are, and replayed for each token.

The tensors belong to the model, for one batch size at a time, and are lent to one cache at a time: a second
generation of the same batch size finds the graph as it was captured. A cache whose place another one takes
gets its own copies first. States that grow (softmax) have room for as many tokens as the cache was asked to
hold; behind those a step is not compiled any more.
"""

import operator
import threading
import weakref
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cosformer.attention import State
from cosformer.attention.growing import GrowingState
from cosformer.models.cache import CosformerCache
from cosformer.models.cache_layer import overwrite
from cosformer.models.captured import CapturedStep
from cosformer.models.step import through_layers
from cosformer.nn import ConvolvedState

if TYPE_CHECKING:
    from cosformer.models.language import CosformerForCausalLM


class Decoding:
    """The compiled steps of a model.

    Args:
        model: whose steps they are.
        settings: arguments of `torch.compile`; None: steps are captured as they are (captured.py).
    """

    def __init__(self, model: "CosformerForCausalLM", settings: dict[str, Any] | None):
        self.model, self.settings = model, settings
        self.call: Any = CapturedStep(_token) if settings is None else torch.compile(_token, **settings)
        self.states: list[State] = []
        self.positions: Tensor | None = None
        self.column = torch.empty(0)
        self.columns = 0  # that states which grow have room for
        self._owner: weakref.ref[CosformerCache] | None = None
        self.thread = threading.current_thread()

    def begin(self) -> None:
        """Before a text."""
        if isinstance(self.call, CapturedStep):
            self.call.look(self.model)

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
        rows = cache.layers[0].lying
        if rows is None or rows.batch != ids.shape[0] or not self._has_room(cache):
            return None
        positions = self._settle(cache)
        base.check_ids(ids)
        if ids.stride() != (1, 1):  # a slice: a graph is compiled for strides too
            ids = ids.clone(memory_format=torch.contiguous_format)
        try:
            logits: Tensor = self.call(self.model, ids, positions, self.column, self.states)
            for entry in cache.layers:
                entry.lent_step()
        except BaseException:
            for entry in cache.layers:
                entry.lose()
            raise
        # The next replay of a captured graph writes over its output.
        return logits.clone() if logits.is_cuda else logits

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
        return len(self.states) > 0 and all(map(operator.is_, _lying(cache), self.states))

    def _has_room(self, cache: CosformerCache) -> bool:
        """Whether there is a place for one column more: states that grow have a fixed number here."""
        return not any(map(_growing, cache.layers)) or cache.layers[0].columns < cache.capacity

    def _settle(self, cache: CosformerCache) -> Tensor:
        """Puts the states of the cache into the tensors of the graph; the positions of its next tokens."""
        positions, enough = self.positions, self.columns >= cache.capacity
        if positions is not None and enough and self._lies_here(cache):
            return positions
        previous = None if self._owner is None else self._owner()
        if previous is not None and not (previous is cache and enough):
            for entry, state in zip(previous.layers, self.states, strict=True):
                entry.take_back(state)
        self._owner = weakref.ref(cache)
        found, past = _lying(cache), cache.past
        assert past is not None
        if positions is None or not enough or not all(map(_fits, self.states, found)):
            # Tensors made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.positions = positions = _fixed(torch.empty_like(past.positions))
                self.column = _fixed(torch.empty_like(past.positions[:1]))
                self.columns = cache.capacity
                self.states = [_room(state, positions, self.columns) for state in found]
        if found[0] is not self.states[0]:
            positions.copy_(past.positions)
            self.column.fill_(past.columns)
        for entry, state in zip(cache.layers, self.states, strict=True):
            entry.lend(state, positions)
        return positions


def _token(
    model: "CosformerForCausalLM", ids: Tensor, positions: Tensor, column: Tensor, states: Sequence[State]
) -> Tensor:
    """Logits [B, 1, vocabulary]; states, positions [B] and column [1] after the token take the place of those
    before it."""
    x = model.model.embed_tokens(ids)
    x, after = through_layers(
        model.model, x, positions, 0, [(state, state) for state in states], column=column
    )
    for state, new in zip(states, after, strict=True):
        overwrite(state, new)
    positions.add_(1)
    column.add_(1)
    return model.lm_head(x)


def _fixed(x: Tensor) -> Tensor:
    """A tensor that will stay where it is: a captured graph need not copy it."""
    torch._dynamo.mark_static_address(x)
    return x


def _lying(cache: CosformerCache) -> list[Any]:
    return [entry.lying for entry in cache.layers]


def _growing(entry: Any) -> bool:
    state = entry.lying
    return isinstance(state.attention if isinstance(state, ConvolvedState) else state, GrowingState)


def _room(state: Any, positions: Tensor, columns: int) -> Any:
    """Tensors for states like this one, those that grow with `columns` columns. What counts tokens is 0: a
    graph would be compiled for every number."""
    if isinstance(state, ConvolvedState):
        inputs = _fixed(torch.empty_like(state.inputs, memory_format=torch.contiguous_format))
        return ConvolvedState(_room(state.attention, positions, columns), inputs)
    grows = isinstance(state, GrowingState)
    if grows:
        state = state.room(columns)
    changes: dict[str, Any] = {"positions": positions, "seen": 0}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor) and field.name not in changes:
            changes[field.name] = _fixed(value if grows else torch.empty_like(value))
    return replace(state, **changes)


def _fits(room: Any, state: Any) -> bool:
    """Whether a state has its place in these tensors."""
    if isinstance(state, ConvolvedState):
        return _alike(room.inputs, state.inputs) and _fits(room.attention, state.attention)
    if isinstance(state, GrowingState):
        return _alike(room.keys[:, :0], state.keys[:, :0])
    tensors = [f.name for f in fields(state) if isinstance(getattr(state, f.name), Tensor)]
    return all(_alike(getattr(room, name), getattr(state, name)) for name in tensors)


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
