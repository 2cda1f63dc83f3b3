"""What multi-head attention carries where its queries, keys and values are convolved, and what it is told of
a call of one token a row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.attention import State
from cosformer.attention.base import with_positions
from cosformer.ops.checks import positive_int
from cosformer.ops.one_token import StepWeights


@dataclass
class TokenStep:
    """One token a row behind a state: where the tokens stand (`weights.positions` [B], of which `seen` is the
    largest), and tensors that the state after them may be written to."""

    weights: StepWeights
    seen: int
    into: State | None


@dataclass(frozen=True, slots=True)
class ConvolvedState:
    """The state of the mechanism, and the last K - 1 projected q, k and v of each row, side by side:
    inputs [B, K - 1, channels], 0 where there were none, in the dtype they came in.

    It does not grow by the convolution, and cannot be cropped: the inputs before those are gone.
    """

    attention: State
    inputs: Tensor

    @property
    def positions(self) -> Tensor:
        return self.attention.positions

    @property
    def seen(self) -> int:
        return self.attention.seen

    @property
    def batch(self) -> int:
        return self.attention.batch

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + self.inputs.nbytes

    def to(self, *args: Any, **kwargs: Any) -> "ConvolvedState":
        """As `Tensor.to`."""
        return ConvolvedState(self.attention.to(*args, **kwargs), self.inputs.to(*args, **kwargs))

    def select(self, rows: Tensor | Sequence[int]) -> "ConvolvedState":
        """The rows of the batch with these numbers, in that order (beam search)."""
        own = torch.as_tensor(rows, device=self.inputs.device)
        return ConvolvedState(self.attention.select(rows), self.inputs.index_select(0, own))

    def repeat(self, times: int) -> "ConvolvedState":
        """Each row `times` times in a row: [a, b] becomes [a, a, b, b]."""
        times = positive_int("times", times)
        return ConvolvedState(self.attention.repeat(times), self.inputs.repeat_interleave(times, 0))

    def detach(self) -> "ConvolvedState":
        return ConvolvedState(self.attention.detach(), self.inputs.detach())

    def clone(self) -> "ConvolvedState":
        return ConvolvedState(self.attention.clone(), self.inputs.clone())

    def with_positions(self, positions: Tensor, seen: int) -> "ConvolvedState":
        """The same past, with the next token of each row at these positions."""
        return replace(self, attention=with_positions(self.attention, positions, seen))


pytree.register_dataclass(
    ConvolvedState,
    field_names=["attention", "inputs"],
    drop_field_names=[],
    serialized_type_name="cosformer.ConvolvedState",
)
