"""The registry of positions: names, parameters, and how one is built."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cosformer.positions.base import Position
from cosformer.registry import Registry

P = TypeVar("P", bound=type[Position])

_POSITIONS: Registry[Position] = Registry("position")


def register(name: str) -> Callable[[P], P]:
    """Decorator for a subclass of `Position`."""
    return _POSITIONS.register(name)


def names() -> tuple[str, ...]:
    """All kinds of positions."""
    return _POSITIONS.names()


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a kind, with their types and defaults."""
    return _POSITIONS.parameters(name)


def build(name: str, **parameters: Any) -> Position:
    """A position with these parameters."""
    return _POSITIONS.build(name, parameters, {})


def fit(name: str, parameters: Mapping[str, Any], **offered: Any) -> Position:
    """A position inside a model: what `parameters` does not say is taken from what the model offers
    (hidden_size, num_kv_heads, head_dim, max_length), where it is asked for."""
    return _POSITIONS.build(name, parameters, offered)
