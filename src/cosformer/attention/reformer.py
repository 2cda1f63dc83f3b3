"""Reformer (Kitaev et al., ICLR 2020, arXiv:2001.04451, section 2 and appendix A): attention among tokens
that a locality-sensitive hash puts into one bucket, in several rounds of hashing r:

o_i = sum_r exp(z_i^r - z_i) sum_{j in P_i^r} exp(q_i . k_j / sqrt(D) - m_ij - z_i^r) v_j
h^r(x) = argmax([x R^r, -x R^r]),   k_j = q_j / |q_j|
m_ij = 10^5 if i = j, else log |{r : j in P_i^r}|

z^r and z are what normalises one round and all rounds. Sorted by bucket and then by place, tokens are cut
into chunks of m: P_i^r holds the tokens of i's bucket in i's chunk and in the one before.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention
from cosformer.attention.gather import masked_softmax, take
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops.checks import positive_int
from cosformer.random_features import RandomFeatures, interval

_SELF = 1e5  # a token attends to itself only where there is nothing else


@register("reformer")
class Reformer(Attention, RandomFeatures):
    """Queries and keys are one: k is not read. A masked token is in no bucket, and its output is zero.

    Causal, the published chunks let the future change the past: later tokens of lower buckets push a token
    over the border of a chunk, and so decide which earlier ones it sees. Here a causal token sees, of the
    earlier tokens of its bucket, the last m, wherever the borders lie.

    The number of buckets does not follow the length of a call: the same text would hash otherwise when it
    is padded or grows.

    Args:
        rounds: of hashing; with 8 the paper comes close to full attention.
        chunk: m.
        buckets: even; None is the paper's 2 L / m for L = max_length.
        redraw_interval: training steps between two draws of the rotations R; None: never.
        head_dim: size of a head (the model's).
        max_length: the greatest length of a text, from which the buckets are taken.
    """

    traits = Traits(
        paper="Reformer: The Efficient Transformer, arXiv:2001.04451",
        cost="log-linear",
        causal=True, bidirectional=True, key_mask=True, grouped_heads=True, random=True, reads="qv",
    )  # fmt: skip

    def __init__(
        self,
        *,
        rounds: int = 4,
        chunk: int = 64,
        buckets: int | None = None,
        redraw_interval: int | None = None,
        head_dim: int = 64,
        max_length: int = 2048,
    ):
        super().__init__()
        self.rounds, self.chunk = positive_int("rounds", rounds), positive_int("chunk", chunk)
        self.max_length = positive_int("max_length", max_length)
        self.head_dim = positive_int("head_dim", head_dim)
        self.buckets = None if buckets is None else positive_int("buckets", buckets)
        if self.buckets is not None and self.buckets % 2:
            raise ValueError(f"buckets must be even, a direction and its opposite each, but got {buckets}.")
        self.redraw_interval = interval(redraw_interval)
        half = -(-self.max_length // self.chunk) if self.buckets is None else self.buckets // 2
        self.rotations: Tensor
        self.register_buffer("rotations", torch.empty(self.rounds, self.head_dim, half))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.sample_missing()

    def sample(self) -> dict[str, Tensor]:
        return {"rotations": torch.randn(self.rotations.shape, device="cpu")}

    @torch.no_grad()
    def hash(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        """The buckets [B, H, rounds, T] of q [B, H, T, D]; one more than the last where a token is masked."""
        if q.shape[3] != self.head_dim:
            raise ValueError(
                f"q must have heads of {self.head_dim}, the head_dim of this reformer, but got {q.shape[3]}."
            )
        accum_dtype = torch.promote_types(q.dtype, torch.float32)
        rotated = q[:, :, None].to(accum_dtype) @ self.rotations.to(accum_dtype)
        bucket = torch.cat([rotated, -rotated], -1).argmax(-1)
        if key_mask is not None:
            bucket = bucket.masked_fill(~key_mask[:, None, None], 2 * self.rotations.shape[2])
        return bucket

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None, **never_asked: Any
    ) -> tuple[Tensor, None]:
        length, heads = q.shape[1:3]
        if key_mask is not None:
            q, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (q, v))
        q, v = q.transpose(1, 2), v.repeat_interleave(heads // v.shape[2], 2).transpose(1, 2)
        bucket = self.hash(q, key_mask)
        order = bucket.argsort(dim=-1, stable=True)  # by bucket, then by place
        rank = order.argsort(-1)
        real = None if key_mask is None else key_mask[:, None, :, None]
        outs, totals = [], []
        for r in range(self.rounds):
            size = min(self.chunk, length)
            token = F.pad(order[:, :, r], (0, -length % size), value=-1)
            own = near = token.unflatten(2, (-1, size))  # [B, H, n, m]
            if length > size:
                near = torch.cat([F.pad(own, (0, 0, 1, 0), value=-1)[:, :, :-1], own], 3)
            seen, times = self._pairs(bucket, rank, own, near, r, causal)
            if real is not None:
                seen = seen & take(real, near)[..., 0][..., None, :]
            queries, keys = take(q, own), take(F.normalize(q, dim=-1), near)
            scores = (queries @ keys.mT / math.sqrt(q.shape[3])).to(
                torch.promote_types(q.dtype, torch.float32)
            )
            itself = own[..., :, None] == near[..., None, :]
            scores = scores - torch.where(itself, _SELF, times.to(scores.dtype).log())
            out = masked_softmax(scores, seen).to(v.dtype) @ take(v, near)
            total = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).logsumexp(-1)
            outs.append(take(out.flatten(2, 3), rank[:, :, r]))
            totals.append(total.flatten(2).gather(2, rank[:, :, r]))
        share = torch.stack(totals).softmax(0).to(v.dtype)
        return (share[..., None] * torch.stack(outs)).sum(0).transpose(1, 2), None

    def _pairs(
        self, bucket: Tensor, rank: Tensor, own: Tensor, near: Tensor, r: int, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Which keys `near` [B, H, n, 2m] the queries `own` [B, H, n, m] see in round r, and in how many
        rounds each of these pairs occurs (at least once)."""
        place = rank if causal else rank // self.chunk
        reach = self.chunk if causal else 1
        valid = (own >= 0)[..., :, None] & (near >= 0)[..., None, :]
        if causal:
            valid = valid & (near[..., None, :] <= own[..., :, None])
        seen, times = valid, torch.zeros_like(valid, dtype=torch.int64)
        facts = torch.cat([bucket, place], 2).mT  # [B, H, T, 2 rounds]
        of_own, of_near = take(facts, own).unbind(-1), take(facts, near).unbind(-1)
        for s in range(self.rounds):
            steps = of_own[self.rounds + s][..., :, None] - of_near[self.rounds + s][..., None, :]
            within = (of_own[s][..., :, None] == of_near[s][..., None, :]) & (steps >= 0) & (steps <= reach)
            times = times + within
            seen = seen & within if s == r else seen
        return seen, times.clamp_min(1)

    def extra_repr(self) -> str:
        return f"rounds={self.rounds}, chunk={self.chunk}, buckets={2 * self.rotations.shape[2]}"
