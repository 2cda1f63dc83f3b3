"""Longformer (Beltagy et al., 2020, arXiv:2004.05150, sections 3.1 and 4):

o_i = sum_{j in S_i} softmax_j(q_i . k_j / sqrt(D)) v_j
S_i = {j : |i - j| <= d w/2, d | i - j} + {j < g},   and every j for i < g

a sliding window of w tokens with dilation d, and g global tokens at the front, which see and are seen by
all.
"""

from collections.abc import Sequence

from torch import Tensor

from cosformer.attention.checks import count
from cosformer.attention.gather import Relation
from cosformer.attention.pattern import PatternAttention, PositionedState
from cosformer.attention.registry import register
from cosformer.attention.relations import Ends, Window
from cosformer.attention.traits import Traits
from cosformer.ops.checks import positive_int


@register("longformer")
class Longformer(PatternAttention):
    """Sliding window and global tokens.

    If causal, a token sees the earlier half of its window. The paper's causal language models
    have no global tokens; where they are asked for, later tokens see the first ones. The paper gives
    global attention projections of its own; here both use the same q, k and v.

    Args:
        window: w, of which half lies on each side.
        dilation: d, the step between the tokens of a window.
        global_tokens: g, the first tokens of the text; None is the paper's choice: one (the class token)
            in both directions, none if causal.
    """

    traits = Traits(
        paper="Longformer: The Long-Document Transformer, arXiv:2004.05150",
        cost="linear",
        causal=True, bidirectional=True, key_mask=True, recurrent=True, grouped_heads=True,
    )  # fmt: skip
    state_type = PositionedState

    def __init__(self, *, window: int = 512, dilation: int = 1, global_tokens: int | None = None):
        super().__init__()
        self.window, self.dilation = positive_int("window", window), positive_int("dilation", dilation)
        if self.window % 2:
            raise ValueError(f"window must be even, half of it on each side, but got {window}.")
        self.global_tokens = None if global_tokens is None else count("global_tokens", global_tokens)

    def _front(self, causal: bool, length: Tensor) -> Ends:
        tokens = (0 if causal else 1) if self.global_tokens is None else self.global_tokens
        return Ends(tokens, 0, length)

    def relations(self, causal: bool, length: Tensor, columns: int) -> Sequence[Relation]:
        half = self.window // 2
        window = Window(half, 0 if causal else half, self.dilation)
        front = self._front(causal, length)
        return [front, window] if front.first else [window]

    def full_rows(self, causal: bool, length: Tensor, columns: int) -> Tensor | None:
        front = self._front(causal, length)
        # If causal, the first tokens see only one another, which the relations contain already.
        return front.rows(columns) if front.first and not causal else None

    def extra_repr(self) -> str:
        return f"window={self.window}, dilation={self.dilation}, global_tokens={self.global_tokens}"
