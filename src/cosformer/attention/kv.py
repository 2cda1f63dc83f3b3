"""The state of mechanisms that look back at every key: the keys and values themselves, growing."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.attention.state import RowState


@dataclass(frozen=True)
class KeyValueState(RowState):
    """keys [B, T, Hk, D] and values [B, T, Hk, Dv] seen so far, and which of them are real: mask [B, T].

    `positions` [B] and `seen` as in `CosformerState`: where the next token of each row stands.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    positions: Tensor
    seen: int

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> "KeyValueState":
        if mask is None:
            mask = keys.new_ones(keys.shape[:2], dtype=torch.bool)
        return KeyValueState(
            torch.cat([self.keys, keys], 1),
            torch.cat([self.values, values], 1),
            torch.cat([self.mask, mask], 1),
            self.positions + keys.shape[1],
            self.seen + keys.shape[1],
        )

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor) -> "KeyValueState":
        """Nothing seen yet, for keys and values like these."""
        batch = keys.shape[0]
        return cls(
            keys[:, :0],
            values[:, :0],
            torch.ones(batch, 0, dtype=torch.bool, device=keys.device),
            torch.zeros(batch, dtype=torch.int64, device=keys.device),
            0,
        )

    def crop(self, length: int) -> "KeyValueState":
        """Only the first `length` columns; exact, since every key is still there."""
        gone = self.mask[:, length:].sum(1)
        positions = self.positions - gone
        return replace(
            self,
            keys=self.keys[:, :length],
            values=self.values[:, :length],
            mask=self.mask[:, :length],
            positions=positions,
            seen=int(positions.max()),
        )


pytree.register_dataclass(
    KeyValueState, field_names=["keys", "values", "mask", "positions", "seen"], drop_field_names=[]
)
