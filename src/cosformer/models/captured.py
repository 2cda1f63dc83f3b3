"""Steps, eager or compiled, captured as a CUDA graph and replayed for each token.

A replay has no guards as torch.compile has. So only models are captured whose modules are this library's own
and PyTorch's, without hooks, and a graph is captured again when the address of a weight has changed.
"""

import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.cuda_graphs import capturing

logger = logging.getLogger(__name__)

_KNOWN = ("cosformer.", "torch.nn.modules.")
_REPLACED = ("_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl")


def can_capture(model: nn.Module) -> bool:
    """Whether a step of the model depends on its weights and states alone."""
    return all(
        type(m).__module__.startswith(_KNOWN)
        and "forward" not in m.__dict__  # as accelerate replaces it
        and not any(getattr(m, name, None) for name in _REPLACED)
        for m in model.modules()
    )


class CapturedStep:
    """function(model, ids, positions, column, states), captured: ids are copied in, all other tensors keep
    their addresses and are overwritten. Other tensors come with another list `states`."""

    def __init__(self, function: Callable[..., Tensor]):
        self.function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        self._refused = False
        self._ids = self._logits = torch.empty(0)
        self._states: Sequence[Any] = ()
        self._weights: list[Tensor] = []
        self._addresses: list[int] = []

    def look(self, model: nn.Module) -> None:
        """Records the addresses of the weights: called before each generation, as they may have been
        replaced."""
        weights = list(chain(model.parameters(), model.buffers()))
        if len(weights) != len(self._weights) or any(map(operator.is_not, weights, self._weights)):
            self._graph, self._weights = None, weights

    def __call__(
        self, model: nn.Module, ids: Tensor, positions: Tensor, column: Tensor, states: Sequence[Any]
    ) -> Tensor:
        if self._refused:
            return self.function(model, ids.contiguous(), positions, column, states)
        # The GPU waits for this after every token. The tensors of `states` are overwritten and not replaced,
        # so it is enough to compare the list; weights may be given other tensors at any time.
        addresses = [x.data_ptr() for x in self._weights]
        if (
            self._graph is None
            or states is not self._states
            or addresses != self._addresses
            or ids.shape != self._ids.shape
        ):
            self._capture(model, ids, positions, column, states)
            self._addresses, self._states = addresses, states
        if self._graph is None:
            return self.function(model, self._ids, positions, column, states)
        self._ids.copy_(ids)
        self._graph.replay()
        return self._logits

    def _capture(
        self, model: nn.Module, ids: Tensor, positions: Tensor, column: Tensor, states: Sequence[Any]
    ) -> None:
        self._graph = None
        written = [positions, column, *(x for state in states for x in tensors_of(state))]
        self._ids = ids.clone(memory_format=torch.contiguous_format)
        before = [x.clone() for x in written]
        # Once without a graph: kernels are compiled and libraries make their workspaces.
        side = torch.cuda.Stream(ids.device)
        side.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.cuda.stream(side):
            self.function(model, self._ids, positions, column, states)
        torch.cuda.current_stream(ids.device).wait_stream(side)
        for x, kept in zip(written, before, strict=True):
            x.copy_(kept)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(ids.device), capturing(graph, side):
                self._logits = self.function(model, self._ids, positions, column, states)
        except RuntimeError as error:
            self._refused = True
            logger.warning("steps cannot be captured as a CUDA graph, and run without one: %s", error)
            return
        self._graph = graph


def tensors_of(state: Any) -> Iterator[Tensor]:
    """The tensors of a state and of the states inside it."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            yield value
        elif hasattr(value, "__dataclass_fields__"):
            yield from tensors_of(value)
