"""Sparse Transformer (Child et al., 2019, arXiv:1904.10509, section 4.3):

o_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j

strided:  S_i = {j : |i - j| <= l} + {j : (i - j) mod l = 0}
fixed:    S_i = {j : floor(j / l) = floor(i / l)} + {j : j mod l >= l - c}
"""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from cosformer.attention.checks import one_of
from cosformer.attention.gather import Relation
from cosformer.attention.pattern import PatternAttention, PositionedState
from cosformer.attention.registry import register
from cosformer.attention.relations import Blocks, Stride, Summaries, Window
from cosformer.attention.traits import Traits
from cosformer.ops.checks import positive_int


@register("sparse")
class Sparse(PatternAttention):
    """Two sparse patterns whose composition reaches every token, merged into one head (section 4.2).

    The paper's models are causal (j <= i); in both directions the same relations are taken without that.
    The stride does not follow the length of a call: a token's pattern would change as the text grows.

    Args:
        kind: "strided" suits data with a period (images, sound), "fixed" text.
        stride: l, near the square root of the length; None: that of max_length, rounded up.
        summary: c, the tokens at the end of each block that all later tokens see ("fixed" alone).
        max_length: the greatest length of a text, from which the stride is taken.
    """

    traits = Traits(
        paper="Generating Long Sequences with Sparse Transformers, arXiv:1904.10509",
        cost="length^1.5",
        causal=True, bidirectional=True, key_mask=True, recurrent=True, grouped_heads=True,
    )  # fmt: skip
    state_type = PositionedState

    def __init__(
        self,
        *,
        kind: Literal["strided", "fixed"] = "fixed",
        stride: int | None = None,
        summary: int = 8,
        max_length: int = 2048,
    ):
        super().__init__()
        self.kind = one_of("kind", kind, ("strided", "fixed"))
        self.stride = None if stride is None else positive_int("stride", stride)
        self.summary = positive_int("summary", summary)
        self.max_length = positive_int("max_length", max_length)

    @property
    def step(self) -> int:
        """l"""
        return math.isqrt(self.max_length - 1) + 1 if self.stride is None else self.stride

    def relations(self, causal: bool, length: Tensor, columns: int) -> Sequence[Relation]:
        if self.kind == "fixed":
            return [Blocks(self.step), Summaries(self.step, self.summary)]
        return [Window(self.step, 0 if causal else self.step), Stride(self.step)]

    def extra_repr(self) -> str:
        summary = f", summary={self.summary}" if self.kind == "fixed" else ""
        return f"{self.kind}, stride={self.step}{summary}"
