"""The state of mechanisms that look back at every key: the keys and values themselves, growing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.ops.checks import positive_int


@dataclass(frozen=True)
class KeyValueState:
    """keys [B, T, Hk, D] and values [B, T, Hk, Dv] seen so far, and which of them are real: mask [B, T],
    or None while all are.

    `positions` [B] and `seen` as in `CosformerState`: where the next token of each row stands.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    positions: Tensor
    seen: int

    @property
    def batch(self) -> int:
        return self.keys.shape[0]

    @property
    def length(self) -> int:
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        mask = 0 if self.mask is None else self.mask.nbytes
        return self.keys.nbytes + self.values.nbytes + mask + self.positions.nbytes

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> "KeyValueState":
        if mask is not None or self.mask is not None:
            parts = ((self.keys, self.mask), (keys, mask))
            mask = torch.cat(
                [k.new_ones(k.shape[:2], dtype=torch.bool) if m is None else m for k, m in parts], 1
            )
        return KeyValueState(
            _joined(self.keys, keys),
            _joined(self.values, values),
            mask,
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
            None,
            torch.zeros(batch, dtype=torch.int64, device=keys.device),
            0,
        )

    def crop(self, length: int) -> "KeyValueState":
        """Only the first `length` columns; exact, since every key is still there."""
        gone = self.length - length if self.mask is None else self.mask[:, length:].sum(1)
        positions = self.positions - gone
        return replace(
            self,
            keys=self.keys[:, :length],
            values=self.values[:, :length],
            mask=None if self.mask is None else self.mask[:, :length],
            positions=positions,
            seen=int(positions.max()),
        )

    def to(self, *args: Any, **kwargs: Any) -> "KeyValueState":
        """As `Tensor.to`; mask and positions keep their types."""
        keys = self.keys.to(*args, **kwargs)
        return replace(
            self,
            keys=keys,
            values=self.values.to(*args, **kwargs),
            mask=None if self.mask is None else self.mask.to(keys.device),
            positions=self.positions.to(keys.device),
        )

    def select(self, rows: Tensor | Sequence[int]) -> "KeyValueState":
        rows = torch.as_tensor(rows, device=self.keys.device)
        return self._each(lambda x: x.index_select(0, rows))

    def repeat(self, times: int) -> "KeyValueState":
        """Each row `times` times in a row: [a, b] becomes [a, a, b, b]."""
        times = positive_int("times", times)
        return self._each(lambda x: x.repeat_interleave(times, 0))

    def detach(self) -> "KeyValueState":
        return self._each(Tensor.detach)

    def clone(self) -> "KeyValueState":
        return self._each(Tensor.clone)

    def _each(self, f: Callable[[Tensor], Tensor]) -> "KeyValueState":
        mask = None if self.mask is None else f(self.mask)
        return replace(self, keys=f(self.keys), values=f(self.values), mask=mask, positions=f(self.positions))


def _joined(before: Tensor, new: Tensor) -> Tensor:
    """Along the time axis; each head lies in one piece in memory, as the kernels of attention like it."""
    return torch.cat([before.transpose(1, 2), new.transpose(1, 2)], 2).transpose(1, 2)


pytree.register_dataclass(
    KeyValueState, field_names=["keys", "values", "mask", "positions", "seen"], drop_field_names=[]
)
