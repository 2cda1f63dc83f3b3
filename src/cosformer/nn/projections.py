"""The four projections of multi-head attention, and their heads: shared by every module around them."""

from typing import Any

import torch
from torch import Tensor, nn

from cosformer.attention.traits import Reads
from cosformer.ops.checks import positive_int


class Projections(nn.Module):
    """q, k, v and out projections; batch first, parameters named as in the authors' module.

    query [B, Tq, embed_dim], key [B, Tk, kdim], value [B, Tk, vdim]; heads [B, T, heads, head_dim].

    Args:
        embed_dim: width of the query and of the output.
        num_heads: query heads; embed_dim must be a multiple of it.
        kdim, vdim: width of key and value, embed_dim unless given.
        num_kv_heads: key and value heads, num_heads unless given (grouped heads).
        bias: of the projections.
        reads: which of q, k and v are projected.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        reads: Reads = "qkv",
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
        self.head_dim = embed_dim // num_heads
        kv_width = self.num_kv_heads * self.head_dim
        like: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, embed_dim, **like) if "q" in reads else None
        self.k_proj = nn.Linear(self.kdim, kv_width, **like) if "k" in reads else None
        self.v_proj = nn.Linear(self.vdim, kv_width, **like)
        self.out_proj = nn.Linear(embed_dim, embed_dim, **like)

    def project(
        self, query: Tensor, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The heads of q, k and v. key defaults to query, value to key. Where q or k is not projected, a
        tensor of its shape takes its place."""
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
        v = self.keys_or_values(value, self.v_proj)
        k = v if self.k_proj is None else self.keys_or_values(key, self.k_proj)
        return self.queries(query), k, v

    def queries(self, x: Tensor) -> Tensor:
        return (x if self.q_proj is None else self.q_proj(x)).unflatten(-1, (self.num_heads, -1))

    def keys_or_values(self, x: Tensor, projection: nn.Linear | None) -> Tensor:
        assert projection is not None
        heads: Tensor = projection(x).unflatten(-1, (self.num_kv_heads, -1))
        return heads

    def merge(self, heads: Tensor) -> Tensor:
        """[B, T, num_heads, head_dim] as [B, T, embed_dim]."""
        return self.out_proj(heads.flatten(-2))
