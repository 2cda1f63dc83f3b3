"""What linear mechanisms share beside the sums: features in, masks, packed documents, states."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cosformer.attention.base import Attention
from cosformer.attention.linear_core import LinearState, linear_attention
from cosformer.attention.traits import Traits
from cosformer.ops import cosformer_attention
from cosformer.ops.checks import epsilon
from cosformer.ops.interface import under_autocast
from cosformer.ops.one_token import StepWeights
from cosformer.ops.packing import bundles, document_bounds
from cosformer.ops.validation import offset_of

# M with which every cosine is 1 and every sine nearly 0; a float32 holds it, and the angle of one token.
# Kernels that divide by a sine have a least one: that of the first token is 0 with any M.
ENDLESS = 1e30


def linear_traits(paper: str, **changes: Any) -> Traits:
    """Everything the linear core can do."""
    core = Traits(
        paper=paper, cost="linear", causal=True, bidirectional=True, cross=True, key_mask=True,
        cu_seqlens=True, recurrent=True, packed_state=True, constant_state=True, grouped_heads=True,
    )  # fmt: skip
    return replace(core, **changes)


def can_fuse(q: Tensor) -> bool:
    """Whether cosFormer's operator is the faster way: on a GPU in half precision, where it took a sixth to a
    third of the core's time. In float32 it took two to four times as long, on a CPU as long as the core
    causally and 1.1 to 1.4 times as long in both directions (trials without a record)."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else q.dtype
    return q.is_cuda and q.dtype != torch.float64 and dtype in (torch.bfloat16, torch.float16)


