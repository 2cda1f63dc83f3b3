"""The base class of states: rows that can be selected, repeated and moved."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, contiguous_format

from cosformer.ops.checks import positive_int

T = TypeVar("T", bound="RowState")


@dataclass(frozen=True, slots=True)
class RowState:
    """A frozen dataclass of tensors [B, ...], numbers and states that it wraps. A subclass has `positions`
    [B], where the next token of each row stands, and `seen`, the largest of them. It has no `__dict__`, so
    that tools which traverse objects and assign to them, as transformers' exporter, treat it as a value."""

    @property
    def batch(self) -> int:
        return next(iter(self._tensors().values())).shape[0]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self._tensors().values(), *self._states().values()))

    def to(self: T, *args: Any, **kwargs: Any) -> T:
        """As `Tensor.to`; integers and masks keep their types."""
        floating = {n: x.to(*args, **kwargs) for n, x in self._tensors().items() if x.is_floating_point()}
        device = next(iter(floating.values())).device
        others = {n: x.to(device) for n, x in self._tensors().items() if n not in floating}
        states = {n: x.to(*args, **kwargs) for n, x in self._states().items()}
        return dataclasses.replace(self, **floating, **others, **states)

    def select(self: T, rows: Tensor | Sequence[int]) -> T:
        """The rows of the batch with these numbers, in that order (beam search)."""
        return self._each(
            lambda x: x.index_select(0, torch.as_tensor(rows, device=x.device)), lambda x: x.select(rows)
        )

    def repeat(self: T, times: int) -> T:
        """Each row `times` times in a row: [a, b] becomes [a, a, b, b]."""
        times = positive_int("times", times)
        return self._each(lambda x: x.repeat_interleave(times, 0), lambda x: x.repeat(times))

    def detach(self: T) -> T:
        return self._each(Tensor.detach, lambda x: x.detach())

    def clone(self: T) -> T:
        """A copy whose tensors are contiguous, as steps in place need them."""
        return self._each(lambda x: x.clone(memory_format=contiguous_format), lambda x: x.clone())

    def empty_like(self: T) -> T:
        """An uninitialised state of these shapes; `positions` and `seen` are those of this one."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        # Tensors made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            for name, x in fields.items():
                if isinstance(x, Tensor) and name != "positions":
                    fields[name] = torch.empty_like(x, memory_format=contiguous_format)
        return type(self)(**fields | {name: x.empty_like() for name, x in self._states().items()})

    def _tensors(self) -> dict[str, Tensor]:
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: x for name, x in found.items() if isinstance(x, Tensor)}

    def _states(self) -> dict[str, Any]:
        """The states that this one wraps."""
        return {}

    def _each(self: T, of_tensor: Callable[[Tensor], Tensor], of_state: Callable[[Any], Any]) -> T:
        states = {name: of_state(x) for name, x in self._states().items()}  # first: they check what is asked
        tensors = {name: of_tensor(x) for name, x in self._tensors().items()}
        return dataclasses.replace(self, **states, **tensors)
