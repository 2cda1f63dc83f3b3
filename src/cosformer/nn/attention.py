"""The multi-head module of the paper: projections, heads, and the operator between them."""

from typing import Any

import torch
from torch import Tensor, nn

from cosformer.ops import CosformerState, cosformer_attention
from cosformer.ops.backends import NAMES
from cosformer.ops.checks import epsilon, flag, positive, positive_int


class CosformerAttention(nn.Module):
    """cosFormer attention with its q, k, v and out projections; self- and cross-attention.

    Batch first: query [B, Tq, embed_dim], key [B, Tk, kdim], value [B, Tk, vdim]. Parameter names
    are those of the authors' module: with its weights, and with the horizon it takes from the
    lengths of the call (`horizon=None`), the numbers are the same.

    Args:
        embed_dim: width of the query and of the output.
        num_heads: query heads; embed_dim must be a multiple of it.
        kdim, vdim: width of key and value, embed_dim unless given.
        num_kv_heads: key and value heads, num_heads unless given (grouped heads).
        causal: a position sees itself and what came before.
        horizon: M of the operator; needed where a state is carried. None: the length of the call.
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
        bias: bool = True,
        eps: float = 1e-6,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.embed_dim, self.num_heads = (
            positive_int("embed_dim", embed_dim),
            positive_int("num_heads", num_heads),
        )
        self.num_kv_heads = num_heads if num_kv_heads is None else positive_int("num_kv_heads", num_kv_heads)
        self.kdim = embed_dim if kdim is None else positive_int("kdim", kdim)
        self.vdim = embed_dim if vdim is None else positive_int("vdim", vdim)
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim must be a multiple of num_heads {num_heads}, but got {embed_dim}.")
        if num_heads % self.num_kv_heads != 0:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads {self.num_kv_heads}, but got {num_heads}."
            )
        if backend not in NAMES:
            raise ValueError(f"backend must be one of {', '.join(NAMES)}, but got {backend!r}.")
        self.head_dim = embed_dim // num_heads
        self.causal, self.eps, self.backend = flag("causal", causal), epsilon(eps), backend
        self.horizon = None if horizon is None else positive("horizon", horizon)
        kv_width = self.num_kv_heads * self.head_dim
        like: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, embed_dim, **like)
        self.k_proj = nn.Linear(self.kdim, kv_width, **like)
        self.v_proj = nn.Linear(self.vdim, kv_width, **like)
        self.out_proj = nn.Linear(embed_dim, embed_dim, **like)

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
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, CosformerState]:
        """[B, Tq, embed_dim], and the state after this call's keys with `return_state`.

        key defaults to query, value to key. The other arguments are the operator's.
        """
        if key is None and value is not None:
            raise ValueError("value was given without key: give both, or key alone (value is then the key).")
        key = query if key is None else key
        value = key if value is None else value
        for name, x, width in (
            ("query", query, self.embed_dim),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        ):
            if not isinstance(x, Tensor):
                raise TypeError(f"{name} must be a tensor [B, T, {width}], but got {type(x).__name__}.")
            if x.dim() != 3 or x.shape[-1] != width:
                raise ValueError(f"{name} must have shape [B, T, {width}], but got {list(x.shape)}.")
        result = cosformer_attention(
            self.q_proj(query).unflatten(-1, (self.num_heads, -1)),
            self.k_proj(key).unflatten(-1, (self.num_kv_heads, -1)),
            self.v_proj(value).unflatten(-1, (self.num_kv_heads, -1)),
            causal=self.causal,
            horizon=self.horizon,
            key_mask=key_mask,
            query_offset=query_offset,
            cu_seqlens=cu_seqlens,
            eps=self.eps,
            state=state,
            return_state=return_state,
            backend=self.backend,
        )
        if isinstance(result, Tensor):
            return self.out_proj(result.flatten(-2))
        out, after = result
        return self.out_proj(out.flatten(-2)), after

    def extra_repr(self) -> str:
        horizon = "length" if self.horizon is None else f"{self.horizon:g}"
        return f"heads={self.num_heads}/{self.num_kv_heads}, causal={self.causal}, horizon={horizon}"
