"""Checks of calls, and of parameters that several mechanisms share."""

from numbers import Integral
from typing import Any

from torch import Tensor

from cosformer.attention.traits import Reads
from cosformer.ops.validation import check_mask


def check_tensors(q: Tensor, k: Tensor, v: Tensor, reads: Reads) -> None:
    """Whether q, k and v have the layout of the operator and belong together. Dtypes may differ, as they do
    under autocast, and any of them may be empty; a head size that is not read may be anything."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.dim() != 4:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a tensor [batch, time, heads, head size], but got {got}.")
    for name, x in (("k", k), ("v", v)):
        if x.shape[0] != q.shape[0]:
            raise ValueError(
                f"{name} must have q's batch size {q.shape[0]}, but got {x.shape[0]} (shape {list(x.shape)})."
            )
    if v.shape[1] != k.shape[1]:
        raise ValueError(f"v must have k's length {k.shape[1]}, but got {v.shape[1]}.")
    if v.shape[2] != k.shape[2]:
        raise ValueError(f"v must have k's {k.shape[2]} heads, but got {v.shape[2]}.")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] != 0:
        raise ValueError(f"q must have a multiple of k's {k.shape[2]} heads, but got {q.shape[2]}.")
    if reads == "qkv" and k.shape[3] != q.shape[3]:
        raise ValueError(f"k must have q's head size {q.shape[3]}, but got {k.shape[3]}.")


def checked_mask(key_mask: Tensor | None, k: Tensor) -> Tensor | None:
    """bool [B, Tk]; one row is for all."""
    if key_mask is None:
        return None
    if isinstance(key_mask, Tensor) and key_mask.shape == (1, k.shape[1]):
        key_mask = key_mask.expand(k.shape[0], -1)
    check_mask(key_mask, k)
    return key_mask


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
