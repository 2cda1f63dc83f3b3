"""What decoding carries: everything the past can still say, in a size that does not grow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.ops.checks import WIDE, positive, positive_int


@dataclass(frozen=True)
class CosformerState:
    """The running sums of a causal (or one-sided) attention over the keys and values seen so far.

    With j the position of a key, counted from the first one ever seen, and k' = ReLU(k):

        numerator[:, :, 0]   = sum_j cos(pi j / 2M) k'_j v_j^T      [B, Hk, 2, D, Dv]
        numerator[:, :, 1]   = sum_j sin(pi j / 2M) k'_j v_j^T
        denominator[:, :, 0] = sum_j cos(pi j / 2M) k'_j            [B, Hk, 2, D]
        denominator[:, :, 1] = sum_j sin(pi j / 2M) k'_j

    float32 (float64 for float64 inputs), as large after a million tokens as after one. Under
    `cu_seqlens` the batch axis counts documents. States are values: nothing but
    `decode_step` changes one in place.

    `positions` [B] counts the positions each row has seen (masked keys included); `seen` is the
    largest of them (on a GPU perhaps more, after rows were selected), known without asking the
    device; `horizon` is the M of the angles above.
    """

    numerator: Tensor
    denominator: Tensor
    positions: Tensor
    seen: int
    horizon: float

    @classmethod
    def zeros(
        cls,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        horizon: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "CosformerState":
        """The state before the first token."""
        value_dim = head_dim if value_dim is None else value_dim
        sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            positive_int(name, size)
        if dtype not in WIDE:
            raise ValueError(f"dtype of a state must be torch.float32 or torch.float64, but got {dtype}.")
        shape = (batch, num_kv_heads, 2, head_dim)
        return cls(
            numerator=torch.zeros(*shape, value_dim, device=device, dtype=dtype),
            denominator=torch.zeros(shape, device=device, dtype=dtype),
            positions=torch.zeros(batch, device=device, dtype=torch.int64),
            seen=0,
            horizon=positive("horizon", horizon),
        )

    @property
    def batch(self) -> int:
        return self.numerator.shape[0]

    @property
    def nbytes(self) -> int:
        return self.numerator.nbytes + self.denominator.nbytes + self.positions.nbytes

    def to(self, *args: Any, **kwargs: Any) -> "CosformerState":
        """As `Tensor.to`; the sums stay float32 or better, the positions stay integers."""
        numerator = self.numerator.to(*args, **kwargs)
        if numerator.dtype not in WIDE:
            raise ValueError(
                f"CosformerState.to: a state cannot become {numerator.dtype}; its running sums are "
                "kept in float32 or float64. Move it with .to(device) and leave the dtype alone."
            )
        return replace(
            self,
            numerator=numerator,
            denominator=self.denominator.to(*args, **kwargs),
            positions=self.positions.to(numerator.device),
        )

    def select(self, rows: Tensor | Sequence[int]) -> "CosformerState":
        """The rows of the batch with these numbers, in that order (beam search)."""
        rows = torch.as_tensor(rows, device=self.positions.device)
        if rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"rows must be a one-dimensional list or tensor of row numbers, but got {rows.dtype} "
                f"of shape {list(rows.shape)}."
            )
        chosen = self._each(lambda x: x.index_select(0, rows))
        # Elsewhere than on the CPU a look at the positions would wait for the device: the bound stays.
        if rows.device.type != "cpu" or rows.numel() == 0 or torch.compiler.is_compiling():
            return chosen
        return replace(chosen, seen=int(chosen.positions.max()))

    def repeat(self, times: int) -> "CosformerState":
        """Each row `times` times in a row: [a, b] becomes [a, a, b, b]."""
        times = positive_int("times", times)
        return self._each(lambda x: x.repeat_interleave(times, 0))

    def detach(self) -> "CosformerState":
        return self._each(Tensor.detach)

    def clone(self) -> "CosformerState":
        return self._each(Tensor.clone)

    def _each(self, f: Callable[[Tensor], Tensor]) -> "CosformerState":
        return replace(
            self,
            numerator=f(self.numerator),
            denominator=f(self.denominator),
            positions=f(self.positions),
        )


pytree.register_dataclass(
    CosformerState,
    field_names=["numerator", "denominator", "positions", "seen", "horizon"],
    drop_field_names=[],
)
