"""Performer (Choromanski et al., ICLR 2021, arXiv:2009.14794), FAVOR+: softmax attention in expectation,
through positive random features (lemma 1) of orthogonal vectors:

w_ij = phi(q_i) . phi(k_j),   phi(x) = m^(-1/2) exp(w_r . x' - |x'|^2 / 2)_{r = 1..m},   x' = x / D^(1/4)

E[w_ij] = exp(q_i . k_j / sqrt(D)). The w_r are standard Gaussian vectors, orthogonal in blocks of D.
"""

import math

import torch
from torch import Tensor

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.registry import register
from cosformer.ops.checks import positive_int
from cosformer.random_features import RandomFeatures, interval

# w . x - |x|^2 / 2 is at most |w|^2 / 2, about D / 2: only a key that is nearly w itself, in a head of more
# than 100, comes here. exp(60) times ten million keys is still a float32.
_LARGEST_EXPONENT = 60.0


@register("performer")
class Performer(LinearAttention, RandomFeatures):
    """Queries are scaled by their own largest feature, which cancels. Keys are not scaled: the largest key
    of a sequence lies in the future of its beginning, and a carried state cannot know it.

    Args:
        head_dim: size of a head (the model's).
        features: m, random features; None: D log D, the paper's rate, rounded down.
        redraw_interval: training steps between two draws (see `cosformer.random_features`); None: never.
        eps: lower bound of the denominator. Features are positive: it guards against underflow alone.
    """

    traits = linear_traits("Rethinking Attention with Performers, arXiv:2009.14794", random=True)

    def __init__(
        self,
        *,
        head_dim: int = 64,
        features: int | None = None,
        redraw_interval: int | None = 1000,
        eps: float = 1e-30,
    ):
        super().__init__(eps=eps)
        self.head_dim = positive_int("head_dim", head_dim)
        self.features = None if features is None else positive_int("features", features)
        self.redraw_interval = interval(redraw_interval)
        self.projection: Tensor
        self.register_buffer("projection", torch.empty(self.feature_dim(head_dim), head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.sample_missing()

    def sample(self) -> dict[str, Tensor]:
        return {"projection": orthogonal_gaussian(*self.projection.shape)}

    def feature_dim(self, head_dim: int) -> int:
        return max(1, int(head_dim * math.log(head_dim))) if self.features is None else self.features

    def query_features(self, q: Tensor) -> Tensor:
        exponent = self._exponent(q)
        return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()

    def key_features(self, k: Tensor) -> Tensor:
        return self._exponent(k).clamp(max=_LARGEST_EXPONENT).exp() * self.projection.shape[0] ** -0.5

    def _exponent(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ValueError(
                f"q and k must have heads of {self.head_dim}, the head_dim of this performer, but got "
                f"{x.shape[-1]}."
            )
        x = x * x.shape[-1] ** -0.25
        return x @ self.projection.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2

    def extra_repr(self) -> str:
        return f"features={self.projection.shape[0]}"


def orthogonal_gaussian(rows: int, dim: int) -> Tensor:
    """[rows, dim]: each row a standard Gaussian vector, rows of one block of `dim` orthogonal."""
    blocks = []
    for _ in range(0, rows, dim):
        q, r = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, device="cpu"))
        blocks.append((q * r.diagonal().sign()).T)  # the signs make Q uniform among the rotations
    lengths = torch.randn(rows, dim, dtype=torch.float64, device="cpu").norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:rows] * lengths
