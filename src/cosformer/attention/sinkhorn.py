"""Sparse Sinkhorn attention (Tay et al., 2020, arXiv:2002.11296, sections 3.1 to 3.3):

o_i = sum_{j in block of i} softmax_j(q_i . k_j / sqrt(D)) v_j + sum_s softmax_s(q_i . k'_s / sqrt(D)) v'_s

where k', v' is the block that was sorted to the place of the query's own one: with the keys in n blocks,

K'_x = sum_y S_xy K_y,   S = Sinkhorn(R / tau),   R_x = W2 ReLU(W1 sum_{j in x} k_j + b1) + b2

S is doubly stochastic, by normalising rows and columns of exp(R / tau) in turn: a permutation, softened.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention
from cosformer.attention.checks import for_heads, of_size, within_length
from cosformer.attention.gather import masked_softmax
from cosformer.attention.headwise import HeadwiseNetwork
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops.checks import flag, positive, positive_int


@register("sinkhorn")
class Sinkhorn(Attention):
    """Each block of queries looks at its own block of keys and at a mixture of all blocks, sorted to it.

    Not causal: the paper's causal balancing still normalises each column over later blocks, so that the
    future changes the past. The two attentions are added, as in the authors' code for the Long Range
    Arena; the sorting network reads keys (a projection of the tokens for each head) in place of tokens.
    Blocks of padding take no part in the sorting.

    Args:
        block: tokens of a block.
        iterations: of the normalisation.
        temperature: tau.
        noise: Gumbel noise is added to R in training.
        num_kv_heads: key heads (the model's); each sorts for itself.
        head_dim: size of a head (the model's).
        max_length: the greatest length of a text.
    """

    traits = Traits(
        paper="Sparse Sinkhorn Attention, arXiv:2002.11296",
        cost="quadratic",  # in the number of blocks: S mixes each of them with all
        bidirectional=True, key_mask=True, grouped_heads=True, random=True,
    )  # fmt: skip

    def __init__(
        self,
        *,
        block: int = 64,
        iterations: int = 8,
        temperature: float = 0.75,
        noise: bool = True,
        num_kv_heads: int = 8,
        head_dim: int = 64,
        max_length: int = 2048,
    ):
        super().__init__()
        self.block, self.iterations = positive_int("block", block), positive_int("iterations", iterations)
        self.temperature, self.noise = positive("temperature", temperature), flag("noise", noise)
        self.num_kv_heads = positive_int("num_kv_heads", num_kv_heads)
        self.head_dim = positive_int("head_dim", head_dim)
        self.max_length = positive_int("max_length", max_length)
        blocks = -(-self.max_length // self.block)
        self.sorting = HeadwiseNetwork(self.num_kv_heads, self.head_dim, blocks)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.sorting.reset_parameters()

    def sorting_matrix(self, k: Tensor, real: Tensor) -> Tensor:
        """S [B, Hk, n, n] for keys in blocks [B, Hk, n, b, D], of which real [B, n, b] are to be read."""
        scores = self.sorting(k.sum(3), k.shape[2]) / self.temperature
        if self.training and self.noise:
            uniform = torch.rand_like(scores).clamp_min(torch.finfo(scores.dtype).tiny)
            scores = scores - (-uniform.log()).log() / self.temperature
        return balance(scores, real.any(-1)[:, None], self.iterations)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, **never_asked: Any
    ) -> tuple[Tensor, None]:
        batch, length, kv_heads = k.shape[:3]
        for_heads(self.name, kv_heads, self.num_kv_heads)
        of_size(self.name, k.shape[3], self.head_dim)
        within_length(self.name, length, self.max_length)
        real = k.new_ones(batch, length, dtype=torch.bool) if key_mask is None else key_mask
        if key_mask is not None:
            k, v = (x.masked_fill(~key_mask[..., None, None], 0) for x in (k, v))
        rest = -length % self.block

        def blocks(x: Tensor) -> Tensor:
            """[B, T, Hk, ...] in blocks, the last one filled up: [B, Hk, n, b, ...]."""
            padded = F.pad(x.transpose(1, 2).flatten(3), (0, 0, 0, rest))
            return padded.unflatten(2, (-1, self.block)).unflatten(4, x.shape[3:])

        real = F.pad(real, (0, rest)).unflatten(1, (-1, self.block))  # [B, n, b]
        k, v = blocks(k), blocks(v)
        q = blocks(q.unflatten(2, (kv_heads, -1))).transpose(3, 4) / math.sqrt(q.shape[3])
        sort = self.sorting_matrix(k, real).to(k.dtype)
        anywhere = real.any(1, keepdim=True)  # at the other places of a block there is nothing to sort
        sorted_k, sorted_v = (torch.einsum("bhxy,bhysd->bhxsd", sort, x) for x in (k, v))
        out = _attention(q, k, v, real) + _attention(q, sorted_k, sorted_v, anywhere)
        out = out.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)[:, :length]
        return out.flatten(2, 3), None

    def extra_repr(self) -> str:
        return f"block={self.block}, iterations={self.iterations}, temperature={self.temperature:g}"


def balance(scores: Tensor, real: Tensor, iterations: int) -> Tensor:
    """exp(scores) [..., n, n], rows and columns normalised in turn; 0 where either is not real [..., n]."""
    upcast = scores if scores.dtype == torch.float64 else scores.float()
    hidden = ~(real[..., :, None] & real[..., None, :])
    lowest = torch.finfo(upcast.dtype).min / 2
    for _ in range(iterations):
        for dim in (-1, -2):
            upcast = upcast.masked_fill(hidden, lowest)
            upcast = upcast - upcast.logsumexp(dim, keepdim=True)
    return upcast.exp().masked_fill(hidden, 0)


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Block by block: q [B, Hk, n, H/Hk, b, D], k and v [B, Hk, n, b, D], seen [B, n or 1, b]."""
    weights = masked_softmax(q @ k.mT[:, :, :, None], seen[:, None, :, None, None])
    return weights.to(v.dtype) @ v[:, :, :, None]
