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


def for_heads(name: str, heads: int, num_kv_heads: int) -> None:
    """Raises where parameters per key head do not fit the number of heads."""
    if heads != num_kv_heads:
        raise ValueError(
            f"k and v must have {num_kv_heads} key heads, the num_kv_heads of this {name}, but got {heads}."
        )


def of_size(name: str, size: int, head_dim: int) -> None:
    if size != head_dim:
        raise ValueError(
            f"q and k must have heads of {head_dim}, the head_dim of this {name}, but got {size}."
        )


def within_length(name: str, length: int, max_length: int) -> None:
    """Raises where a text is longer than the learned weights per position."""
    if length > max_length:
        raise ValueError(
            f"attention {name!r} has learned weights for {max_length} positions, but got {length} tokens: "
            "build it with a larger max_length, or cut the text."
        )
