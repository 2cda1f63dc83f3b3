"""ReLU features without the cosine: the ablation that isolates the paper's re-weighting
(Qin et al., ICLR 2022, arXiv:2202.08791, Table 1 and the ablation of the re-weighting):

w_ij = ReLU(q_i) . ReLU(k_j)

A head with a window W has this weight for |i - j| < W and 0 beyond: a box, where cosFormer's window has the
shape of a cosine.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.linear_base import LinearAttention, linear_traits
from cosformer.attention.linear_core import LinearState
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.attention.visible import visible, windows_of_heads, within_windows


@register("relu")
class Relu(LinearAttention):
    """With windows it is a control, not a fast attention: the whole square of weights is computed, in
    quadratic time and memory, and no state is carried; its `traits` say so.

    Args:
        eps: lower bound of the denominator.
        windows: an int or None for each key-value head; None: no head has one.
        num_kv_heads: key-value heads, which windows have an entry for each of.
    """

    traits = linear_traits("cosFormer: Rethinking Softmax in Attention (Table 1), arXiv:2202.08791")

    def __init__(
        self,
        *,
        eps: float = 1e-6,
        windows: Sequence[int | None] | None = None,
        num_kv_heads: int | None = None,
    ):
        super().__init__(eps=eps)
        self.windows, self.num_kv_heads = windows_of_heads(windows, num_kv_heads), num_kv_heads
        self.traits = self.traits_with(windows=self.windows)

    @classmethod
    def traits_with(cls, *, windows: Sequence[int | None] | None = None, **parameters: Any) -> Traits:
        if all(window is None for window in windows or ()):
            return cls.traits
        return replace(
            cls.traits, cost="quadratic", recurrent=False, packed_state=False, constant_state=False
        )

    def query_features(self, q: Tensor) -> Tensor:
        return q.relu()

    def key_features(self, k: Tensor) -> Tensor:
        return k.relu()

    def before_relu(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor] | None:
        return (q, k) if self.windows is None else None

    def attend_features(
        self, phi: Tensor, psi: Tensor, v: Tensor, *, causal: bool, offset: int, **carried: Any
    ) -> tuple[Tensor, LinearState]:
        windows = windows_of_heads(self.windows, psi.shape[2])
        if windows is None:
            return super().attend_features(phi, psi, v, causal=causal, offset=offset, **carried)
        tq, tk = phi.shape[1], psi.shape[1]
        i, j = (torch.arange(n, device=phi.device)[None] for n in (tq, tk))
        seen = within_windows(i + offset, j, windows)
        if causal:
            seen = seen & visible(tq, tk, offset, causal, None, phi.device)
        q = phi.unflatten(2, (psi.shape[2], -1)).permute(0, 2, 3, 1, 4)  # (B, Hk, G, Tq, D)
        k, v1 = psi.permute(0, 2, 3, 1), F.pad(v, (0, 1), value=1.0).transpose(1, 2)
        weights = (q @ k[:, :, None]).masked_fill(~seen[:, :, None], 0)  # (B, Hk, G, Tq, Tk)
        n1 = weights @ v1[:, :, None]  # numerator and denominator side by side
        out = n1[..., :-1] / n1[..., -1:].clamp_min(self.eps)
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3), LinearState.zeros(psi, v)  # not returned

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """The sums of `LinearAttention`; nothing with windows."""
        if not self.traits.recurrent:
            return 0
        return super().state_size(length, num_kv_heads=num_kv_heads, head_dim=head_dim, value_dim=value_dim)

    def extra_repr(self) -> str:
        return "" if self.windows is None else f"windows={self.windows}"
