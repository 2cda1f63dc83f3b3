"""No positions beside those that the attention itself has (cosFormer's cosine)."""

from cosformer.positions.base import Position
from cosformer.positions.registry import register


@register("none")
class NoPosition(Position):
    """Changes neither the tokens nor the heads."""
