"""What a cache holds for one layer: a state, and the tensors that the next one is written to."""

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
    """The state of one layer, that of its cross-attention (the encoder's output, read once), and how many
    columns went in, padding included.

    States are values: what is read here stays as it is. A step of one token writes to a second set of tensors
    of the layer's own, the two changing places; what somebody has read is not written to any more. While
    steps are compiled, the state lies in tensors of the model that every step overwrites (`lend`), and
    reading it gives a copy.

    `made_with`: dtype and device of the hidden states that the model made the state with; None where it came
    from elsewhere, and has to be looked at first.
    """

    is_sliding = False

    def __init__(self, croppable: bool = False, static: bool = False) -> None:
        super().__init__()
        self.is_croppable, self.is_compileable = croppable, static
        self.reset()

    def reset(self) -> None:
        self._state: State | None = None
        self._spare: State | None = None
        self._read = False  # whether somebody else may hold the tensors of the state
        self._lent = False
        self._lost = False
        self._at: tuple[Tensor, int] | None = None  # positions and `seen`, where the state does not say them
        self.made_with: tuple[torch.dtype, torch.device] | None = None
        self.memory: State | None = None
        self.columns = 0
        self.is_initialized = False

    @property
    def state(self) -> State | None:
        self._check()
        if self._state is not None and self._at is not None:
            if self._lent:
                return value_of(self._state, self.columns, *self._at)
            self._state, self._at = with_positions(self._state, *self._at), None
        self._read = True
        return self._state

    @state.setter
    def state(self, state: State | None) -> None:
        self._state, self._spare, self._at, self._read = state, None, None, True
        self._lent, self.made_with = False, None

    def put(self, state: State | None, memory: State | None, columns: int) -> None:
        """Stores what a call over `columns` columns left behind."""
        self.state, self.memory = state, memory
        self.columns += columns
        self.is_initialized = True

    def parts_for_step(self) -> tuple[State | None, State | None]:
        """The state, its positions perhaps out of date, and tensors to write the next one to."""
        return (self.state, None) if self._lent else (self._state, self._spare)

    @property
    def lying(self) -> State | None:
        """The state as it lies: in the room that it was lent to, or the state itself."""
        self._check()
        return self._state

    def step(self, state: State, positions: Tensor, seen: int, *, reuse: bool) -> None:
        """After one token a row; the next one of each row stands at `positions`, at most `seen`. With `reuse`
        the next step may write to the tensors of the state before, where nobody else has them."""
        self._spare = self._state if reuse and not (self._read or self._lent) else None
        self._state, self._at, self._read, self._lent = state, (positions, seen), False, False
        self.columns += 1

    def lend(self, room: State, positions: Tensor) -> None:
        """Puts the state into the tensors of `room`, which are overwritten from now on; the
        caller keeps the positions [B] of the next tokens."""
        if self._state is not room:
            assert self._state is not None
            if self._lent:  # to somebody else
                self.take_back(self._state)
            write_to_room(self._state, room)
            self._at = (positions, self.seen)
            self._state, self._spare, self._lent = room, None, True

    def lent_step(self) -> None:
        """After one token a row that was written over the state that was lent."""
        assert self._at is not None
        self._at = (self._at[0], self._at[1] + 1)
        self.columns += 1

    def take_back(self, room: State) -> None:
        """Has its own copy of what it lent, if that lies in `room`."""
        if self._state is room and not self._lost:
            made_with = self.made_with
            self.state = self.state
            self.made_with = made_with

    def lose(self) -> None:
        """What was lent was left halfway: there is no way back to it."""
        self._lost = True

    def _check(self) -> None:
        if self._lost:
            raise ValueError(
                "a compiled step of this cache was interrupted: its states may be those of before or after "
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
        """Where the next token of each row stands; None before the first call."""
        self._check()
        if self._state is None:
            return None
        positions = self._state.positions if self._at is None else self._at[0]
        return Past(positions.clone() if self._lent else positions, self.seen, self.columns)

    @property
    def content(self) -> tuple[State | None, State | None, int]:
        """State, memory and columns: what `fill` takes."""
        return self.state, self.memory, self.columns

    def fill(self, state: State | None, memory: State | None, columns: int) -> None:
        """As it was when this was its content."""
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
        """Says that `seen` is the largest position; it may have been that of a row which is gone."""
        state, made_with = self.state, self.made_with
        if state is not None:
            self.state = with_positions(state, state.positions, seen)
            self.made_with = made_with

    def _each(self, f: Callable[[State], State]) -> None:
        """The states after f, a choice of rows."""
        made_with = self.made_with
        for name, state in self.states.items():
            setattr(self, name, f(state))
        self.made_with = made_with

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
            return  # the memory of a source stays: it does not belong to the text
        cut: Any = self.state
        self.state, self.columns = cut.crop(keep), keep

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a layer of CosformerCache is filled by the model itself; it needs no preparation.")

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise TypeError(
            "a CosformerCache holds states, not keys and values: it serves the models of cosformer.models "
            "alone. Other models want transformers' DynamicCache."
        )


def overwrite(room: Any, state: Any) -> None:
    """The tensors of a state, all but its positions, into those of another of the same shapes."""
    if room is state:
        return
    for field in fields(room):
        if field.name == "positions":
            continue
        old, new = getattr(room, field.name), getattr(state, field.name)
        if isinstance(old, Tensor):
            if old is not new:
                old.copy_(new)
        elif is_dataclass(old):
            overwrite(old, new)


def write_to_room(state: Any, room: Any) -> None:
    """Puts a state into a room for such states."""
    if isinstance(state, ConvolvedState):
        room.inputs.copy_(state.inputs)
        write_to_room(state.attention, room.attention)
    elif isinstance(state, GrowingState):
        state.write_to(room)
    else:
        overwrite(room, state)


def value_of(room: Any, columns: int, positions: Tensor, seen: int) -> State:
    """The state that lies in a room, as a copy."""
    if isinstance(room, ConvolvedState):
        return ConvolvedState(value_of(room.attention, columns, positions, seen), room.inputs.clone())
    if isinstance(room, GrowingState):
        return cast(State, room.value(columns, positions, seen))
    state: State = with_positions(room, positions, seen).clone()
    return state


def with_rows(state: Any, rows: Tensor, other: Any) -> Any:
    """A state whose rows with these numbers are those of another one."""
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
