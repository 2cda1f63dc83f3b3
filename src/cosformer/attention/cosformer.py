"""cosFormer (Qin et al., ICLR 2022, arXiv:2202.08791, equation 10):

o_i = sum_j w_ij v_j / max(sum_j w_ij, eps),   w_ij = (ReLU(q_i) . ReLU(k_j)) cos((pi/2)(i - j)/M)

A head with a window W has W in place of M, and no weight beyond it: |i - j| < W.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cosformer.attention.base import Attention
from cosformer.attention.registry import register
from cosformer.attention.traits import Traits
from cosformer.ops import CosformerState, cosformer_attention
from cosformer.ops.backends import NAMES
from cosformer.ops.checks import epsilon, positive
from cosformer.ops.one_token import StepWeights, one_token
from cosformer.ops.windows import check_windows, public

if TYPE_CHECKING:
    from cosformer.distributed.shard import Shard


@register("cosformer")
class Cosformer(Attention):
    """The operator of this package as a mechanism.

    Args:
        horizon: M, the distance at which a weight reaches zero; None takes it from the lengths of the
            call, which is not possible with a carried state.
        windows: an int or None for each key-value head; None: no head has one. Where all have one, the
            horizon has no part in it, and a text has no bound.
        eps: lower bound of the denominator.
        backend: of the operator.
        num_kv_heads: key-value heads; windows have an entry for each.
    """

    traits = Traits(
        paper="cosFormer: Rethinking Softmax in Attention, arXiv:2202.08791",
        cost="linear",
        causal=True, bidirectional=True, cross=True, key_mask=True, cu_seqlens=True, recurrent=True,
        packed_state=True, constant_state=True, grouped_heads=True, sequence_parallel=True,
    )  # fmt: skip
    state_type = CosformerState
    takes_lengths = True
    writes_into = True

    def __init__(
        self,
        *,
        horizon: float | None = None,
        windows: Sequence[int | None] | None = None,
        eps: float = 1e-6,
        backend: str = "auto",
        num_kv_heads: int | None = None,
    ):
        super().__init__()
        if backend not in NAMES:
            raise ValueError(f"backend must be one of {', '.join(NAMES)}, but got {backend!r}.")
        self.horizon = None if horizon is None else positive("horizon", horizon)
        self.eps, self.backend, self.num_kv_heads = epsilon(eps), backend, num_kv_heads
        self.windows = public(check_windows(windows, num_kv_heads))

    @property
    def has_bound(self) -> bool:
        return self.windows is None or None in self.windows

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None,
        query_offset: int | None, cu_seqlens: Tensor | None, state: CosformerState | None, return_state: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, CosformerState | None]:  # fmt: skip
        result = cosformer_attention(
            q,
            k,
            v,
            causal=causal,
            horizon=self.horizon,
            windows=self.windows,
            key_mask=key_mask,
            query_offset=query_offset,
            cu_seqlens=cu_seqlens,
            eps=self.eps,
            lengths=lengths,
            state=state,
            return_state=return_state,
            backend=self.backend,
        )
        return (result, None) if isinstance(result, Tensor) else result

    def split(
        self, k: Tensor, v: Tensor, shard: "Shard", *, causal: bool, lengths: Tensor | None
    ) -> Callable[[Tensor], Tensor]:
        """One state is sent to all ranks, whatever the length; windows need W - 1 tokens of the
        neighbours."""
        from cosformer.distributed.attention import SplitAttention

        horizon = float(shard.total) if self.horizon is None else self.horizon
        call = SplitAttention(
            k, v, shard, causal=causal, horizon=horizon, windows=self.windows, lengths=lengths, eps=self.eps,
            backend=self.backend,
        )  # fmt: skip
        if lengths is None:
            return lambda q: call(q)[0]
        padding = torch.arange(shard.start, shard.stop, device=k.device) >= lengths[:, None]
        # Padding may be beyond the horizon, where a denominator can vanish.
        return lambda q: call(q)[0].masked_fill(padding[..., None, None], 0)

    def attend_token(
        self, q: Tensor, k: Tensor, v: Tensor, state: CosformerState, weights: StepWeights, seen: int,
        into: CosformerState | None = None,
    ) -> tuple[Tensor, CosformerState]:  # fmt: skip
        if self.backend != "auto":
            out, after = super().attend_token(q, k, v, state, weights, seen)
            assert isinstance(after, CosformerState)
            return out, after
        into = state.empty_like() if into is None else into
        return one_token(q, k, v, state, into, weights, self.eps), into

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """The numerator and the denominator of heads without a window, the last W - 1 keys and values of
        those with one; the length does not matter."""
        value_dim = head_dim if value_dim is None else value_dim
        windows = self.windows or (None,) * num_kv_heads
        return windows.count(None) * 2 * head_dim * (value_dim + 1) + sum(
            (window - 1) * (head_dim + value_dim) for window in windows if window is not None
        )

    def extra_repr(self) -> str:
        horizon = f"horizon={'length' if self.horizon is None else f'{self.horizon:g}'}"
        return horizon if self.windows is None else f"{horizon}, windows={self.windows}"
