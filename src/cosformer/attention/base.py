"""The base class of mechanisms: modules on projected q, k, v that do what their traits claim, or raise."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from cosformer.attention.checks import check_tensors, checked_mask
from cosformer.attention.traits import Traits
from cosformer.ops.one_token import StepWeights
from cosformer.ops.validation import check_packing, check_rows, mask_of_lengths

if TYPE_CHECKING:
    from cosformer.distributed.shard import Shard

S = TypeVar("S", bound="State")


class State(Protocol):
    """What a recurrent mechanism carries: a frozen dataclass whose fields are tensors and numbers.

    States are values: nothing changes one in place, so keeping one is a snapshot. `positions` [B] is
    the position that the next token of each row will have, `seen` the largest of them as an int.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def positions(self) -> Tensor: ...
    @property
    def seen(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def to(self: S, *args: Any, **kwargs: Any) -> S: ...
    def select(self: S, rows: Tensor | Sequence[int]) -> S: ...
    def repeat(self: S, times: int) -> S: ...
    def detach(self: S) -> S: ...
    def clone(self: S) -> S: ...


def with_positions(state: S, positions: Tensor, seen: int) -> S:
    """The same past, with the next token of each row at these positions. A state of cosFormer with windows,
    whose keys lie where its positions say, has to be given its own.

    A mechanism counts padding after the real tokens of a row; a model, which knows the lengths, corrects the
    positions here. It also sets the positions of queries that read the state of a source.
    """
    within = getattr(state, "with_positions", None)  # of a state that wraps another
    return (
        dataclasses.replace(state, positions=positions, seen=seen)
        if within is None
        else within(positions, seen)
    )


class Attention(nn.Module, ABC):
    """One mechanism. A subclass gives `traits`, its typed parameters as keyword arguments of
    `__init__`, `attend` and `state_size`, and is registered under a name.

    Layout of the operator: q [B, Tq, H, D], k [B, Tk, Hk, D], v [B, Tk, Hk, Dv], out [B, Tq, H, Dv].
    """

    # Of the class; an object whose parameters change an ability has its own.
    traits: Traits
    state_type: type | None = None
    takes_lengths: bool = False  # whether `attend` has the argument `lengths` itself
    writes_into: bool = False  # whether `attend_token` writes to `into`
    name: ClassVar[str]

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = False,
        key_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        query_offset: int | None = None,
        cu_seqlens: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """[B, Tq, H, Dv] and, with `return_state`, the state after this call's keys.

        The arguments are those of `cosformer_attention`, with the same meaning for every mechanism. `lengths`
        [B] says how many of this call's columns belong to each row: the rest are padding, hidden
        from every query, and the state is that after the last column that is not.
        """
        self._check(q, k, v)
        for asked, trait, what in (
            (
                cu_seqlens is not None and (state is not None or return_state),
                "packed_state",
                "a state together with cu_seqlens",
            ),
            (causal, "causal", "causal=True"),
            (not causal, "bidirectional", "causal=False"),
            (q.shape[1] != k.shape[1], "cross", "queries and keys of different lengths"),
            (query_offset is not None, "cross", "query_offset"),
            (key_mask is not None, "key_mask", "key_mask"),
            (lengths is not None, "key_mask", "lengths"),
            (cu_seqlens is not None, "cu_seqlens", "cu_seqlens"),
            (state is not None or return_state, "recurrent", "state or return_state"),
            (q.shape[2] != k.shape[2], "grouped_heads", f"{k.shape[2]} key heads for {q.shape[2]} heads"),
        ):
            if asked and not getattr(self.traits, trait):
                raise ValueError(
                    f"attention {self.name!r} cannot serve this call: {what} was asked for, but its trait "
                    f"{trait} is False. Its `traits` say what it can do."
                )
        if state is not None and not isinstance(state, self.state_type or ()):
            wanted = "none" if self.state_type is None else self.state_type.__name__
            raise TypeError(
                f"state must be a {wanted} for attention {self.name!r}, but got {type(state).__name__}."
            )
        key_mask = checked_mask(key_mask, k)
        if cu_seqlens is not None:
            check_packing(cu_seqlens, q, k, key_mask, query_offset)
        if state is not None:
            check_rows(state.batch, q, cu_seqlens)
        more: dict[str, Any] = {}
        if lengths is not None:
            if self.takes_lengths:
                more["lengths"] = lengths
            else:
                key_mask = mask_of_lengths(lengths, key_mask, k, cu_seqlens)
        out, after = self.attend(
            q, k, v, causal=causal, key_mask=key_mask, query_offset=query_offset, cu_seqlens=cu_seqlens,
            state=state, return_state=return_state, **more,
        )  # fmt: skip
        if after is None:
            return out
        if lengths is not None and not self.takes_lengths:
            past = 0 if state is None else state.positions
            after = with_positions(after, lengths.to(torch.int64) + past, after.seen)
        return out, after

    def _check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        check_tensors(q, k, v, self.traits.reads)

    @classmethod
    def traits_with(cls, **parameters: Any) -> Traits:
        """The traits with these parameters, which may remove an ability; nothing is built for it."""
        return cls.traits

    @property
    def has_bound(self) -> bool:
        """Whether texts have a greatest length: the horizon, or the length a model was built for."""
        return True

    def reset_parameters(self) -> None:
        """Initialises the mechanism's own parameters, with functions of `torch.nn.init` alone: a model that
        loads a checkpoint makes those skip what was loaded."""

    @abstractmethod
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None,
        query_offset: int | None, cu_seqlens: Tensor | None, state: Any, return_state: bool,
    ) -> tuple[Tensor, State | None]:  # fmt: skip
        """The mechanism itself; called only with what its traits claim."""

    def split(
        self, k: Tensor, v: Tensor, shard: "Shard", *, causal: bool, lengths: Tensor | None
    ) -> Callable[[Tensor], Tensor]:
        """Attention over a sequence that the ranks of a group share: sends what others need of this shard's
        keys and values [B, L, Hk, .], and returns the function from its queries [B, L, H, D] to the output.

        `lengths` int64 [B] says how many columns of the whole sequence belong to each row.
        """
        raise ValueError(
            f"attention {self.name!r} cannot be split over a sequence group: its trait sequence_parallel is "
            "False. Give each process whole sequences, or choose another attention."
        )

    def attend_token(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, weights: StepWeights, seen: int, into: Any = None
    ) -> tuple[Tensor, State]:
        """One token per row after a state: out [B, 1, H, Dv] and the state after the token; causal, every
        token real, without gradients. Nothing is validated: a model has done so once for all its layers.

        The tokens have the positions `weights.positions` [B], of which `seen` is the largest. Where
        `writes_into`, the state is written to the tensors of `into`, which may be those of `state`; else it
        has new tensors. The positions of the returned state are not used.
        """
        return self.attend(  # type: ignore[return-value]
            q,
            k,
            v,
            causal=True,
            key_mask=None,
            query_offset=None,
            cu_seqlens=None,
            state=with_positions(state, weights.positions, seen),
            return_state=True,
        )

    def state_size(
        self, length: int, *, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> int:
        """The number of elements of the state of one row after `length` tokens (0 where there is no
        state)."""
        if self.traits.recurrent:
            raise NotImplementedError(f"attention {self.name!r} is recurrent and must give its state_size.")
        return 0
