"""The registry of mechanisms: names, traits, parameters, and how one is built."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cosformer.attention.base import Attention
from cosformer.attention.traits import Traits
from cosformer.registry import Registry

A = TypeVar("A", bound=type[Attention])

_MECHANISMS: Registry[Attention] = Registry("attention")


def register(name: str) -> Callable[[A], A]:
    """Decorator for a subclass of `Attention`."""

    def add(cls: A) -> A:
        if cls.traits.recurrent == (cls.state_type is None):
            raise TypeError(
                f"attention {name!r} must give a state_type if it is recurrent, and none otherwise."
            )
        _MECHANISMS.register(name)(cls)
        cls.name = name
        return cls

    return add


def names() -> tuple[str, ...]:
    """All mechanisms."""
    return _MECHANISMS.names()


def traits(name: str, **parameters: Any) -> Traits:
    """What the mechanism can do, with these parameters or with those it has by default."""
    return _MECHANISMS.get(name).traits_with(**parameters)


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a mechanism, with their types and defaults."""
    return _MECHANISMS.parameters(name)


def build(name: str, **parameters: Any) -> Attention:
    """A mechanism with these parameters."""
    return _MECHANISMS.build(name, parameters, {})


def fit(name: str, parameters: Mapping[str, Any], **offered: Any) -> Attention:
    """A mechanism inside a model: what `parameters` does not say is taken from what the model offers
    (num_heads, num_kv_heads, head_dim, max_length, horizon), where the mechanism asks for it."""
    return _MECHANISMS.build(name, parameters, offered)
