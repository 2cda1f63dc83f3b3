"""The state of mechanisms that look back at every key: the keys and values themselves, growing."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.attention.growing import GrowingState


@dataclass(frozen=True, slots=True)
class KeyValueState(GrowingState):
    """keys [B, T, Hk, D] and values [B, T, Hk, Dv] seen so far, and which of them are real: mask [B, T],
    or None while all are. `at` [B, T] is the position of each key where the mechanism has windows, else None:
    the mask does not tell padding, which has no position, from a hidden key, which has one.

    `positions` [B] and `seen` as in `CosformerState`: the position of the next token of each row.
    """

    of_columns: ClassVar[dict[str, Any]] = {"mask": False, "at": 0}

    mask: Tensor | None
    positions: Tensor
    seen: int
    at: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> "KeyValueState":
        if mask is not None or self.mask is not None:
            parts = ((self.keys, self.mask), (keys, mask))
            mask = torch.cat(
                [k.new_ones(k.shape[:2], dtype=torch.bool) if m is None else m for k, m in parts], 1
            )
        at = self.at
        if at is not None:
            new = self.positions[:, None] + torch.arange(keys.shape[1], device=keys.device)
            at = torch.cat([at, new], 1)
        return KeyValueState(
            _joined(self.keys, keys),
            _joined(self.values, values),
            mask,
            self.positions + keys.shape[1],
            self.seen + keys.shape[1],
            at,
        )

    @classmethod
    def empty(cls, keys: Tensor, values: Tensor, *, windows: bool = False) -> "KeyValueState":
        """Nothing seen yet, for keys and values like these."""
        none = torch.zeros(keys.shape[0], 0, dtype=torch.int64, device=keys.device)
        return cls(keys[:, :0], values[:, :0], None, none.sum(1), 0, none if windows else None)

    def crop(self, length: int) -> "KeyValueState":
        """Only the first `length` columns; exact, since every key is still there."""
        if self.at is not None:
            # Padding has positions after the end of the text: the smallest of them is the end.
            positions = torch.cat([self.at[:, length:], self.positions[:, None]], 1).amin(1)
        else:
            gone = self.length - length if self.mask is None else self.mask[:, length:].sum(1)
            positions = self.positions - gone
        return replace(
            self,
            keys=self.keys[:, :length],
            values=self.values[:, :length],
            mask=None if self.mask is None else self.mask[:, :length],
            positions=positions,
            seen=int(positions.max()),
            at=None if self.at is None else self.at[:, :length],
        )


def _joined(before: Tensor, new: Tensor) -> Tensor:
    """Along the time axis; each head is contiguous in memory, as attention kernels prefer."""
    return torch.cat([before.transpose(1, 2), new.transpose(1, 2)], 2).transpose(1, 2)


pytree.register_dataclass(
    KeyValueState,
    field_names=["keys", "values", "mask", "positions", "seen", "at"],
    drop_field_names=[],
    serialized_type_name="cosformer.KeyValueState",
)
