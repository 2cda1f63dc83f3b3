"""States that keep every key and value, and rooms for them: tensors of a fixed number of columns that a step
writes one column of, so that it can be compiled once for every length."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from cosformer.attention.state import RowState
from cosformer.ops.one_token import StepWeights

G = TypeVar("G", bound="GrowingState")


@dataclass(frozen=True, slots=True)
class GrowingState(RowState):
    """keys [B, T, Hk, D] and values [B, T, Hk, Dv] of every column so far; a subclass has `positions`, `seen`
    and what it says of single columns. A room is an object of the same class with more columns than are
    taken: what it says of the others hides them."""

    of_columns: ClassVar[dict[str, Any]]  # tensors [B, T] by name, with what they are where no token is yet

    keys: Tensor
    values: Tensor

    @property
    def length(self) -> int:
        """Columns, padding included."""
        return self.keys.shape[1]

    def in_columns(self: G, call: int, back: Tensor, real: Tensor, positions: Tensor) -> G:
        """The last `call` columns in the order of T others: column t gets what lies at back[:, t] of them, a
        key where real [B, T] and padding elsewhere; positions [B, T] are of the keys, and of the next ones
        for padding. What is cut off afterwards are then the last columns as a caller sees them."""
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

    def room(self: G, columns: int) -> G:
        """Empty tensors for the same rows, with room for `columns` columns."""

        def like(x: Tensor) -> Tensor:
            batch, _, heads, dim = x.shape
            return x.new_zeros(batch, heads, columns, dim).transpose(1, 2)  # each head in one piece

        changes: dict[str, Any] = {"keys": like(self.keys), "values": like(self.values)}
        for name, nothing in self.of_columns.items():
            found = getattr(self, name)
            if isinstance(nothing, bool) or found is not None:
                dtype = torch.bool if isinstance(nothing, bool) else torch.int64
                shape = (self.batch, columns)
                changes[name] = torch.full(shape, nothing, dtype=dtype, device=self.keys.device)
        return dataclasses.replace(self, **changes)

    def write_to(self: G, room: G) -> None:
        """Puts the columns of this state into a room."""
        n = self.length
        for new, old in ((self.keys, room.keys), (self.values, room.values)):
            old[:, :n] = new
            old[:, n:] = 0  # nothing of another text, which might not be finite
        for name, nothing in self.of_columns.items():
            old, found = getattr(room, name), getattr(self, name)
            if old is not None:
                old[:, :n] = True if found is None else found
                old[:, n:] = nothing

    def write_token(self, k: Tensor, v: Tensor, weights: StepWeights) -> None:
        """Puts the tokens k, v [B, 1, Hk, .] into the column of this room that `weights` says."""
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
        """The state that lies in the first columns of this room, as a copy."""
        fresh = torch.contiguous_format
        found = {name: getattr(self, name) for name in ("keys", "values", *self.of_columns)}
        parts = {
            name: x[:, :columns].clone(memory_format=fresh) for name, x in found.items() if x is not None
        }
        return dataclasses.replace(self, **parts, positions=positions.clone(), seen=seen)  # type: ignore[call-arg]
