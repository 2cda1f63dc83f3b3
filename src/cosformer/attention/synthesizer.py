"""Synthesizer (Tay et al., 2020, arXiv:2005.00743, equations 1 to 8): weights that no key has a part in.

o_i = sum_j softmax_j(B_ij) v_j

dense              B_i = W2 ReLU(W1 q_i + b1) + b2
random             B = R, learned
factorised dense   B_ij = A_i(j mod a) C_i(j div a),   A_i in R^a and C_i in R^c as B_i above, a c = L
factorised random  B = R1 R2^T,   R1 and R2 [L, r]

L is the greatest length; a text uses the first rows and columns.
"""

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cosformer.attention.base import Attention
from cosformer.attention.checks import for_heads, of_size, one_of, within_length
from cosformer.attention.gather import masked_softmax
from cosformer.attention.headwise import HeadwiseNetwork
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops.checks import flag, positive_int

KINDS = ("dense", "random", "factorised_dense", "factorised_random")


@register("synthesizer")
class Synthesizer(Attention):
    """The keys are not read. The paper's functions of the token x_i are here functions of its query, a
    projection of x_i for each head.

    Args:
        kind: one of dense, random, factorised_dense, factorised_random.
        rank: r of factorised_random.
        learned: False leaves the random weights untrained (kinds random and factorised_random).
        num_kv_heads: key heads (the model's); each has weights of its own.
        head_dim: size of a head (the model's).
        max_length: L.
    """

    traits = Traits(
        paper="Synthesizer: Rethinking Self-Attention for Transformer Models, arXiv:2005.00743",
        cost="quadratic",
        causal=True, bidirectional=True, key_mask=True, grouped_heads=True, reads="qv",
    )  # fmt: skip

    def __init__(
        self,
        *,
        kind: Literal["dense", "random", "factorised_dense", "factorised_random"] = "dense",
        rank: int = 8,
        learned: bool = True,
        num_kv_heads: int = 8,
        head_dim: int = 64,
        max_length: int = 512,
    ):
        super().__init__()
        self.kind, self.rank = one_of("kind", kind, KINDS), positive_int("rank", rank)
        self.num_kv_heads = positive_int("num_kv_heads", num_kv_heads)
        self.head_dim = positive_int("head_dim", head_dim)
        self.max_length = positive_int("max_length", max_length)
        self.learned = flag("learned", learned)
        if not self.learned and self.kind.endswith("dense"):
            raise ValueError(
                f"learned must be True for kind {kind!r}: only random weights can stay as drawn."
            )
        heads, size, length = self.num_kv_heads, self.head_dim, self.max_length
        # a is the least divisor of L that is not below its root: the two factors are then nearly alike.
        self.inner = next(a for a in range(math.isqrt(length - 1) + 1, length + 1) if length % a == 0)
        if self.kind == "dense":
            self.synthesis = HeadwiseNetwork(heads, size, length)
        elif self.kind == "factorised_dense":
            self.inner_synthesis = HeadwiseNetwork(heads, size, self.inner)
            self.outer_synthesis = HeadwiseNetwork(heads, size, length // self.inner)
        elif self.kind == "random":
            self._random_weights(weight=(heads, length, length))
        else:
            self._random_weights(left=(heads, length, self.rank), right=(heads, length, self.rank))
        self.traits = self.traits_with(kind=self.kind)
        self.reset_parameters()

    @classmethod
    def traits_with(cls, *, kind: str = "dense", **parameters: Any) -> Traits:
        return cls.traits if kind.endswith("dense") else replace(cls.traits, reads="v")

    def _random_weights(self, **shapes: tuple[int, ...]) -> None:
        self.weight: Tensor
        self.left: Tensor
        self.right: Tensor
        for name, shape in shapes.items():
            if self.learned:
                self.register_parameter(name, nn.Parameter(torch.empty(shape)))
            else:
                self.register_buffer(name, torch.empty(shape))

    def reset_parameters(self) -> None:
        """Random weights are initialised so that B has variance 1."""
        std = self.rank**-0.25 if self.kind == "factorised_random" else 1.0
        for weight in (*self.parameters(recurse=False), *self.buffers(recurse=False)):
            nn.init.normal_(weight, std=std)
        for network in self.children():
            assert isinstance(network, HeadwiseNetwork)
            network.reset_parameters()

    def scores(self, q: Tensor) -> Tensor:
        """B for q [B, Hk, H/Hk, T, D]: [B, Hk, H/Hk, T, T], or [Hk, 1, T, T] where no query is read."""
        length = q.shape[3]
        if self.kind == "random":
            return self.weight[:, None, :length, :length]
        if self.kind == "factorised_random":
            return (self.left[:, :length] @ self.right[:, :length].mT)[:, None]
        rows = q.flatten(2, 3)  # [B, Hk, (H/Hk) T, D]
        if self.kind == "dense":
            found = self.synthesis(rows, length)
        else:
            inner = self.inner_synthesis(rows, self.inner)
            outer = self.outer_synthesis(rows, -(-length // self.inner))
            found = (outer[..., :, None] * inner[..., None, :]).flatten(-2)[..., :length]
        return found.unflatten(2, q.shape[2:4])

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None, **never_asked: Any
    ) -> tuple[Tensor, None]:
        length, kv_heads = v.shape[1:3]
        for_heads(self.name, kv_heads, self.num_kv_heads)
        if self.kind.endswith("dense"):
            of_size(self.name, q.shape[3], self.head_dim)
        within_length(self.name, length, self.max_length)
        q = q.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
        seen = torch.ones(1, 1, 1, length, length, dtype=torch.bool, device=q.device)
        if causal:
            seen = seen.tril()
        if key_mask is not None:
            v = v.masked_fill(~key_mask[..., None, None], 0)
            seen = seen & key_mask[:, None, None, None]
        weights = masked_softmax(self.scores(q), seen).to(v.dtype).expand(-1, -1, q.shape[2], -1, -1)
        return torch.einsum("bhgts,bshd->bthgd", weights, v).flatten(2, 3), None

    def extra_repr(self) -> str:
        return f"{self.kind}, max_length={self.max_length}"
