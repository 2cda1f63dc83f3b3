"""Linformer (Wang et al., 2020, arXiv:2006.04768, equation 7):

o_i = sum_s softmax_s(q_i . (E K)_s / sqrt(D)) (F V)_s,   s = 1..r

E and F [r, L] are learned projections along the length: all keys together become r of them.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosformer.attention.base import Attention
from cosformer.attention.checks import for_heads, one_of, within_length
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops.checks import positive_int


@register("linformer")
class Linformer(Attention):
    """Not causal: each projected key holds all tokens at once.

    A text shorter than max_length uses the first columns of E and F; masked tokens are left out of the sums.

    Args:
        projected_length: r (k in the paper).
        sharing: of the projections (section 4): "headwise" is one E and one F for all heads, "key_value"
            one for keys and values alike, "none" an E and an F for each key head.
        num_kv_heads: key heads (the model's), for sharing "none".
        max_length: L, the greatest number of keys.
    """

    traits = Traits(
        paper="Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768",
        cost="linear",
        bidirectional=True, cross=True, key_mask=True, grouped_heads=True,
    )  # fmt: skip

    def __init__(
        self,
        *,
        projected_length: int = 256,
        sharing: Literal["none", "headwise", "key_value"] = "headwise",
        num_kv_heads: int = 12,
        max_length: int = 512,
    ):
        super().__init__()
        self.projected_length = positive_int("projected_length", projected_length)
        self.sharing = one_of("sharing", sharing, ("none", "headwise", "key_value"))
        self.num_kv_heads = positive_int("num_kv_heads", num_kv_heads)
        self.max_length = positive_int("max_length", max_length)
        heads = self.num_kv_heads if self.sharing == "none" else 1
        shape = (heads, self.projected_length, self.max_length)
        self.key_projection = nn.Parameter(torch.empty(shape))
        self.value_projection = None if self.sharing == "key_value" else nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Entries of variance 1 / r (theorem 2)."""
        for projection in self.parameters():
            nn.init.normal_(projection, std=self.projected_length**-0.5)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, **never_asked: Any
    ) -> tuple[Tensor, None]:
        length, kv_heads = k.shape[1:3]
        if self.sharing == "none":
            for_heads(self.name, kv_heads, self.num_kv_heads)
        within_length(self.name, length, self.max_length)
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (k, v))
        e = self.key_projection[..., :length]
        f = e if self.value_projection is None else self.value_projection[..., :length]
        k = e @ k.transpose(1, 2)  # [B, Hk, r, D]
        v = f @ v.transpose(1, 2)
        q = q.unflatten(2, (kv_heads, -1)) / math.sqrt(q.shape[3])
        weights = torch.einsum("bthgd,bhrd->bhgtr", q, k).softmax(-1)
        return torch.einsum("bhgtr,bhrd->bthgd", weights, v).flatten(2, 3), None

    def extra_repr(self) -> str:
        return f"projected_length={self.projected_length}, sharing={self.sharing}"
