"""Random Feature Attention (Peng et al., ICLR 2021, arXiv:2103.02143): a softmax over directions, through
random features, and a gate that forgets:

    gaussian  phi(x) = m^(-1/2) [sin(w_r . x), cos(w_r . x)]_{r = 1..m}     E[w_ij] = exp(-|q - k|^2 / 2)
    arccos    phi(x) = m^(-1/2) [ReLU(w_r . x)]_{r = 1..m}                  the arc-cosine kernel, degree 1

on unit vectors q, k, where exp(-|q - k|^2 / 2) = exp(q . k - 1): that is the softmax, its constant cancels.
w_r = sigma * e_r with e_r standard Gaussian and sigma learned, for each head and dimension.

With the gate g_t = sigmoid(u . k_t + b) the past fades:

    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T

The paper's gate reads the token x_t; here it reads the head's key, a linear image of x_t, because a
mechanism sees q, k and v alone. A gate has a direction: with it, the mechanism is causal only.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops.checks import flag, positive, positive_int
from cosformer.random_features import RandomFeatures, interval

KERNELS = ("gaussian", "arccos")


@register("rfa")
class Rfa(LinearAttention, RandomFeatures):
    """Args:
    num_kv_heads, head_dim: of the model.
    kernel: "gaussian" or "arccos".
    features: m, random vectors (sine and cosine each give one feature).
    gate: forget with a learned gate; causal only.
    scale: initial sigma; its square is the inverse temperature of the softmax.
    redraw_interval: training steps between two draws (see `cosformer.random_features`); None: never.
    eps: lower bound of the absolute denominator (estimates of the Gaussian kernel may be negative).
    """

    traits = linear_traits("Random Feature Attention, arXiv:2103.02143", random=True)

    def __init__(
        self,
        *,
        num_kv_heads: int = 8,
        head_dim: int = 64,
        kernel: str = "gaussian",
        features: int = 64,
        gate: bool = False,
        scale: float = 1.0,
        redraw_interval: int | None = 1,
        eps: float = 1e-2,
    ):
        super().__init__(eps=eps)
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, but got {kernel!r}.")
        self.num_kv_heads = positive_int("num_kv_heads", num_kv_heads)
        self.head_dim = positive_int("head_dim", head_dim)
        self.features, self.kernel = positive_int("features", features), kernel
        self.gate, self.scale = flag("gate", gate), positive("scale", scale)
        self.redraw_interval = interval(redraw_interval)
        self.vectors: Tensor
        self.register_buffer("vectors", torch.empty(num_kv_heads, features, head_dim))
        self.sigma = nn.Parameter(torch.empty(num_kv_heads, head_dim))
        if gate:
            self.gate_weight = nn.Parameter(torch.empty(num_kv_heads, head_dim))
            self.gate_bias = nn.Parameter(torch.empty(num_kv_heads))
        self.traits = self.traits_with(gate=gate)
        self.reset_parameters()

    @classmethod
    def traits_with(cls, *, gate: bool = False, **parameters: Any) -> Traits:
        return replace(cls.traits, bidirectional=False) if gate else cls.traits

    def reset_parameters(self) -> None:
        self.sample_missing()
        nn.init.constant_(self.sigma, self.scale)
        if self.gate:
            nn.init.normal_(self.gate_weight, std=self.head_dim**-0.5)
            nn.init.zeros_(self.gate_bias)

    def sample(self) -> dict[str, Tensor]:
        return {"vectors": torch.randn(self.vectors.shape, device="cpu")}

    def feature_dim(self, head_dim: int) -> int:
        return 2 * self.features if self.kernel == "gaussian" else self.features

    def query_features(self, q: Tensor) -> Tensor:
        return self._features(q)

    def key_features(self, k: Tensor) -> Tensor:
        psi = self._features(k)
        if not self.gate:
            return psi
        return psi * torch.sigmoid(-self._gate(k)).unsqueeze(-1)

    def log_decay(self, k: Tensor) -> Tensor | None:
        return F.logsigmoid(self._gate(k)) if self.gate else None

    def _gate(self, k: Tensor) -> Tensor:
        """The gate before its sigmoid: [B, T, Hk]."""
        return torch.einsum("bthd,hd->bth", k, self.gate_weight.to(k.dtype)) + self.gate_bias.to(k.dtype)

    def _features(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.head_dim or x.shape[2] % self.num_kv_heads != 0:
            raise ValueError(
                f"q and k must have heads of {self.head_dim} and {self.num_kv_heads} key heads, the head_dim "
                f"and num_kv_heads of this rfa, but got heads of {x.shape[-1]} and {x.shape[2]} of them."
            )
        vectors = (self.vectors * self.sigma.unsqueeze(1)).to(x.dtype)  # (Hk, m, D)
        x = F.normalize(x, dim=-1).unflatten(2, (self.num_kv_heads, -1))
        x = torch.einsum("bthgd,hmd->bthgm", x, vectors).flatten(2, 3)
        x = x.relu() if self.kernel == "arccos" else torch.cat([x.sin(), x.cos()], -1)
        return x * self.features**-0.5

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, features={self.features}, gate={self.gate}"
