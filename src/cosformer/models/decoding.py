"""Steps of one token per row as one graph over static tensors. On a CUDA device the graph is captured once,
compiled or eager, and replayed for each token.

The static tensors belong to the model. They are for one batch size, and hold the states of one cache: a
second generation with the same batch size uses the graph again, and the states of the first cache are copied
out before. States that grow (softmax) have as many columns as the cache was asked to hold; steps beyond those
are not compiled.
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
from cosformer.models.captured import CapturedStep, tensors_of
from cosformer.models.step import through_layers
from cosformer.nn import ConvolvedState

if TYPE_CHECKING:
    from cosformer.models.language import CosformerForCausalLM


class Decoding:
    """The compiled steps of a model.

    Args:
        model: whose steps they are.
        settings: arguments of `torch.compile`; None: eager steps.
        captured: the graph is captured.py's, and not torch.compile's, which checks its guards before every
            token.
    """

    def __init__(self, model: "CosformerForCausalLM", settings: dict[str, Any] | None, captured: bool):
        self.model, self.settings, self.captured = model, settings, captured
        self.call: Any = _token
        if settings is not None:
            without = {"mode": None} if captured else {}  # the mode that captures
            self.call = torch.compile(_token, **settings | without)
        if captured:
            self.call = CapturedStep(self.call)
        self.states: list[State] = []
        self.positions: Tensor | None = None
        self.column = torch.empty(0)
        self.columns = 0  # of states that grow
        self._grows = False  # whether one of the states does
        self._owner: weakref.ref[CosformerCache] | None = None
        self.thread = threading.current_thread()

    @property
    def device(self) -> torch.device:
        return self.model.model.embed_tokens.weight.device

    def begin(self) -> None:
        """Called before each generation."""
        if self.captured:
            self.call.look(self.model)

    def step(self, ids: Tensor, cache: CosformerCache) -> Tensor | None:
        """Logits [B, 1, vocabulary] of the next tokens ids [B, 1], without padding, given a cache that this
        model has filled. None where the call does not fit the graph."""
        base, device = self.model.model, ids.device
        limit, made_with = base.limit, (base.embed_tokens.weight.dtype, device)
        if (
            ids.shape[1:] != (1,)
            or torch.is_grad_enabled()
            or base.training
            or torch.compiler.is_compiling()
            or torch.is_autocast_enabled(device.type)
            or (limit is not None and cache.seen >= limit)
            or any(entry.made_with != made_with for entry in cache.layers)
        ):
            return None
        rows = cache.layers[0].raw_state
        if rows is None or rows.batch != ids.shape[0]:
            return None
        bound = self._is_bound(cache)
        grows = self._grows if bound else any(map(_growing, cache.layers))
        if grows and cache.layers[0].columns >= cache.capacity:
            return None  # static states that grow have a fixed number of columns
        positions = self._bind(cache, bound)
        base.check_ids(ids)
        if not self.captured and ids.stride() != (1, 1):  # a graph is compiled for strides too
            ids = ids.clone(memory_format=torch.contiguous_format)
        try:
            logits: Tensor = self.call(self.model, ids, positions, self.column, self.states)
            for entry in cache.layers:
                entry.static_step()
        except BaseException:
            for entry in cache.layers:
                entry.mark_interrupted()
            raise
        # The next replay of a captured graph writes over its output.
        return logits.clone() if logits.is_cuda else logits

    def select(self, cache: CosformerCache, rows: Tensor) -> bool:
        """Selects rows in place, if there are as many as before and the states of this cache are here."""
        positions = self.positions
        if not self._is_bound(cache) or positions is None or rows.shape != positions.shape:
            return False
        if rows.dtype == torch.bool:
            return False
        rows = rows.to(positions.device)
        positions.copy_(positions.index_select(0, rows))
        for state in self.states:
            overwrite(state, state.select(rows))
        return True

    def _is_bound(self, cache: CosformerCache) -> bool:
        return len(self.states) > 0 and all(map(operator.is_, _raw_states(cache), self.states))

    def _bind(self, cache: CosformerCache, bound: bool) -> Tensor:
        """Copies the states of the cache to the static tensors, unless they are there (`bound`); returns the
        positions of its next tokens."""
        positions, enough = self.positions, self.columns >= cache.capacity
        if positions is not None and enough and bound:
            return positions
        previous = None if self._owner is None else self._owner()
        if previous is not None and not (previous is cache and enough):
            for entry, state in zip(previous.layers, self.states, strict=True):
                entry.leave_static(state)
        self._owner = weakref.ref(cache)
        found, past = _raw_states(cache), cache.past
        assert past is not None
        if positions is None or not enough or not all(map(_fits, self.states, found)):
            # Tensors made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.positions = positions = torch.empty_like(past.positions)
                self.column = torch.empty_like(past.positions[:1])
                self.columns = cache.capacity
                self.states = [_allocate(state, positions, self.columns) for state in found]
                if not self.captured:  # a graph that torch.compile captures need not copy them
                    for x in (positions, self.column, *(x for s in self.states for x in tensors_of(s))):
                        torch._dynamo.mark_static_address(x)
        if found[0] is not self.states[0]:
            positions.copy_(past.positions)
            self.column.fill_(past.columns)
        for entry, state in zip(cache.layers, self.states, strict=True):
            entry.make_static(state, positions)
        self._grows = any(map(_growing, cache.layers))
        return positions


def _token(
    model: "CosformerForCausalLM", ids: Tensor, positions: Tensor, column: Tensor, states: Sequence[State]
) -> Tensor:
    """Logits [B, 1, vocabulary]; states, positions [B] and column [1] are updated in place."""
    x = model.model.embed_tokens(ids)
    x, after = through_layers(
        model.model, x, positions, 0, [(state, state) for state in states], column=column
    )
    for state, new in zip(states, after, strict=True):
        overwrite(state, new)
    positions.add_(1)
    column.add_(1)
    return model.lm_head(x)


def _raw_states(cache: CosformerCache) -> list[Any]:
    return [entry.raw_state for entry in cache.layers]


def _growing(entry: Any) -> bool:
    state = entry.raw_state
    return isinstance(state.attention if isinstance(state, ConvolvedState) else state, GrowingState)


def _allocate(state: Any, positions: Tensor, columns: int) -> Any:
    """Static tensors for states like this one, `columns` columns where it grows. `seen` is 0, because a graph
    would be compiled again for every other number."""
    if isinstance(state, ConvolvedState):
        inputs = torch.empty_like(state.inputs, memory_format=torch.contiguous_format)
        return ConvolvedState(_allocate(state.attention, positions, columns), inputs)
    grows = isinstance(state, GrowingState)
    if grows:
        state = state.allocate(columns)
    changes: dict[str, Any] = {"positions": positions, "seen": 0}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor) and field.name not in changes:
            changes[field.name] = value if grows else torch.empty_like(value)
    return replace(state, **changes)


def _fits(static: Any, state: Any) -> bool:
    """Whether a state can be copied to these tensors."""
    if isinstance(state, ConvolvedState):
        return _alike(static.inputs, state.inputs) and _fits(static.attention, state.attention)
    if isinstance(state, GrowingState):
        return _alike(static.keys[:, :0], state.keys[:, :0])
    tensors = [f.name for f in fields(state) if isinstance(getattr(state, f.name), Tensor)]
    return all(_alike(getattr(static, name), getattr(state, name)) for name in tensors)


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
