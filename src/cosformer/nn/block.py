"""One layer of a Transformer: attention, perhaps cross-attention, feed-forward, each with its residual."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from cosformer.attention import State
from cosformer.attention.base import with_positions
from cosformer.nn.feedforward import FeedForward
from cosformer.nn.multihead import MultiheadAttention
from cosformer.nn.state import TokenStep
from cosformer.positions.base import Rotate

if TYPE_CHECKING:
    from cosformer.distributed.shard import Shard


@dataclass(frozen=True)
class CrossAttentionState:
    """What cross-attention knows of its source [B, S, width]: key_mask [B, S], or the finished state.

    Where `state` is given, it replaces the source; the queries of the call then start at `positions` [B], of
    which `seen` is the largest.
    """

    key_mask: Tensor | None = None
    state: State | None = None
    positions: Tensor | None = None
    seen: int = 0


class BlockOutput(NamedTuple):
    hidden: Tensor
    state: State | None
    memory_state: State | None


class Block(nn.Module):
    """Attention and feed-forward with residuals, and cross-attention between them where there is one.

        pre-norm    x + f(norm(x))           post-norm    norm(x + f(x))

    Args:
        attention: self-attention.
        feed_forward: on each token.
        norm: makes a norm; called once for each part.
        cross_attention: over a source, or None.
        pre_norm: norm before each part, else after its residual.
        dropout: on what each part adds.
    """

    def __init__(
        self,
        attention: MultiheadAttention,
        feed_forward: FeedForward,
        norm: Callable[[], nn.Module],
        *,
        cross_attention: MultiheadAttention | None = None,
        pre_norm: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attention, self.attention_norm = attention, norm()
        self.cross_attention = cross_attention
        self.cross_attention_norm = None if cross_attention is None else norm()
        self.feed_forward, self.feed_forward_norm = feed_forward, norm()
        self.pre_norm, self.dropout = pre_norm, nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        rotate: Rotate | None = None,
        key_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
        memory: CrossAttentionState | None = None,
        step: TokenStep | None = None,
        shard: "Shard | None" = None,
    ) -> BlockOutput:
        """x [B, T, width], source [B, S, width]; with `return_state` also the states after this call. `step`
        and `shard`: see `MultiheadAttention`.

        (Both carry gradients, so both are positional: reentrant checkpointing sees no others.)
        """
        y, state = self.attention(
            self._before(x, self.attention_norm),
            rotate=rotate,
            key_mask=key_mask,
            lengths=lengths,
            cu_seqlens=cu_seqlens,
            state=state,
            return_state=return_state,
            step=step,
            shard=shard,
        )
        x = self._after(x, y, self.attention_norm)
        memory_state = None
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            if source is None:
                raise ValueError("this block has cross-attention: source must be given.")
            query = self._before(x, self.cross_attention_norm)
            y, memory_state = self._cross(query, source, memory or CrossAttentionState(), return_state)
            x = self._after(x, y, self.cross_attention_norm)
        y = self.feed_forward(self._before(x, self.feed_forward_norm))
        return BlockOutput(self._after(x, y, self.feed_forward_norm), state, memory_state)

    def _cross(
        self, x: Tensor, source: Tensor, memory: CrossAttentionState, return_state: bool
    ) -> tuple[Tensor, State | None]:
        """Queries and source both count from 0: the offset between them is none."""
        assert self.cross_attention is not None
        if memory.state is None or memory.positions is None:
            return self.cross_attention(
                x, source, key_mask=memory.key_mask, query_offset=0, return_state=return_state
            )
        if getattr(self.cross_attention.attention, "windows", None):
            raise ValueError(
                "cross-attention with windows cannot go on from a state, which has the source's last keys "
                "alone: leave the windows out, or give the whole source with every call."
            )
        here = with_positions(memory.state, memory.positions, memory.seen)
        y, _ = self.cross_attention(x, source[:, :0], state=here, query_offset=0)
        return y, memory.state

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.pre_norm else x

    def _after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + (self.dropout(y) if self.training else y)
        return x if self.pre_norm else norm(x)
