"""Multi-head attention around any registered mechanism."""

from torch import Tensor

from cosformer.attention import Attention, State
from cosformer.nn.projections import Projections
from cosformer.ops.checks import flag
from cosformer.positions.base import Rotate


class MultiheadAttention(Projections):
    """Projections and heads around a mechanism from `cosformer.attention`; self- and cross-attention.

    Args:
        embed_dim: width of the query and of the output.
        num_heads: query heads; embed_dim must be a multiple of it.
        attention: the mechanism, from `attention.build`.
        kdim, vdim: width of key and value, embed_dim unless given.
        num_kv_heads: key and value heads, num_heads unless given (grouped heads).
        causal: a position sees itself and what came before.
        bias: of the projections.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attention: Attention,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        causal: bool = False,
        bias: bool = True,
    ):
        if not isinstance(attention, Attention):
            raise TypeError(
                "attention must be a mechanism, as cosformer.attention.build makes it, but got "
                f"{type(attention).__name__}."
            )
        super().__init__(
            embed_dim,
            num_heads,
            kdim=kdim,
            vdim=vdim,
            num_kv_heads=num_kv_heads,
            bias=bias,
            reads=attention.traits.reads,
        )
        self.attention, self.causal = attention, flag("causal", causal)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        rotate: Rotate | None = None,
        key_mask: Tensor | None = None,
        query_offset: int | None = None,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, State | None]:
        """[B, Tq, embed_dim] and, with `return_state`, the state after this call's keys (else None).

        `rotate` is what a position does (its `rotation`) to the heads of q and k [B, T, heads, head_dim];
        the other arguments are the mechanism's.
        """
        q, k, v = self.project(query, key, value)
        if rotate is not None:
            q, k = rotate(q), rotate(k, key=True)
        result = self.attention(
            q,
            k,
            v,
            causal=self.causal,
            key_mask=key_mask,
            query_offset=query_offset,
            cu_seqlens=cu_seqlens,
            state=state,
            return_state=return_state,
        )
        out, after = result if return_state else (result, None)
        return self.merge(out), after

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}/{self.num_kv_heads}, causal={self.causal}"
