"""The kernels of one call as methods: their tensors, descriptions, tables and sizes put in place."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.gpu.carried_state import NO_STATE, State
from cosformer.ops.gpu.partition import Splits, sm_count, split_documents, split_rows, state_subdivision
from cosformer.ops.gpu.state_scan import launch_state_scan
from cosformer.ops.hopper.apply import apply_o
from cosformer.ops.hopper.apply_gradients import apply_dkv, apply_dq
from cosformer.ops.hopper.documents import chain, join
from cosformer.ops.hopper.fold import BLOCK, fold
from cosformer.ops.hopper.forward import walk_o
from cosformer.ops.hopper.keys import walk_dkv
from cosformer.ops.hopper.launch_plan import HopperLaunchPlan, tma_can_read, tma_descriptor
from cosformer.ops.hopper.listing import add_up, list_documents
from cosformer.ops.hopper.partition import (
    CHUNK,
    STATE_CTAS,
    apply_split_size,
    chunk_split_size,
    head_width,
    inline_split_size,
    state_split_size,
    sums_states_inline,
    tile_list_splits,
)
from cosformer.ops.hopper.queries import walk_dq
from cosformer.ops.hopper.squares import square_gradients, square_o
from cosformer.ops.hopper.states import absorb
from cosformer.ops.hopper.whole import whole_o
from cosformer.ops.hopper.whole_gradients import whole_gradients

# Stages of the copies, and warps, by kernel and width: what was fastest of what shared memory holds.
SIZES = {
    "walk_o": {64: (2, 4), 128: (2, 8)},
    "walk_dq": {64: (2, 4), 128: (1, 8)},
    "walk_dkv": {64: (2, 4), 128: (2, 8)},
    "absorb": {64: (2, 4), 128: (4, 8)},
    "apply_o": {64: (2, 4), 128: (2, 4)},
    "apply_dq": {64: (2, 4), 128: (2, 8)},
    "apply_dkv": {64: (2, 4), 128: (2, 8)},
    "whole_o": {64: (2, 4), 128: (2, 8)},
    "whole_gradients": {64: (3, 4), 128: (2, 8)},
    "square_o": {64: (2, 4), 128: (2, 4)},
    "square_gradients": {64: (2, 4), 128: (2, 8)},
}


class Call:
    def __init__(
        self, plan: HopperLaunchPlan, tensors: dict[str, Tensor], d: Tensor, key_mask: Tensor | None,
        cu_seqlens: Tensor | None, positions: Tensor | None, offset: int, horizon: float, eps: float,
        causal: bool, joined: bool, listed: Tensor | None = None,
    ):  # fmt: skip
        """`tensors`: q, k, v, o, and for a backward g, dq, dk, dv; `d` [B, H, Tq]. `joined`: documents are
        one list of tiles, otherwise each is a row of its own; `listed`: that list, if it is there."""
        self.plan = plan
        self.tensors = {n: x if tma_can_read(x) else _copy(x) for n, x in tensors.items()}
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        self.mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
        self.mask_stride = 0 if self.mask is None else self.mask.stride(0)
        self.cu, self.positions = cu_seqlens, positions
        self.documents = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.device, self.heads, self.key_heads = q.device, q.shape[2], k.shape[2]
        self.group = self.heads // self.key_heads
        self.dims = (k.shape[3], v.shape[3])
        self.width = head_width(*self.dims)
        self.rows = q.shape[0] if cu_seqlens is None or joined else cu_seqlens.shape[0] - 1
        self.tq, self.tk = q.shape[1], k.shape[1]
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2].
        self.origin_k = max(0, -offset) if positions is None else 0
        self.origin_q = self.origin_k + offset
        self.theta, self.eps = math.pi / 2 / horizon, eps
        self.d = d
        self.r = self.e = d
        self.packed, self.masked, self.carried = (
            cu_seqlens is not None, key_mask is not None, positions is not None,
        )  # fmt: skip
        self.causal, self.joined = causal, joined
        self.pieces, self.listed = 0, listed
        self.groups: tuple[Tensor, Tensor] | None = None  # of short documents; each token's bounds
        if cu_seqlens is not None and joined:
            self.pieces = tile_list_splits(self.tq, self._most_pieces)
            if listed is None:
                grouped = not causal and self.group == 1
                self.listed, self.groups = list_documents(plan, cu_seqlens, self.tq, self.pieces, grouped)
        self.tiles = None if self.listed is None else self.listed.view(torch.int32)

    def walk_o(self, pieces: Splits, begin: State | None, after: State | None, parts: int = 0) -> None:
        """`parts`: `begin` has what so many parts of each piece add, and those before a piece are summed up
        by it."""
        self.plan.launch_tma(
            walk_o, self.heads * pieces.count,
            (
                *self._tiles("q", "k", "v", "o"), self.tensors["o"], self.d, self.mask, self.positions,
                *(begin or NO_STATE)[:2], *(after or NO_STATE)[:2], *pieces.tables, self.tiles, self.origin_q,
                self.tq, pieces.per_row, pieces.size, self.theta, self.eps, self.tq, self.mask_stride,
                *(begin or NO_STATE)[2:], *(after or NO_STATE)[2:], parts,
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.masked,
                self.carried, begin is not None, parts > 0, after is not None, *self._sizes("walk_o"),
            ),
        )  # fmt: skip

    def walk_dq(self, pieces: Splits, begin: State | None) -> None:
        """Also makes r and e."""
        self.r, self.e = self.plan.empty(tuple(self.d.shape)), self.plan.empty(tuple(self.d.shape))
        self.plan.launch_tma(
            walk_dq, self.heads * pieces.count,
            (
                *self._tiles("q", "k", "v", "o", "g", "dq"), self.tensors["dq"], self.d, self.r, self.e,
                self.mask, self.positions, *(begin or NO_STATE)[:2], *pieces.tables, self.tiles,
                self.origin_q,
                self.tq, pieces.per_row, pieces.size, self.theta, self.eps, self.tq, self.mask_stride,
                *(begin or NO_STATE)[2:],
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.masked,
                self.carried, begin is not None, *self._sizes("walk_dq"),
            ),
        )  # fmt: skip

    def walk_dkv(self, pieces: Splits, begin: State | None, after: State | None) -> None:
        """The states are those of query heads."""
        self.plan.launch_tma(
            walk_dkv, self.heads * pieces.count,
            (
                *self._tiles("q", "k", "v", "g", "dk", "dv"), self.tensors["dk"], self.tensors["dv"], self.r,
                self.e, self.mask, self.positions, *(begin or NO_STATE)[:2], *(after or NO_STATE)[:2],
                *pieces.tables, self.tiles, self.origin_q, self.tq, pieces.per_row, pieces.size, self.theta,
                self.tq, self.mask_stride, *(begin or NO_STATE)[2:], *(after or NO_STATE)[2:],
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.masked,
                self.carried, begin is not None, after is not None, *self._sizes("walk_dkv"),
            ),
        )  # fmt: skip

    def absorb(self, what: str, pieces: Splits, unused: int = 0) -> Tensor:
        """[slots, heads, 2 D (Dv + 1)]: S, then z, of each piece; of key heads ("o") or query heads ("dv").
        So many `unused` pieces of each row, its last ("o") or its first, are left out."""
        heads, origin, length = (
            (self.key_heads, self.origin_k, self.tk) if what == "o" else (self.heads, self.origin_q, self.tq)
        )
        states = self._states(pieces.slots, heads)
        self.plan.launch_tma(
            absorb, heads * (pieces.count - unused * self.rows),
            (
                *(self._tiles("k", "v") if what == "o" else self._tiles("q", "g")), self.r, self.e, self.mask,
                self.positions, states, *pieces.tables, self.tiles, origin, length, pieces.per_row,
                pieces.size,
                unused, unused if what == "dv" else 0, self.theta, length, self.mask_stride,
            ),
            (
                heads, *self.dims, self.width, what, self.packed, self.joined, self.causal, self.masked,
                self.carried, *self._sizes("absorb"),
            ),
        )  # fmt: skip
        return states

    def apply_o(self, pieces: Splits, state: State, parts: int = 0) -> None:
        """`parts`: of so many states a row the sum is applied."""
        self.plan.launch_tma(
            apply_o, self.heads * pieces.count,
            (
                *self._tiles("q", "o"), self.tensors["o"], self.d, self.positions, *state[:2], *pieces.tables,
                self.tiles, self.origin_q, self.tq, pieces.per_row, pieces.size, self.theta, self.eps,
                self.tq,
                *state[2:], parts,
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.carried,
                parts > 0, *self._sizes("apply_o"),
            ),
        )  # fmt: skip

    def apply_dq(self, pieces: Splits, state: State) -> Tensor:
        """Also gives R of each piece, [slots, key heads, 2 D (Dv + 1)]."""
        states = self._states(pieces.slots, self.group * self.key_heads)
        self.plan.launch_tma(
            apply_dq, self.heads * pieces.count,
            (
                *self._tiles("q", "o", "g", "dq"), self.tensors["dq"], self.d, self.positions, *state[:2],
                states, *pieces.tables, self.tiles, self.origin_q, self.tq, pieces.per_row, pieces.size,
                self.theta, self.eps, self.tq, *state[2:],
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.carried,
                *self._sizes("apply_dq"),
            ),
        )  # fmt: skip
        if self.group == 1:
            return states
        shape = (pieces.slots, self.key_heads, states.shape[2])
        return self.fold(states, shape, self.key_heads * states.shape[2])

    def apply_dkv(self, pieces: Splits, state: State) -> None:
        self.plan.launch_tma(
            apply_dkv, self.key_heads * pieces.count,
            (
                *self._tiles("k", "v", "dk", "dv"), self.tensors["dk"], self.tensors["dv"], self.mask,
                self.positions, *state[:2], *pieces.tables, self.tiles, self.origin_k, self.tk,
                pieces.per_row,
                pieces.size, self.theta, self.mask_stride, *state[2:],
            ),
            (
                self.key_heads, *self.dims, self.width, self.packed, self.joined, self.masked, self.carried,
                *self._sizes("apply_dkv"),
            ),
        )  # fmt: skip

    def whole_o(self) -> None:
        """Of documents that are not cut."""
        self.plan.launch_tma(
            whole_o, self.key_heads * self.pieces,
            (
                *self._tiles("q", "k", "v", "o"), self.tensors["o"], self.d, self.tiles,
                self.pieces, self.theta, self.eps, self.tq,
            ),
            (self.heads, self.group, self.dims[1], self.width, *self._sizes("whole_o")),
        )  # fmt: skip

    def whole_gradients(self) -> None:
        self.plan.launch_tma(
            whole_gradients, self.key_heads * self.pieces,
            (
                *self._tiles("q", "k", "v", "o", "g", "dq", "dk", "dv"), self.tensors["dq"],
                self.tensors["dk"], self.tensors["dv"], self.d, self.tiles, self.pieces, self.theta, self.eps,
                self.tq,
            ),
            (self.heads, self.group, *self.dims, self.width, *self._sizes("whole_gradients")),
        )  # fmt: skip

    def square_o(self, groups: tuple[Tensor, Tensor]) -> None:
        """Of documents of at most one tile: in groups, and again alone if one of them held NaN."""
        for again, programs in enumerate(self._in_rounds(4)):
            self.plan.launch_tma(
                square_o, programs,
                (
                    *self._tiles("q", "k", "v"), self.tensors["o"], self.d, *groups, self.documents, again,
                    self.theta, self.eps, self.tq,
                ),
                (self.heads, self.dims[1], self.width, *self._sizes("square_o")),
            )  # fmt: skip

    def square_gradients(self, groups: tuple[Tensor, Tensor]) -> None:
        for again, programs in enumerate(self._in_rounds(2)):
            self.plan.launch_tma(
                square_gradients, programs,
                (
                    *self._tiles("q", "k", "v", "o", "g"), self.tensors["dq"], self.tensors["dk"],
                    self.tensors["dv"], self.d, *groups, self.documents, again, self.theta, self.eps, self.tq,
                ),
                (self.heads, *self.dims, self.width, *self._sizes("square_gradients")),
            )  # fmt: skip

    def _in_rounds(self, blocks: int) -> tuple[int, int]:
        """As many blocks as are at work at a time, so many a multiprocessor (half of it where W = 128), each
        for one head; and a few, for what is hardly ever to be done."""
        at_a_time = blocks * 64 // self.width * sm_count(self.device)
        return self.heads * max(1, at_a_time // self.heads), self.heads

    def fold(self, parts: Tensor, shape: tuple[int, ...], width: int) -> Tensor:
        """Sums over groups of `width` numbers."""
        sums = self.plan.empty(shape, parts.dtype)
        self.plan.launch(
            fold, -(-sums.numel() // BLOCK), parts, sums, sums.numel(), GROUP=self.group, WIDTH=width,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return sums

    def running(
        self, what: str, pieces: Splits, came: State | None, *, total: bool
    ) -> tuple[State, State | None]:
        """What each piece starts from and, if asked, what is there after the last."""
        backwards = what == "dv"
        if self.joined:
            states = self.absorb(what, pieces)
            self._add_up(chain, states, BACKWARDS=backwards)
            return State.from_packed(states, self.dims[0]), None
        parts = self.parts_of(what, pieces)
        small = pieces.subdivided(parts)
        states = self.absorb(what, small, 0 if total or self.packed else parts)
        begin = states if parts == 1 else self._states(pieces.slots, states.shape[1])
        after = State.from_packed(self._states(self.rows, states.shape[1]), self.dims[0]) if total else None
        self._scan(states, small, came, after, begin, backwards=backwards, parts=parts)
        return State.from_packed(begin, self.dims[0]), after

    def parts_of(self, what: str, pieces: Splits) -> int:
        """Of a walk's pieces, so that enough blocks sum up states."""
        heads = self.key_heads if what == "o" else self.heads
        return state_subdivision(pieces, heads, STATE_CTAS[self.width] * sm_count(self.device))

    def total(self, states: Tensor, pieces: Splits, came: State | None) -> State:
        """The sum of all pieces of each row, and of what came in."""
        if self.joined:
            sums = self._states(self.pieces, states.shape[1])
            self._add_up(join, states, sums)
            return State.from_packed(sums, self.dims[0])
        if pieces.one_per_row and came is None:
            return State.from_packed(states, self.dims[0])
        after = State.from_packed(self._states(self.rows, states.shape[1]), self.dims[0])
        self._scan(states, pieces, came, after)
        return after

    def pieces_to_walk(self, every: bool) -> Splits:
        return self._cut(chunk_split_size, self.heads, self.tq, every)

    def pieces_to_sum(self, heads: int, length: int) -> Splits:
        return self._cut(state_split_size, heads, length)

    def pieces_to_apply(self, heads: int, length: int) -> Splits:
        return self._cut(apply_split_size, heads, length)

    def quarters(self, length: int) -> Splits:
        return self._cut(inline_split_size, 1, length)

    @property
    def is_small(self) -> bool:
        return sums_states_inline(self.rows * self.heads, max(self.tq, self.tk), self.device, self.width)

    def _cut(self, rule: Callable[..., int], heads: int, length: int, every: bool = True) -> Splits:
        if self.joined:  # a piece has two parts of documents that are cut, and a walk begins or ends in one
            count = self.pieces if self.causal else 2 * self.pieces
            return Splits(0, self.pieces, count, count)
        rows = self.rows if self.cu is None else 1
        size = rule(rows * heads, length, self.device, self.width)
        return (
            split_rows(rows, length, size)
            if self.cu is None
            else split_documents(self.cu, length, size, every)
        )

    @property
    def _most_pieces(self) -> int:
        """Of a list of tiles, so that all blocks that go along it are at work at a time."""
        blocks = 1 if self.width == 128 else 3 if not self.causal and "g" not in self.tensors else 2
        return max(1, blocks * sm_count(self.device) // (self.heads if self.causal else self.key_heads))

    def _add_up(self, kernel: Any, *states: Tensor, **options: Any) -> None:
        add_up(self.plan, kernel, states, self.tiles, self.pieces, self._most_pieces, **options)

    def _scan(
        self, states: Tensor, pieces: Splits, came: State | None, after: State | None,
        begin: Tensor | None = None, *, backwards: bool = False, parts: int = 1,
    ) -> None:  # fmt: skip
        launch_state_scan(
            self.plan, states, pieces, came, after, self.rows, self.dims, prefixes=begin, reverse=backwards,
            subdivision=parts,
        )  # fmt: skip

    def new_state(self, heads: int) -> State:
        """Of all rows, S and z apart."""
        shape = (self.rows, heads, 2, *self.dims)
        s, z = self.plan.empty(shape), self.plan.empty(shape[:-1])
        return State(s, z, s.stride(1), z.stride(1))

    def _states(self, count: int, heads: int) -> Tensor:
        d, dv = self.dims
        return self.plan.empty((count, heads, 2 * d * (dv + 1)))

    def _tiles(self, *names: str) -> list[Any]:
        return [tma_descriptor(self.tensors[n], CHUNK, self.width) for n in names]

    def _sizes(self, kernel: str) -> tuple[int, int]:
        return SIZES[kernel][self.width]


def _copy(x: Tensor) -> Tensor:
    """Laid out anew, even where only the address did not fit."""
    return x.clone(memory_format=torch.contiguous_format)
