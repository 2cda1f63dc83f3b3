"""What a cache holds for one layer: a state, and the tensors that the next state is written to."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from cosformer.attention import State
from cosformer.attention.base import with_positions
from cosformer.attention.growing import GrowingState
from cosformer.models.layout import Past
from cosformer.nn import ConvolvedState


class StateLayer(CacheLayerMixin):
    """The state of one layer, that of its cross-attention (the encoder's output, read once), and the number
    of columns read so far, padding included.

    States are values: a state that was read from here never changes. A step of one token writes to a second
    set of tensors, and the two sets take turns; tensors that a caller has read are not reused. While steps
    are compiled, the state is in static tensors of the model that every step overwrites (`make_static`), and
    reading it returns a copy.

    `made_with`: dtype and device of the hidden states that the model computed the state from; None where the
    state was set from outside, and has to be checked first.
    """

    is_sliding = False

    def __init__(self, croppable: bool = False, static: bool = False) -> None:
        super().__init__()
        self.is_croppable, self.is_compileable = croppable, static
        self.reset()

    def reset(self) -> None:
        self._state: State | None = None
        self._spare: State | None = None
        self._read = False  # whether a caller may hold the tensors of the state
        self._is_static = False
        self._interrupted = False
        self._at: tuple[Tensor, int] | None = None  # positions and `seen`, where those of the state are stale
        self.made_with: tuple[torch.dtype, torch.device] | None = None
        self.memory: State | None = None
        self.columns = 0
        self.is_initialized = False

    @property
    def state(self) -> State | None:
        self._check()
        if self._state is not None and self._at is not None:
            if self._is_static:
                return copy_of(self._state, self.columns, *self._at)
            self._state, self._at = with_positions(self._state, *self._at), None
        self._read = True
        return self._state

    @state.setter
    def state(self, state: State | None) -> None:
        self._state, self._spare, self._at, self._read = state, None, None, True
        self._is_static, self.made_with = False, None

    def put(self, state: State | None, memory: State | None, columns: int) -> None:
        """Stores the states after a call over `columns` columns."""
        self.state, self.memory = state, memory
        self.columns += columns
        self.is_initialized = True

    def parts_for_step(self) -> tuple[State | None, State | None]:
        """The state, whose positions may be stale, and tensors to write the next one to."""
        return (self.state, None) if self._is_static else (self._state, self._spare)

    @property
    def raw_state(self) -> State | None:
        """The state without a copy: the static tensors, or the state itself."""
        self._check()
        return self._state

    def step(self, state: State, positions: Tensor, seen: int, *, reuse: bool) -> None:
        """After one token per row; the next one of each row has the position in `positions`, at most `seen`.
        With `reuse`, the next step may write to the tensors of the state before, unless a caller holds
        them."""
        self._spare = self._state if reuse and not (self._read or self._is_static) else None
        self._state, self._at, self._read, self._is_static = state, (positions, seen), False, False
        self.columns += 1

    def make_static(self, static: State, positions: Tensor) -> None:
        """Copies the state to the tensors of `static`, which steps overwrite from now on; the caller updates
        the positions [B] of the next tokens."""
        if self._state is not static:
            assert self._state is not None
            if self._is_static:  # in the tensors of another graph
                self.leave_static(self._state)
            copy_to_static(self._state, static)
            self._at = (positions, self.seen)
            self._state, self._spare, self._is_static = static, None, True

    def static_step(self) -> None:
        """After one token per row that was written to the static tensors."""
        assert self._at is not None
        self._at = (self._at[0], self._at[1] + 1)
        self.columns += 1

    def leave_static(self, static: State) -> None:
        """Copies the state out of `static`, if it is there."""
        if self._state is static and not self._interrupted:
            made_with = self.made_with
            self.state = self.state
            self.made_with = made_with

    def mark_interrupted(self) -> None:
        """A step over static tensors was interrupted: the state cannot be recovered."""
        self._interrupted = True

    def _check(self) -> None:
        if self._interrupted:
            raise ValueError(
                "a compiled step of this cache was interrupted: its states may be those before or after "
                "that token. restore() an earlier snapshot(), or read the text again with a new cache."
            )

    @property
    def seen(self) -> int:
        """Tokens of the longest row, at most; 0 before the first call."""
        if self._at is not None:
            return self._at[1]
        return 0 if self._state is None else self._state.seen

    @property
    def past(self) -> Past | None:
        """The positions of the next tokens; None before the first call."""
        self._check()
        if self._state is None:
            return None
        positions = self._state.positions if self._at is None else self._at[0]
        return Past(positions.clone() if self._is_static else positions, self.seen, self.columns)

    @property
    def content(self) -> tuple[State | None, State | None, int]:
        """State, memory and columns: what `fill` takes."""
        return self.state, self.memory, self.columns

    def fill(self, state: State | None, memory: State | None, columns: int) -> None:
        """Restores what `content` returned."""
        self.reset()
        if state is not None:
            self.put(state, memory, columns)

    @property
    def states(self) -> dict[str, State]:
        found = {"state": self.state, "memory": self.memory}
        return {name: state for name, state in found.items() if state is not None}

    @property
    def nbytes(self) -> int:
        return sum(0 if state is None else state.nbytes for state in (self._state, self.memory))

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return self.get_max_length()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self._each(lambda state: state.select(rows.to(state.positions.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda state: state.repeat(repeats))

    def replace_rows(self, rows: Tensor, other: "StateLayer") -> None:
        own, theirs, made_with = self.state, other.state, self.made_with
        assert own is not None
        assert theirs is not None
        self.state = with_rows(own, rows, theirs)
        self.made_with = made_with if made_with == other.made_with else None
        self.columns = max(self.columns, other.columns)

    def recount(self, seen: int) -> None:
        """Sets the largest position to `seen`, after the row that had it was removed."""
        state, made_with = self.state, self.made_with
        if state is not None:
            self.state = with_positions(state, state.positions, seen)
            self.made_with = made_with

    def _each(self, f: Callable[[State], State]) -> None:
        """Applies f, a choice of rows, to all states."""
        made_with = self.made_with
        for name, state in self.states.items():
            setattr(self, name, f(state))
        self.made_with = made_with

    def detach(self) -> None:
        self._each(lambda state: state.detach())

    def offload(self) -> None:
        if self.is_initialized:
            self.device = next(iter(self.states.values())).positions.device
            for name, state in self.states.items():
                setattr(self, name, state.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        if self.is_initialized and hasattr(self, "device"):
            for name, state in self.states.items():
                setattr(self, name, state.to(self.device, non_blocking=True))

    def check_crop(self, length: int) -> None:
        """Raises if `crop` cannot remove these columns exactly."""
        if length > 0:
            raise ValueError(
                f"crop takes a negative number, the columns to remove, but got {length}. To go back to a "
                "certain point, take a snapshot() there and restore() it."
            )
        if length < 0 < self.columns + length and not hasattr(self.state, "crop"):
            raise ValueError(
                f"a {type(self.state).__name__} of constant size cannot forget its last {-length} tokens: "
                "take a snapshot() of the cache before them, and restore() it."
            )

    def crop(self, length: int) -> None:
        """Removes the last -length columns (length is negative or 0), exactly, or refuses."""
        self.check_crop(length)
        keep = self.columns + length
        if length == 0:
            return
        if keep <= 0:
            self.state, self.columns = None, 0
            self.memory = None  # another source may come with the next text
            return
        cut: Any = self.state
        self.state, self.columns = cut.crop(keep), keep

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a layer of CosformerCache is filled by the model itself; it needs no preparation.")

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise TypeError(
            "a CosformerCache holds states, not keys and values: it serves the models of cosformer.models "
            "alone. Other models want transformers' DynamicCache."
        )


def overwrite(static: Any, state: Any) -> None:
    """Copies the tensors of a state, all but its positions, to those of another with the same shapes."""
    if static is state:
        return
    for field in fields(static):
        if field.name == "positions":
            continue
        old, new = getattr(static, field.name), getattr(state, field.name)
        if isinstance(old, Tensor):
            if old is not new:
                old.copy_(new)
        elif is_dataclass(old):
            overwrite(old, new)


def copy_to_static(state: Any, static: Any) -> None:
    """Copies a state to static tensors."""
    if isinstance(state, ConvolvedState):
        static.inputs.copy_(state.inputs)
        copy_to_static(state.attention, static.attention)
    elif isinstance(state, GrowingState):
        state.write_to(static)
    else:
        overwrite(static, state)


def copy_of(static: Any, columns: int, positions: Tensor, seen: int) -> State:
    """A copy of the state that is in static tensors."""
    if isinstance(static, ConvolvedState):
        return ConvolvedState(copy_of(static.attention, columns, positions, seen), static.inputs.clone())
    if isinstance(static, GrowingState):
        return cast(State, static.value(columns, positions, seen))
    state: State = with_positions(static, positions, seen).clone()
    return state


def with_rows(state: Any, rows: Tensor, other: Any) -> Any:
    """A state with the given rows replaced by those of another one."""
    if isinstance(state, GrowingState):
        raise ValueError(
            f"rows of a {type(state).__name__} cannot be replaced: its texts have as many columns as the "
            "longest of them. Only states of constant size can."
        )
    changes: dict[str, Any] = {}
    for entry in fields(state):
        mine, theirs = getattr(state, entry.name), getattr(other, entry.name)
        if isinstance(mine, Tensor):
            changes[entry.name] = mine.index_copy(0, rows, theirs)
        elif is_dataclass(mine):
            changes[entry.name] = with_rows(mine, rows, theirs)
    return replace(state, **changes)
