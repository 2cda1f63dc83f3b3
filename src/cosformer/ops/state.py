"""The state that decoding carries, of a size that does not grow."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.ops.checks import WIDE, positive, positive_int, readable
from cosformer.ops.row_state import RowState
from cosformer.ops.windows import check_windows, public, state_rows


@dataclass(frozen=True, slots=True)
class CosformerState(RowState):
    """What a causal (or one-sided) attention carries of the keys and values seen so far.

    Of the Hn heads without a window the running sums, float32 (float64 for float64 inputs). With j the
    position of a key, counted from the first one ever seen, and k' = ReLU(k):

        numerator[:, :, 0]   = sum_j cos(pi j / 2M) k'_j v_j^T      [B, Hn, 2, D, Dv]
        numerator[:, :, 1]   = sum_j sin(pi j / 2M) k'_j v_j^T
        denominator[:, :, 0] = sum_j cos(pi j / 2M) k'_j            [B, Hn, 2, D]
        denominator[:, :, 1] = sum_j sin(pi j / 2M) k'_j

    Of the heads with a window W the last W - 1 keys and values, in the inputs' dtype: `keys` [B, R, D] and
    `values` [B, R, Dv], one head after another; that of position j in row j mod (W - 1) of its head, zeros
    where nothing was (a key of zeros has no weight). R is the sum of W - 1; without windows both are None.

    As large after a million tokens as after one. Under `cu_seqlens` the batch axis counts documents. States
    are values: nothing but `decode_step` changes one in place.

    `positions` [B] counts the positions each row has seen (masked keys included); `seen` is the
    largest of them (on a GPU perhaps more, after rows were selected), known without asking the
    device; `horizon` is the M of the angles above, None where every head has a window; `windows` has an int
    or None for each key-value head, and is None where no head has one.
    """

    numerator: Tensor
    denominator: Tensor
    positions: Tensor
    seen: int
    horizon: float | None
    keys: Tensor | None = None
    values: Tensor | None = None
    windows: tuple[int | None, ...] | None = None

    @classmethod
    def zeros(
        cls,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        horizon: float | None = None,
        windows: Sequence[int | None] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        input_dtype: torch.dtype | None = None,
    ) -> "CosformerState":
        """The state before the first token. `dtype` is that of the sums, `input_dtype` that of keys and
        values (the same unless given)."""
        value_dim = head_dim if value_dim is None else value_dim
        sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            positive_int(name, size)
        if dtype not in WIDE:
            raise ValueError(f"dtype of a state must be torch.float32 or torch.float64, but got {dtype}.")
        of_heads = check_windows(windows, num_kv_heads)
        plain = num_kv_heads if of_heads is None else of_heads.count(0)
        if plain and horizon is None:
            raise ValueError(
                "horizon must be given where a head has no window: it is the M of that head's angles."
            )
        shape = (batch, plain, 2, head_dim)
        keys = values = None
        if of_heads is not None:
            keys, values = (
                torch.zeros(batch, state_rows(of_heads), n, device=device, dtype=input_dtype or dtype)
                for n in (head_dim, value_dim)
            )
        return cls(
            numerator=torch.zeros(*shape, value_dim, device=device, dtype=dtype),
            denominator=torch.zeros(shape, device=device, dtype=dtype),
            positions=torch.zeros(batch, device=device, dtype=torch.int64),
            seen=0,
            horizon=positive("horizon", horizon) if plain else None,
            keys=keys,
            values=values,
            windows=public(of_heads),
        )

    def to(self, *args: Any, **kwargs: Any) -> "CosformerState":
        """As `Tensor.to`; the sums stay float32 or better, the positions stay integers, and keys and values
        keep their dtype unless the sums become float64 or leave it."""
        numerator = self.numerator.to(*args, **kwargs)
        if numerator.dtype not in WIDE:
            raise ValueError(
                f"CosformerState.to: a state cannot become {numerator.dtype}; its running sums are "
                "kept in float32 or float64. Move it with .to(device) and leave the dtype alone."
            )
        keys, values = self.keys, self.values
        if keys is not None and values is not None:
            changes = torch.float64 in (keys.dtype, numerator.dtype)
            dtype = numerator.dtype if changes else keys.dtype
            non_blocking = bool(kwargs.get("non_blocking", False))
            keys, values = (x.to(numerator.device, dtype, non_blocking) for x in (keys, values))
        return replace(
            self,
            numerator=numerator,
            denominator=self.denominator.to(*args, **kwargs),
            positions=self.positions.to(numerator.device),
            keys=keys,
            values=values,
        )

    def select(self, rows: Tensor | Sequence[int]) -> "CosformerState":
        """The rows of the batch with these numbers, in that order (beam search)."""
        rows = torch.as_tensor(rows, device=self.positions.device)
        if rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"rows must be a one-dimensional list or tensor of row numbers, but got {rows.dtype} "
                f"of shape {list(rows.shape)}."
            )
        chosen = RowState.select(self, rows)
        if not readable(rows) or rows.numel() == 0:  # the bound stays
            return chosen
        return replace(chosen, seen=int(chosen.positions.max()))


pytree.register_dataclass(
    CosformerState,
    field_names=[f.name for f in fields(CosformerState)],
    drop_field_names=[],
    serialized_type_name="cosformer.CosformerState",
)
