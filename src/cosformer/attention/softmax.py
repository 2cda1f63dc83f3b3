"""Softmax attention (Vaswani et al., 2017, arXiv:1706.03762, equation 1), by PyTorch's own kernels:

o_i = sum_j softmax_j(q_i . k_j / sqrt(D)) v_j
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, offset_or_default
from cosformer.attention.kv import KeyValueState
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops.packing import document_bounds


@register("softmax")
class Softmax(Attention):
    """The attention everything else is compared with. Its state is the growing cache of keys and values.

    A query that sees no key gives zeros, and a masked key has no influence whatever it holds.
    """

    traits = Traits(
        paper="Attention Is All You Need, arXiv:1706.03762",
        cost="quadratic",
        causal=True,
        bidirectional=True,
        cross=True,
        key_mask=True,
        cu_seqlens=True,
        recurrent=True,
        packed_state=False,
        constant_state=False,
        grouped_heads=True,
    )
    state_type = KeyValueState

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool,
        key_mask: Tensor | None,
        query_offset: int | None,
        cu_seqlens: Tensor | None,
        state: KeyValueState | None,
        return_state: bool,
    ) -> tuple[Tensor, KeyValueState | None]:
        if cu_seqlens is not None:
            return self._packed(q, k, v, cu_seqlens, causal), None
        offset = offset_or_default(query_offset, q, k, causal)
        if key_mask is not None:
            # Under a weight of zero, NaN is still NaN: what is masked must not hold any.
            k, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (k, v))
        after = None
        if state is not None or return_state:
            before = KeyValueState.empty(k, v) if state is None else state
            after = before.append(k, v, key_mask)
            offset += before.length
            k, v, key_mask = after.keys, after.values, after.mask
        out = _softmax(q, k, v, causal, offset, key_mask)
        return out, after if return_state else None

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, causal: bool) -> Tensor:
        """Document by document: no T × T mask, and nothing of one document can reach another."""
        parts = [
            _softmax(q[:, a:b], k[:, a:b], v[:, a:b], causal, 0, None)
            for a, b in pairwise(document_bounds(cu_seqlens, q.shape[1]))
            if b > a
        ]
        return torch.cat(parts, 1)

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """Every key and every value."""
        return length * num_kv_heads * (head_dim + (head_dim if value_dim is None else value_dim))


def _softmax(q: Tensor, k: Tensor, v: Tensor, causal: bool, offset: int, key_mask: Tensor | None) -> Tensor:
    tq, tk = q.shape[1], k.shape[1]
    # Where each query stands at or behind the last key, causality hides nothing.
    hides = causal and offset < tk - 1
    simple = key_mask is None and (not hides or (offset == 0 and tq == tk))
    seen = None if simple else _visible(tq, tk, offset, hides, key_mask, q.device)
    any_key = None if seen is None else seen.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if seen is None or any_key is None else seen | ~any_key,
        is_causal=simple and hides,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    if any_key is not None:
        out = out.masked_fill(~any_key, 0)
    return out.transpose(1, 2)


def _visible(
    tq: int, tk: int, offset: int, causal: bool, key_mask: Tensor | None, device: torch.device
) -> Tensor:
    """Which keys each query sees: bool [B or 1, 1, Tq, Tk]."""
    i = torch.arange(tq, device=device)[:, None] + offset
    j = torch.arange(tk, device=device)
    seen = (j <= i if causal else (j >= 0).expand(tq, tk))[None, None]
    return seen if key_mask is None else seen & key_mask[:, None, None, :]
