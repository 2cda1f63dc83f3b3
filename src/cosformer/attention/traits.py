"""What a mechanism can do, as data: dispatch, tests, tables and benchmarks read it from here."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

Reads = Literal["qkv", "qv", "v"]
Cost = Literal["linear", "log-linear", "length^1.5", "quadratic"]


@dataclass(frozen=True)
class Traits:
    """The abilities of a mechanism. A call that needs one that is False raises.

    Attributes:
        paper: where the mechanism was published.
        cost: how time grows with the length of the sequence.
        causal: a position can be kept from seeing the future.
        bidirectional: every position can see every other.
        cross: queries and keys may have different lengths (and `query_offset` may be given).
        key_mask: single keys can be hidden.
        cu_seqlens: several documents can be packed into one row.
        recurrent: the past can be carried as a state.
        packed_state: a call has a state in and out for each document of a packed row.
        constant_state: the state is as large after a million tokens as after one.
        grouped_heads: a key head may serve several query heads.
        sequence_parallel: one sequence can be split over a process group (`Attention.split`).
        random: it uses random numbers that are not learned.
        reads: which of q, k and v the output depends on; modules project no others.
    """

    paper: str
    cost: Cost
    causal: bool = False
    bidirectional: bool = False
    cross: bool = False
    key_mask: bool = False
    cu_seqlens: bool = False
    recurrent: bool = False
    packed_state: bool = False
    constant_state: bool = False
    grouped_heads: bool = False
    sequence_parallel: bool = False
    random: bool = False
    reads: Reads = "qkv"

    def __post_init__(self) -> None:
        if not (self.causal or self.bidirectional):
            raise ValueError("a mechanism must be causal or bidirectional, or both.")
        if not self.recurrent and (self.packed_state or self.constant_state):
            raise ValueError("packed_state and constant_state are only for mechanisms that are recurrent.")


def common(traits: Sequence[Traits]) -> Traits:
    """The traits of several layers together: what all of them can do, at the cost of the most expensive
    one."""
    first, *others = dict.fromkeys(traits)
    if not others:
        return first
    able = {
        field.name: all(getattr(t, field.name) for t in traits)
        for field in fields(Traits)
        if field.type is bool and field.name != "random"
    }
    return Traits(
        paper="; ".join(dict.fromkeys(t.paper for t in traits)),
        cost=max((t.cost for t in traits), key=get_args(Cost).index),
        random=any(t.random for t in traits),
        reads=max((t.reads for t in traits), key=len),
        **able,
    )
