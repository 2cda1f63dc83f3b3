"""A vector for each position, learned (Gehring et al., 2017, arXiv:1705.03122): x_i + P[i]."""

from torch import Tensor, nn

from cosformer.ops.checks import positive_int
from cosformer.positions.base import Position
from cosformer.positions.registry import register


@register("learned")
class LearnedPosition(Position):
    """Adds a row of a table, learned with the rest.

    Args:
        hidden_size: width of the tokens.
        max_length: how many positions there are.
    """

    def __init__(self, *, hidden_size: int, max_length: int):
        super().__init__()
        self.table = nn.Embedding(
            positive_int("max_length", max_length), positive_int("hidden_size", hidden_size)
        )

    @property
    def has_bound(self) -> bool:
        return True

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table(positions)
