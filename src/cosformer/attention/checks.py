"""Checks of parameters that several mechanisms share."""

from numbers import Integral
from typing import Any


def count(name: str, value: Any) -> int:
    """An int that may be zero."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ValueError(f"{name} must be an int that is not negative, but got {value!r}.")
    return int(value)


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, but got {value!r}.")
    return str(value)


def within_length(name: str, length: int, max_length: int) -> None:
    """Learned weights for each position end somewhere."""
    if length > max_length:
        raise ValueError(
            f"attention {name!r} has learned weights for {max_length} positions, but got {length} tokens: "
            "build it with a larger max_length, or cut the text."
        )
