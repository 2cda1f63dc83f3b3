"""The registry of tasks: names, settings, and how one is built."""

import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any, TypeVar

from cosformer.registry import Registry
from cosformer.tasks.base import Task

T = TypeVar("T", bound=type[Task])

_TASKS: Registry[Task] = Registry("task")


def register(name: str) -> Callable[[T], T]:
    """Decorator for a subclass of `Task`, a frozen dataclass of its settings."""

    def add(cls: T) -> T:
        _TASKS.register(name)(cls)
        cls.name = name
        return cls

    return add


def names() -> list[str]:
    """All tasks."""
    return list(_TASKS.names())


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """The settings of a task, with their types and defaults."""
    return _TASKS.parameters(name)


def get(name: str) -> type[Task]:
    """The class of a task: its docstring says where the data comes from."""
    return _TASKS.get(name)


def build(name: str, **settings: Any) -> Task:
    """A task with these settings."""
    task = _TASKS.build(name, settings, {})
    seed = settings.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
        raise ValueError(f"seed must be a whole number from 0 to 4,294,967,295, but got {seed!r}.")
    return task
