"""The interface of positions: something added to the embeddings, or applied to q and k."""

from typing import Protocol

from torch import Tensor, nn


class Rotate(Protocol):
    """What is done to queries, or to keys (`key`), [B, T, heads, head_dim]."""

    def __call__(self, x: Tensor, *, key: bool = False) -> Tensor: ...


class Position(nn.Module):
    """One kind of position. A subclass changes what it needs to change of the two methods.

    Positions are always given, [B, T] counted from 0 within each document: a cached, padded or packed
    token gets what it would get alone.
    """

    @property
    def has_bound(self) -> bool:
        """Whether there are positions up to the greatest length of the model alone."""
        return False

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Tokens [B, T, hidden_size] on their way into the first layer."""
        return x

    def rotation(self, positions: Tensor) -> Rotate | None:
        """What happens to queries and keys [B, T, heads, head_dim] of self-attention in every layer, for
        tokens at these positions; None: nothing."""
        return None

    def reset_parameters(self) -> None:
        """Initialises the position's own parameters, with functions of `torch.nn.init` alone, as those of an
        attention."""