class LinearAttention(Attention):
    """A mechanism with weights phi(q_i) . psi(k_j): a subclass says what the features are.

    Args:
        eps: lower bound of the absolute denominator.
    """

    state_type = LinearState

    def __init__(self, *, eps: float = 1e-6):
        super().__init__()
        self.eps = epsilon(eps)

    @abstractmethod
    def query_features(self, q: Tensor) -> Tensor:
        """phi: [B, T, H, D] to [B, T, H, F], in float32 or float64."""

    @abstractmethod
    def key_features(self, k: Tensor) -> Tensor:
        """psi: [B, T, Hk, D] to [B, T, Hk, F], in float32 or float64."""

    def feature_dim(self, head_dim: int) -> int:
        """F for heads of this size."""
        return head_dim

    def before_relu(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor] | None:
        """Tensors of q's dtype whose ReLU is phi(q) and psi(k), which the operator takes; None where features
        can be negative. A hidden key, which may be NaN, has a gradient of 0 there, and must keep it."""
        return None

    def log_decay(self, k: Tensor) -> Tensor | None:
        """log g [B, T, Hk] of the gate, from the keys; None without one."""
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None,
        query_offset: int | None, cu_seqlens: Tensor | None, state: LinearState | None, return_state: bool,
    ) -> tuple[Tensor, LinearState | None]:  # fmt: skip
        if state is None and not return_state and q.numel() and k.numel() and can_fuse(q):
            fused = self._fused(q, k, v, causal, key_mask, query_offset, cu_seqlens)
            if fused is not None:
                return fused.to(q.dtype), None
        accum_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        dtype = q.dtype
        # Autocast would sum in half precision, which cannot count beyond some thousand tokens.
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (x.to(accum_dtype) for x in (q, k, v))
            if cu_seqlens is not None:
                out, after = self._packed(q, k, v, cu_seqlens, causal, state)
            else:
                offset = offset_of(query_offset, q, k, causal)
                out, after = self._row(q, k, v, key_mask, causal, offset, state)
        return out.to(dtype), after if return_state else None

    def _fused(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None,
        query_offset: int | None, cu_seqlens: Tensor | None,
    ) -> Tensor | None:  # fmt: skip
        """By the kernels of cosFormer's operator, whose cosine is 1 where the horizon is endless; None where
        they cannot serve."""
        q, k, v = under_autocast(q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            k, v = k.to(q.dtype), v.to(q.dtype)
            features = self.before_relu(q, k)
            if features is None:
                return None
            return cosformer_attention(
                *features, v, causal=causal, horizon=ENDLESS, key_mask=key_mask, query_offset=query_offset,
                cu_seqlens=cu_seqlens, eps=self.eps,
            )  # fmt: skip

    def _row(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        causal: bool,
        offset: int,
        state: LinearState | None,
    ) -> tuple[Tensor, LinearState]:
        hidden = None if key_mask is None else ~key_mask[..., None, None]
        if hidden is not None:
            # Before the features, because NaN stays NaN under a weight of zero; after them, because the
            # features of zero need not be zero.
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
        psi, decay = self.key_features(k), self.log_decay(k)
        if hidden is not None:
            psi = psi.masked_fill(hidden, 0)
            decay = None if decay is None else decay.masked_fill(hidden.squeeze(-1), 0)
        return self.attend_features(
            self.query_features(q), psi, v, causal=causal, offset=offset, log_decay=decay, state=state
        )

    def attend_features(
        self, phi: Tensor, psi: Tensor, v: Tensor, *, causal: bool, offset: int, **carried: Any
    ) -> tuple[Tensor, LinearState]:
        """out [B, Tq, H, Dv] and the state after the last key, from features, which are zero for hidden keys.
        `carried`: `log_decay` and `state` of `linear_attention`."""
        return linear_attention(phi, psi, v, causal=causal, offset=offset, eps=self.eps, **carried)

    def attend_token(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState, weights: StepWeights, seen: int,
        into: LinearState | None = None,
    ) -> tuple[Tensor, LinearState]:  # fmt: skip
        """S <- g S + psi(k) v^T,  z <- g z + psi(k),  o = phi(q) S / max(|phi(q) . z|, eps)."""
        dtype, (batch, _, heads, _) = state.numerator.dtype, q.shape
        k = k.to(dtype)
        psi, decay = self.key_features(k)[:, 0], self.log_decay(k)  # (B, Hk, F), (B, 1, Hk)
        numerator, denominator = state.numerator, state.denominator
        if decay is not None:
            g = decay[:, 0].exp().unsqueeze(-1)
            numerator, denominator = numerator * g.unsqueeze(-1), denominator * g
        numerator = torch.addcmul(numerator, psi.unsqueeze(-1), v.to(dtype).transpose(1, 2))
        denominator = denominator + psi
        phi = self.query_features(q.to(dtype))[:, 0].unflatten(1, (k.shape[2], -1))  # (B, Hk, G, F)
        out = phi @ numerator / (phi @ denominator.unsqueeze(-1)).abs().clamp_min(self.eps)
        after = LinearState(numerator, denominator, state.positions, state.seen)
        return out.reshape(batch, 1, heads, -1).to(q.dtype), after

    def _packed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Tensor,
        causal: bool,
        state: LinearState | None,
    ) -> tuple[Tensor, LinearState]:
        """Short documents as rows of a batch, long ones alone: no sum includes two of them."""
        bounds = document_bounds(cu_seqlens, q.shape[1])
        count = len(bounds) - 1
        after = state
        if after is None:
            like = k.new_empty(1, 0, k.shape[2], self.feature_dim(k.shape[3]))
            after = LinearState.zeros(like, v, count)
        sums, ones = after.numerator, after.denominator
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        for b in bundles(bounds, q.device):
            initial_state = None if state is None else state.select(b.documents)
            o, s = self._row(b.take(q), b.take(k), b.take(v), b.real, causal, 0, initial_state)
            b.put(out, o)
            sums = sums.index_copy(0, b.documents, s.numerator)
            ones = ones.index_copy(0, b.documents, s.denominator)
        sizes = cu_seqlens.to(torch.int64).diff()
        positions = after.positions + sizes
        return out, LinearState(sums, ones, positions, int(positions.max()) if count else 0)

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """The numerator and the denominator; the length does not matter."""
        value_dim = head_dim if value_dim is None else value_dim
        return num_kv_heads * self.feature_dim(head_dim) * (value_dim + 1)
