"""The state of softmax attention where every head has a window: the keys and values still in sight."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.ops.row_state import RowState
from cosformer.ops.windows import last_rows


@dataclass(frozen=True, slots=True)
class WindowState(RowState):
    """The last N = max(W) - 1 keys [B, N, Hk, D] and values [B, N, Hk, Dv] of each row, oldest first: as many
    after a million tokens as after one. mask [B, N] says which of them are keys: False before the first token
    of a row and where a key was hidden; keys and values are 0 there.

    `positions` [B] and `seen` as in `CosformerState`: the position of the next token of each row.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    positions: Tensor
    seen: int

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor, columns: int) -> "WindowState":
        """Nothing seen yet, for keys and values like these."""
        rows = keys.shape[0]
        return cls(
            keys.new_zeros(rows, columns, *keys.shape[2:]),
            values.new_zeros(rows, columns, *values.shape[2:]),
            torch.zeros(rows, columns, dtype=torch.bool, device=keys.device),
            torch.zeros(rows, dtype=torch.int64, device=keys.device),
            0,
        )

    @property
    def columns(self) -> int:
        return self.keys.shape[1]

    def append(
        self, keys: Tensor, values: Tensor, mask: Tensor | None, lengths: Tensor | None
    ) -> "WindowState":
        """After keys and values [B, T, Hk, .], of which mask [B, T] are seen (None: all); only the first
        `lengths` [B] columns belong to each row."""
        new = keys.shape[1]
        if mask is None:
            mask = torch.ones(keys.shape[0], new, dtype=torch.bool, device=keys.device)
        return WindowState(
            last_rows(self.keys, keys, lengths),
            last_rows(self.values, values, lengths),
            last_rows(self.mask, mask, lengths),
            self.positions + (new if lengths is None else lengths),
            self.seen + new,
        )


pytree.register_dataclass(
    WindowState,
    field_names=[field.name for field in fields(WindowState)],
    drop_field_names=[],
    serialized_type_name="cosformer.WindowState",
)
