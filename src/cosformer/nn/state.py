"""What multi-head attention carries where its queries, keys and values are convolved, and what it is told of
a call of one token a row."""

from dataclasses import dataclass, replace

from torch import Tensor
from torch.utils import _pytree as pytree

from cosformer.attention import State
from cosformer.attention.base import with_positions
from cosformer.ops.one_token import StepWeights
from cosformer.ops.row_state import RowState


@dataclass
class TokenStep:
    """One token a row behind a state: where the tokens stand (`weights.positions` [B], of which `seen` is the
    largest), and tensors that the state after them may be written to."""

    weights: StepWeights
    seen: int
    into: State | None


@dataclass(frozen=True, slots=True)
class ConvolvedState(RowState):
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

    def with_positions(self, positions: Tensor, seen: int) -> "ConvolvedState":
        """The same past, with the next token of each row at these positions."""
        return replace(self, attention=with_positions(self.attention, positions, seen))

    def _states(self) -> dict[str, State]:
        return {"attention": self.attention}


pytree.register_dataclass(
    ConvolvedState,
    field_names=["attention", "inputs"],
    drop_field_names=[],
    serialized_type_name="cosformer.ConvolvedState",
)
