"""Classes under names, built from typed parameters: one small registry, for attentions, positions and tasks.

A class is registered once, beside its definition; its parameters are the keyword arguments of its
constructor. Whatever is unknown (a name, a parameter) is an error that lists what is known, and what was
probably meant.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
C = TypeVar("C", bound=type)


def _origin(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


class Registry(Generic[T]):
    def __init__(self, kind: str):
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Decorator: the class is known under this name from now on. Code that is run once more, as a file or
        a cell of a notebook, puts its class in place of the one it made before."""

        def add(cls: C) -> C:
            known = self._classes.get(name)
            if known is not None and _origin(known) != _origin(cls):
                raise ValueError(
                    f"{self.kind} {name!r} is registered already, as {known.__qualname__}; choose another "
                    "name."
                )
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._classes))

    def get(self, name: str) -> type[T]:
        if not isinstance(name, str) or name not in self._classes:
            raise ValueError(
                f"{self.kind} must be one of {', '.join(self.names())}, but got {name!r}."
                f"{_meant(name, self.names())}"
            )
        return self._classes[name]

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """The constructor's arguments: name, type and default of each."""
        cls = self.get(name)
        if cls.__init__ is object.__init__:
            return {}
        arguments = inspect.signature(cls).parameters.values()
        return {p.name: p for p in arguments if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def build(self, name: str, parameters: Mapping[str, Any], offered: Mapping[str, Any]) -> T:
        """An object of the class. `offered` holds what the surrounding model knows (its sizes, its
        horizon): each is taken where the class has a parameter of that name and `parameters` has none.
        """
        known = self.parameters(name)
        for key in parameters:
            if key not in known:
                valid = f"it takes {', '.join(known)}" if known else "it takes none"
                raise ValueError(
                    f"{self.kind} {name!r} has no parameter {key!r}; {valid}.{_meant(key, known)}"
                )
        chosen = {key: value for key, value in offered.items() if key in known} | dict(parameters)
        missing = [k for k, p in known.items() if p.default is p.empty and k not in chosen]
        if missing:
            raise ValueError(f"{self.kind} {name!r} needs a value for {', '.join(missing)}.")
        return self.get(name)(**chosen)


def nearest(given: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant, or None."""
    return next(iter(difflib.get_close_matches(str(given), list(known), n=1, cutoff=cutoff)), None)


def _meant(given: object, known: Iterable[str]) -> str:
    near = nearest(given, known)
    return f" Did you mean {near!r}?" if near else ""


def meant_or_known(given: str, known: Sequence[str], all_of_them: str) -> str:
    """The end of a sentence: what was probably meant, else `all_of_them` and the known words."""
    near = nearest(given, known)
    return f"did you mean {near}?" if near else f"{all_of_them} {', '.join(known)}."
