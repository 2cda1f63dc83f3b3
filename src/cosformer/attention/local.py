"""Local attention in blocks (Tay et al., "Long Range Arena", 2021, arXiv:2011.04006, after the blocks of
Parmar et al., "Image Transformer", 2018, arXiv:1802.05751):

o_i = sum_{j : floor(j / b) = floor(i / b)} softmax_j(q_i . k_j / sqrt(D)) v_j
"""

from collections.abc import Sequence

from torch import Tensor

from cosformer.attention.gather import Relation
from cosformer.attention.pattern import PatternAttention, PositionedState
from cosformer.attention.registry import register
from cosformer.attention.relations import Blocks
from cosformer.attention.traits import Traits
from cosformer.ops.checks import positive_int


@register("local")
class Local(PatternAttention):
    """Each token sees the tokens of its own block and no others (causal: those before it).

    Args:
        block: b, tokens of a block; the default is that of the Long Range Arena.
    """

    traits = Traits(
        paper="Long Range Arena, arXiv:2011.04006",
        cost="linear",
        causal=True, bidirectional=True, key_mask=True, recurrent=True, grouped_heads=True,
    )  # fmt: skip
    state_type = PositionedState

    def __init__(self, *, block: int = 50):
        super().__init__()
        self.block = positive_int("block", block)

    def relations(self, causal: bool, length: Tensor, columns: int) -> Sequence[Relation]:
        return [Blocks(self.block)]

    def extra_repr(self) -> str:
        return f"block={self.block}"
