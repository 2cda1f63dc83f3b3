"""Attention that is linear in features, for every mechanism whose weights are products of them:

    o_i = sum_j w_ij v_j / max(|sum_j w_ij|, eps),   w_ij = phi(q_i) . psi(k_j) prod_{j < l <= i} g_l

over the keys j that query i sees; the decay g is 1 but for gated mechanisms. With v1_j = [v_j, 1] and
S = sum_j psi(k_j) v1_j^T (decayed where there is a gate) the sum is phi(q_i)^T S. A causal sequence is cut
into chunks: inside a chunk the square is written out, between chunks S is carried, one for each chunk, so
that neither time nor memory is quadratic and no T x F x Dv tensor exists.

The bound is on the absolute sum: where weights are never negative it is the usual one, and where they are
(identity, leaky_relu, random Fourier features) nothing is divided by a sum near zero, of either sign.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.ops.checks import WIDE
from cosformer.ops.row_state import RowState

CHUNK = 128  # at this number of features, the square inside a chunk costs as much as the state


@dataclass(frozen=True, slots=True)
class LinearState(RowState):
    """The running sums over the keys seen so far, in float32 or better, of a size that does not grow:

        numerator   = sum_j psi(k_j) v_j^T     [B, Hk, F, Dv]
        denominator = sum_j psi(k_j)           [B, Hk, F]

    (decayed where the mechanism has a gate). `positions` [B] and `seen` count the tokens.
    """

    numerator: Tensor
    denominator: Tensor
    positions: Tensor
    seen: int

    def to(self, *args: Any, **kwargs: Any) -> "LinearState":
        """As `Tensor.to`; the sums stay float32 or better."""
        moved = RowState.to(self, *args, **kwargs)
        if moved.numerator.dtype not in WIDE:
            raise ValueError(
                f"LinearState.to: a state cannot become {moved.numerator.dtype}; its running sums are kept "
                "in float32 or float64. Move it with .to(device) and leave the dtype alone."
            )
        return moved

    @classmethod
    def zeros(cls, k: Tensor, v: Tensor, batch: int | None = None) -> "LinearState":
        """The state before the first token, for key features and values like these."""
        batch, heads = k.shape[0] if batch is None else batch, k.shape[2]
        return cls(
            k.new_zeros(batch, heads, k.shape[3], v.shape[3]),
            k.new_zeros(batch, heads, k.shape[3]),
            torch.zeros(batch, dtype=torch.int64, device=k.device),
            0,
        )


pytree.register_dataclass(
    LinearState,
    field_names=["numerator", "denominator", "positions", "seen"],
    drop_field_names=[],
    serialized_type_name="cosformer.LinearState",
)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    offset: int,
    eps: float,
    log_decay: Tensor | None = None,
    state: LinearState | None = None,
) -> tuple[Tensor, LinearState]:
    """out [B, Tq, H, Dv] and the state after the last key.

    q [B, Tq, H, F] and k [B, Tk, Hk, F] are features (zero for a key that is hidden), v [B, Tk, Hk, Dv],
    log_decay [B, Tk, Hk] is log g (causal only); all in float32 or float64. `offset` is the position of the
    first query, seen from the first key.
    """
    groups, length, keys = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    before = LinearState.zeros(k, v) if state is None else state
    if causal and offset < -1 and before.seen > 0:
        raise ValueError(
            f"query_offset must be at least -1 where causal queries meet a state, but it is {offset}: an "
            "earlier query would see only a part of the past, and the state holds its sum."
        )
    s = torch.cat([before.numerator, before.denominator.unsqueeze(-1)], -1)  # (B, Hk, F, Dv + 1)
    q = q.unflatten(2, (k.shape[2], groups)).permute(0, 2, 3, 1, 4)  # (B, Hk, G, Tq, F)
    k, v1 = k.transpose(1, 2), F.pad(v, (0, 1), value=1.0).transpose(1, 2)  # (B, Hk, Tk, .)
    decay = None if log_decay is None else log_decay.transpose(1, 2)  # (B, Hk, Tk)

    if causal:
        # Queries before the first key, keys before the first query, where both overlap, and the rest.
        early, lead = min(max(-offset, 0), length), min(max(offset, 0), keys)
        pairs = min(length - early, keys - lead)
        parts = [_read(q[..., :early, :], s)]
        s = _absorb(s, k, v1, decay, slice(0, lead))
        if pairs > 0:
            side = slice(lead, lead + pairs)
            out, s = _side_by_side(
                q[..., early : early + pairs, :], k[:, :, side], v1[:, :, side], _at(decay, side), s
            )
            parts.append(out)
        s = _absorb(s, k, v1, decay, slice(lead + pairs, keys))
        parts.append(_read(q[..., early + pairs :, :], s))
        n1 = torch.cat(parts, -2)
    else:
        s = _absorb(s, k, v1, decay, slice(0, keys))
        n1 = _read(q, s)

    out = n1[..., :-1] / n1[..., -1:].abs().clamp_min(eps)  # (B, Hk, G, Tq, Dv)
    after = LinearState(s[..., :-1], s[..., -1], before.positions + keys, before.seen + keys)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3), after


def _read(q: Tensor, s: Tensor) -> Tensor:
    return q @ s.unsqueeze(2)


def _absorb(s: Tensor, k: Tensor, v1: Tensor, decay: Tensor | None, at: slice) -> Tensor:
    """S after these keys."""
    if at.start == at.stop:
        return s
    k, v1, decay = k[:, :, at], v1[:, :, at], _at(decay, at)
    if decay is not None:
        passed = decay.double().cumsum(-1)
        k = k * (passed[..., -1:] - passed).exp().to(k.dtype)[..., None]
        s = s * passed[..., -1].exp().to(s.dtype)[..., None, None]
    return s + k.mT @ v1


def _side_by_side(q: Tensor, k: Tensor, v1: Tensor, decay: Tensor | None, s: Tensor) -> tuple[Tensor, Tensor]:
    """Query i sees keys 0 .. i of as many keys, and S: [n_i, d_i] [B, Hk, G, T, Dv + 1], and S afterwards."""
    length = k.shape[2]
    size = min(CHUNK, length)
    q, k, v1 = (_chunks(x, size) for x in (q, k, v1))  # (B, Hk, [G,] N, C, .)
    inside = (q @ k.mT.unsqueeze(2)).tril()  # (B, Hk, G, N, C, C)
    fade: Tensor | None = None
    if decay is not None:
        passed = _chunks(decay.unsqueeze(-1), size).squeeze(-1).double().cumsum(-1)  # (B, Hk, N, C)
        between = passed[..., :, None] - passed[..., None, :]
        future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        inside = inside * between.masked_fill(future, -torch.inf).exp().to(q.dtype).unsqueeze(2)
        q = q * passed.exp().to(q.dtype)[:, :, None, ..., None]
        k = k * (passed[..., -1:] - passed).exp().to(k.dtype)[..., None]
        fade = passed[..., -1].exp().to(k.dtype)  # (B, Hk, N)
    # Of each chunk (B, Hk, F, Dv + 1). Not indexed one by one: the gradient of each would be as large as all.
    sums = (k.mT @ v1).unbind(2)
    fades = [None] * len(sums) if fade is None else fade[..., None, None].unbind(2)
    found = []
    for own, left in zip(sums, fades, strict=True):
        found.append(s)
        s = (s if left is None else s * left) + own
    out = inside @ v1.unsqueeze(2) + q @ torch.stack(found, 2).unsqueeze(2)
    return out.flatten(-3, -2)[..., :length, :], s


def _chunks(x: Tensor, size: int) -> Tensor:
    """[..., T, F] as [..., N, C, F], padded with zeros."""
    short = -x.shape[-2] % size
    return F.pad(x, (0, 0, 0, short)).unflatten(-2, (-1, size))


def _at(x: Tensor | None, at: slice) -> Tensor | None:
    return None if x is None else x[:, :, at]
