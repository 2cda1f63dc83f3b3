"""The kernels of one call as methods: their tensors, descriptions, tables and sizes put in place."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.hopper.apply import apply_o
from cosformer.ops.hopper.apply_gradients import apply_dkv, apply_dq
from cosformer.ops.hopper.cutting import (
    CHUNK,
    SUMS,
    is_small,
    multiprocessors,
    of_list,
    to_apply,
    to_quarter,
    to_sum,
    to_walk,
    width_of,
)
from cosformer.ops.hopper.documents import chain, join
from cosformer.ops.hopper.fold import BLOCK, fold
from cosformer.ops.hopper.forward import walk_o
from cosformer.ops.hopper.keys import walk_dkv
from cosformer.ops.hopper.launch import describe, fits
from cosformer.ops.hopper.listing import add_up, list_documents
from cosformer.ops.hopper.queries import walk_dq
from cosformer.ops.hopper.squares import square_gradients, square_o
from cosformer.ops.hopper.states import absorb
from cosformer.ops.hopper.tape import Tape
from cosformer.ops.hopper.whole import whole_o
from cosformer.ops.hopper.whole_gradients import whole_gradients
from cosformer.ops.triton.carried import NOTHING, State
from cosformer.ops.triton.kernels import SCANNED
from cosformer.ops.triton.pieces import Pieces, cut, cut_documents, parts_of
from cosformer.ops.triton.states import scan

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
        self, tape: Tape, tensors: dict[str, Tensor], d: Tensor, key_mask: Tensor | None,
        cu_seqlens: Tensor | None, positions: Tensor | None, offset: int, horizon: float, eps: float,
        causal: bool, joined: bool, listed: Tensor | None = None,
    ):  # fmt: skip
        """`tensors`: q, k, v, o, and for a backward g, dq, dk, dv; `d` [B, H, Tq]. `joined`: documents are
        one list of tiles, otherwise each is a row of its own; `listed`: that list, if it is there."""
        self.tape = tape
        self.tensors = {n: x if fits(x) else _copy(x) for n, x in tensors.items()}
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        self.mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
        self.mask_stride = 0 if self.mask is None else self.mask.stride(0)
        self.cu, self.positions = cu_seqlens, positions
        self.documents = 0 if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.device, self.heads, self.key_heads = q.device, q.shape[2], k.shape[2]
        self.group = self.heads // self.key_heads
        self.dims = (k.shape[3], v.shape[3])
        self.width = width_of(*self.dims)
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
            self.pieces = of_list(self.tq, self._most_pieces)
            if listed is None:
                grouped = not causal and self.group == 1
                self.listed, self.groups = list_documents(tape, cu_seqlens, self.tq, self.pieces, grouped)
        self.tiles = None if self.listed is None else self.listed.view(torch.int32)

    def walk_o(self, pieces: Pieces, begin: State | None, after: State | None, parts: int = 0) -> None:
        """`parts`: `begin` has what so many parts of each piece add, and those before a piece are summed up
        by it."""
        self.tape.start(
            walk_o, self.heads * pieces.count,
            (
                *self._tiles("q", "k", "v", "o"), self.tensors["o"], self.d, self.mask, self.positions,
                *(begin or NOTHING)[:2], *(after or NOTHING)[:2], *pieces.tables, self.tiles, self.origin_q,
                self.tq, pieces.each, pieces.size, self.theta, self.eps, self.tq, self.mask_stride,
                *(begin or NOTHING)[2:], *(after or NOTHING)[2:], parts,
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.masked,
                self.carried, begin is not None, parts > 0, after is not None, *self._sizes("walk_o"),
            ),
        )  # fmt: skip

    def walk_dq(self, pieces: Pieces, begin: State | None) -> None:
        """Also makes r and e."""
        self.r, self.e = self.tape.empty(tuple(self.d.shape)), self.tape.empty(tuple(self.d.shape))
        self.tape.start(
            walk_dq, self.heads * pieces.count,
            (
                *self._tiles("q", "k", "v", "o", "g", "dq"), self.tensors["dq"], self.d, self.r, self.e,
                self.mask, self.positions, *(begin or NOTHING)[:2], *pieces.tables, self.tiles, self.origin_q,
                self.tq, pieces.each, pieces.size, self.theta, self.eps, self.tq, self.mask_stride,
                *(begin or NOTHING)[2:],
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.masked,
                self.carried, begin is not None, *self._sizes("walk_dq"),
            ),
        )  # fmt: skip

    def walk_dkv(self, pieces: Pieces, begin: State | None, after: State | None) -> None:
        """The states are those of query heads."""
        self.tape.start(
            walk_dkv, self.heads * pieces.count,
            (
                *self._tiles("q", "k", "v", "g", "dk", "dv"), self.tensors["dk"], self.tensors["dv"], self.r,
                self.e, self.mask, self.positions, *(begin or NOTHING)[:2], *(after or NOTHING)[:2],
                *pieces.tables, self.tiles, self.origin_q, self.tq, pieces.each, pieces.size, self.theta,
                self.tq, self.mask_stride, *(begin or NOTHING)[2:], *(after or NOTHING)[2:],
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.masked,
                self.carried, begin is not None, after is not None, *self._sizes("walk_dkv"),
            ),
        )  # fmt: skip

    def absorb(self, what: str, pieces: Pieces, unused: int = 0) -> Tensor:
        """[slots, heads, 2 D (Dv + 1)]: S, then z, of each piece; of key heads ("o") or query heads ("dv").
        So many `unused` pieces of each row, its last ("o") or its first, are left out."""
        heads, origin, length = (
            (self.key_heads, self.origin_k, self.tk) if what == "o" else (self.heads, self.origin_q, self.tq)
        )
        states = self._states(pieces.slots, heads)
        self.tape.start(
            absorb, heads * (pieces.count - unused * self.rows),
            (
                *(self._tiles("k", "v") if what == "o" else self._tiles("q", "g")), self.r, self.e, self.mask,
                self.positions, states, *pieces.tables, self.tiles, origin, length, pieces.each, pieces.size,
                unused, unused if what == "dv" else 0, self.theta, length, self.mask_stride,
            ),
            (
                heads, *self.dims, self.width, what, self.packed, self.joined, self.causal, self.masked,
                self.carried, *self._sizes("absorb"),
            ),
        )  # fmt: skip
        return states

    def apply_o(self, pieces: Pieces, state: State, parts: int = 0) -> None:
        """`parts`: of so many states a row the sum is applied."""
        self.tape.start(
            apply_o, self.heads * pieces.count,
            (
                *self._tiles("q", "o"), self.tensors["o"], self.d, self.positions, *state[:2], *pieces.tables,
                self.tiles, self.origin_q, self.tq, pieces.each, pieces.size, self.theta, self.eps, self.tq,
                *state[2:], parts,
            ),
            (
                self.heads, self.group, *self.dims, self.width, self.packed, self.joined, self.carried,
                parts > 0, *self._sizes("apply_o"),
            ),
        )  # fmt: skip

    def apply_dq(self, pieces: Pieces, state: State) -> Tensor:
        """Also gives R of each piece, [slots, key heads, 2 D (Dv + 1)]."""
        states = self._states(pieces.slots, self.group * self.key_heads)
        self.tape.start(
            apply_dq, self.heads * pieces.count,
            (
                *self._tiles("q", "o", "g", "dq"), self.tensors["dq"], self.d, self.positions, *state[:2],
                states, *pieces.tables, self.tiles, self.origin_q, self.tq, pieces.each, pieces.size,
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

    def apply_dkv(self, pieces: Pieces, state: State) -> None:
        self.tape.start(
            apply_dkv, self.key_heads * pieces.count,
            (
                *self._tiles("k", "v", "dk", "dv"), self.tensors["dk"], self.tensors["dv"], self.mask,
                self.positions, *state[:2], *pieces.tables, self.tiles, self.origin_k, self.tk, pieces.each,
                pieces.size, self.theta, self.mask_stride, *state[2:],
            ),
            (
                self.key_heads, *self.dims, self.width, self.packed, self.joined, self.masked, self.carried,
                *self._sizes("apply_dkv"),
            ),
        )  # fmt: skip

    def whole_o(self) -> None:
        """Of documents that are not cut."""
        self.tape.start(
            whole_o, self.key_heads * self.pieces,
            (
                *self._tiles("q", "k", "v", "o"), self.tensors["o"], self.d, self.tiles,
                self.pieces, self.theta, self.eps, self.tq,
            ),
            (self.heads, self.group, self.dims[1], self.width, *self._sizes("whole_o")),
        )  # fmt: skip

    def whole_gradients(self) -> None:
        self.tape.start(
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
            self.tape.start(
                square_o, programs,
                (
                    *self._tiles("q", "k", "v"), self.tensors["o"], self.d, *groups, self.documents, again,
                    self.theta, self.eps, self.tq,
                ),
                (self.heads, self.dims[1], self.width, *self._sizes("square_o")),
            )  # fmt: skip

    def square_gradients(self, groups: tuple[Tensor, Tensor]) -> None:
        for again, programs in enumerate(self._in_rounds(2)):
            self.tape.start(
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
        at_a_time = blocks * 64 // self.width * multiprocessors(self.device)
        return self.heads * max(1, at_a_time // self.heads), self.heads

    def fold(self, parts: Tensor, shape: tuple[int, ...], width: int) -> Tensor:
        """Sums over groups of `width` numbers."""
        sums = self.tape.empty(shape, parts.dtype)
        self.tape.launch(
            fold, -(-sums.numel() // BLOCK), parts, sums, sums.numel(), GROUP=self.group, WIDTH=width,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return sums

    def running(
        self, what: str, pieces: Pieces, came: State | None, *, total: bool
    ) -> tuple[State, State | None]:
        """What each piece starts from and, if asked, what is there after the last."""
        backwards = what == "dv"
        if self.joined:
            states = self.absorb(what, pieces)
            self._add_up(chain, states, BACKWARDS=backwards)
            return State.within(states, self.dims[0]), None
        parts = self.parts_of(what, pieces)
        small = pieces.divided(parts)
        states = self.absorb(what, small, 0 if total or self.packed else parts)
        begin = states if parts == 1 else self._states(pieces.slots, states.shape[1])
        after = State.within(self._states(self.rows, states.shape[1]), self.dims[0]) if total else None
        self._scan(states, small, came, after, begin, backwards=backwards, parts=parts)
        return State.within(begin, self.dims[0]), after

    def parts_of(self, what: str, pieces: Pieces) -> int:
        """Of a walk's pieces, so that enough blocks sum up states."""
        heads = self.key_heads if what == "o" else self.heads
        return parts_of(pieces, heads, SUMS[self.width] * multiprocessors(self.device))

    def total(self, states: Tensor, pieces: Pieces, came: State | None) -> State:
        """The sum of all pieces of each row, and of what came in."""
        if self.joined:
            sums = self._states(self.pieces, states.shape[1])
            self._add_up(join, states, sums)
            return State.within(sums, self.dims[0])
        if pieces.single and came is None:
            return State.within(states, self.dims[0])
        after = State.within(self._states(self.rows, states.shape[1]), self.dims[0])
        self._scan(states, pieces, came, after)
        return after

    def pieces_to_walk(self, every: bool) -> Pieces:
        return self._cut(to_walk, self.heads, self.tq, every)

    def pieces_to_sum(self, heads: int, length: int) -> Pieces:
        return self._cut(to_sum, heads, length)

    def pieces_to_apply(self, heads: int, length: int) -> Pieces:
        return self._cut(to_apply, heads, length)

    def quarters(self, length: int) -> Pieces:
        return self._cut(to_quarter, 1, length)

    @property
    def is_small(self) -> bool:
        return is_small(self.rows * self.heads, max(self.tq, self.tk), self.device, self.width)

    def _cut(self, rule: Callable[..., int], heads: int, length: int, every: bool = True) -> Pieces:
        if self.joined:  # a piece has two parts of documents that are cut, and a walk begins or ends in one
            count = self.pieces if self.causal else 2 * self.pieces
            return Pieces(0, self.pieces, count, count)
        rows = self.rows if self.cu is None else 1
        size = rule(rows * heads, length, self.device, self.width)
        return cut(rows, length, size) if self.cu is None else cut_documents(self.cu, length, size, every)

    @property
    def _most_pieces(self) -> int:
        """Of a list of tiles, so that all blocks that go along it are at work at a time."""
        blocks = 1 if self.width == 128 else 3 if not self.causal and "g" not in self.tensors else 2
        return max(
            1, blocks * multiprocessors(self.device) // (self.heads if self.causal else self.key_heads)
        )

    def _add_up(self, kernel: Any, *states: Tensor, **options: Any) -> None:
        add_up(self.tape, kernel, states, self.tiles, self.pieces, self._most_pieces, **options)

    def _scan(
        self, states: Tensor, pieces: Pieces, came: State | None, after: State | None,
        begin: Tensor | None = None, *, backwards: bool = False, parts: int = 1,
    ) -> None:  # fmt: skip
        heads = states.shape[1]
        self.tape.launch(
            scan, -(-states.shape[-1] // SCANNED) * heads * self.rows, states, begin, *(came or NOTHING)[:2],
            *(after or NOTHING)[:2], pieces.first, pieces.slot, pieces.each, parts,
            *(came or NOTHING)[2:], *(after or NOTHING)[2:], HEADS=heads, D=self.dims[0], DV=self.dims[1],
            PACKED=self.packed, STARTED=came is not None, STORED=after is not None, PREFIX=begin is not None,
            BACKWARDS=backwards, BLOCK=SCANNED, num_warps=2,
        )  # fmt: skip

    def new_state(self, heads: int) -> State:
        """Of all rows, S and z apart."""
        shape = (self.rows, heads, 2, *self.dims)
        s, z = self.tape.empty(shape), self.tape.empty(shape[:-1])
        return State(s, z, s.stride(1), z.stride(1))

    def _states(self, count: int, heads: int) -> Tensor:
        d, dv = self.dims
        return self.tape.empty((count, heads, 2 * d * (dv + 1)))

    def _tiles(self, *names: str) -> list[Any]:
        return [describe(self.tensors[n], CHUNK, self.width) for n in names]

    def _sizes(self, kernel: str) -> tuple[int, int]:
        return SIZES[kernel][self.width]


def _copy(x: Tensor) -> Tensor:
    """Laid out anew, even where only the address did not fit."""
    return x.clone(memory_format=torch.contiguous_format)
