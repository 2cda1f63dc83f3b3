"""What a model is told about positions: something added to the tokens, or something done to q and k."""

from torch import Tensor, nn


class Position(nn.Module):
    """One kind of position. A subclass changes what it needs to change of the two methods.

    Positions are always given, [B, T] counted from 0 within each document: a cached, padded or packed
    token gets what it would get alone.
    """

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Tokens [B, T, hidden_size] on their way into the first layer."""
        return x

    def rotate(self, x: Tensor, positions: Tensor, *, key: bool = False) -> Tensor:
        """Queries, or keys (`key`), [B, T, heads, head_dim] of self-attention, in every layer."""
        return x

    def reset_parameters(self) -> None:
        """Draws the position's own parameters anew, with functions of `torch.nn.init` alone, as those of an
        attention."""
