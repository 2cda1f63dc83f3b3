"""The multi-head module of the paper: projections, heads, and the operator between them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cosformer.attention.cosformer import Cosformer
from cosformer.nn.projections import Projections
from cosformer.ops import CosformerState
from cosformer.ops.checks import flag


class CosformerAttention(Projections):
    """cosFormer attention with its q, k, v and out projections; self- and cross-attention.

    Batch first: query [B, Tq, embed_dim], key [B, Tk, kdim], value [B, Tk, vdim]. Parameter names
    are those of the authors' module: with its weights, and with the horizon it takes from the
    lengths of the call (`horizon=None`), the numbers are the same.

    Args:
        embed_dim: width of the query and of the output.
        num_heads: query heads; embed_dim must be a multiple of it.
        kdim, vdim: width of key and value, embed_dim unless given.
        num_kv_heads: key and value heads, num_heads unless given (grouped heads).
        causal: a position sees itself and earlier ones.
        horizon: M of the operator; needed where a state is carried, unless every head has a window. None:
            the length of the call.
        windows: an int or None for each key-value head, as in the operator; None: no head has one.
        bias: of the projections.
        eps: lower bound of the denominator.
        backend: of the operator.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        causal: bool = False,
        horizon: float | None = None,
        windows: Sequence[int | None] | None = None,
        bias: bool = True,
        eps: float = 1e-6,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            embed_dim, num_heads, kdim=kdim, vdim=vdim, num_kv_heads=num_kv_heads, bias=bias, device=device,
            dtype=dtype,
        )  # fmt: skip
        self.causal = flag("causal", causal)
        self.attention = Cosformer(
            horizon=horizon, windows=windows, eps=eps, backend=backend, num_kv_heads=self.num_kv_heads
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_mask: Tensor | None = None,
        state: CosformerState | None = None,
        *,
        query_offset: int | None = None,
        cu_seqlens: Tensor | None = None,
        lengths: Tensor | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, CosformerState]:
        """[B, Tq, embed_dim], and the state after this call's keys with `return_state`.

        key defaults to query, value to key. The other arguments are the operator's.
        """
        result = self.attention(
            *self.project(query, key, value), causal=self.causal, key_mask=key_mask, lengths=lengths,
            query_offset=query_offset, cu_seqlens=cu_seqlens, state=state, return_state=return_state,
        )  # fmt: skip
        if isinstance(result, Tensor):
            return self.merge(result)
        out, after = result
        return self.merge(out), after

    @property
    def horizon(self) -> float | None:
        return self.attention.horizon

    @property
    def windows(self) -> tuple[int | None, ...] | None:
        return self.attention.windows

    @property
    def eps(self) -> float:
        return self.attention.eps

    @property
    def backend(self) -> str:
        return self.attention.backend

    def extra_repr(self) -> str:
        return (
            f"heads={self.num_heads}/{self.num_kv_heads}, causal={self.causal}, {self.attention.extra_repr()}"
        )
