"""States that keep every key and value; and static ones, which have a fixed number of columns of which a step
writes one, so that it is compiled once for every length."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from cosformer.ops.one_token import StepWeights
from cosformer.ops.row_state import RowState

G = TypeVar("G", bound="GrowingState")


@dataclass(frozen=True, slots=True)
class GrowingState(RowState):
    """keys [B, T, Hk, D] and values [B, T, Hk, Dv] of every column so far; a subclass adds `positions`,
    `seen` and tensors [B, T] with a value per column. A static state is an object of the same class with more
    columns than are in use; the values of the unused columns hide them."""

    of_columns: ClassVar[dict[str, Any]]  # the tensors [B, T] by name, with their value in unused columns

    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        """Columns, padding included."""
        return self.keys.shape[1]

    def in_columns(self: G, call: int, back: Tensor, real: Tensor, positions: Tensor) -> G:
        """Reorders the last `call` columns into T columns: column t gets the one at back[:, t], which is a
        key where real [B, T] and padding elsewhere; positions [B, T] are those of the keys, and of the next
        key for padding. `crop` then removes the last columns as the caller sees them."""
        first = self.length - call
        rows = torch.arange(self.batch, device=back.device)[:, None]
        changes = {
            name: torch.cat([x[:, :first], x[:, first:][rows, back]], 1)
            for name, x in (("keys", self.keys), ("values", self.values))
        }
        for name, nothing in self.of_columns.items():
            before, new = getattr(self, name), positions
            if isinstance(nothing, bool):
                before, new = real.new_ones(self.batch, self.length) if before is None else before, real
            elif nothing < 0:  # a place without a key
                new = positions.masked_fill(~real, nothing)
            if before is not None:
                changes[name] = torch.cat([before[:, :first], new], 1)
        return dataclasses.replace(self, **changes)

    def allocate(self: G, columns: int) -> G:
        """A static state without tokens: the same rows, `columns` columns."""

        def like(x: Tensor) -> Tensor:
            batch, _, heads, dim = x.shape
            return x.new_zeros(batch, heads, columns, dim).transpose(1, 2)  # each head contiguous

        changes: dict[str, Any] = {"keys": like(self.keys), "values": like(self.values)}
        for name, nothing in self.of_columns.items():
            found = getattr(self, name)
            if isinstance(nothing, bool) or found is not None:
                dtype = torch.bool if isinstance(nothing, bool) else torch.int64
                shape = (self.batch, columns)
                changes[name] = torch.full(shape, nothing, dtype=dtype, device=self.keys.device)
        return dataclasses.replace(self, **changes)

    def write_to(self: G, static: G) -> None:
        """Copies the columns of this state to a static one."""
        n = self.length
        for new, old in ((self.keys, static.keys), (self.values, static.values)):
            old[:, :n] = new
            old[:, n:] = 0  # nothing of another text, which might not be finite
        for name, nothing in self.of_columns.items():
            old, found = getattr(static, name), getattr(self, name)
            if old is not None:
                old[:, :n] = True if found is None else found
                old[:, n:] = nothing

    def write_token(self, k: Tensor, v: Tensor, weights: StepWeights) -> None:
        """Writes the tokens k, v [B, 1, Hk, .] to column `weights.column` of this static state."""
        column, positions = weights.column, weights.positions
        assert column is not None
        self.keys.index_copy_(1, column, k)
        self.values.index_copy_(1, column, v)
        for name, nothing in self.of_columns.items():
            x = getattr(self, name)
            if x is not None:
                real = isinstance(nothing, bool)
                x.index_copy_(1, column, torch.ones_like(x[:, :1]) if real else positions[:, None])

    def value(self: G, columns: int, positions: Tensor, seen: int) -> G:
        """A copy of the first columns of this static state."""
        fresh = torch.contiguous_format
        found = {name: getattr(self, name) for name in ("keys", "values", *self.of_columns)}
        parts = {
            name: x[:, :columns].clone(memory_format=fresh) for name, x in found.items() if x is not None
        }
        return dataclasses.replace(self, **parts, positions=positions.clone(), seen=seen)  # type: ignore[call-arg]
