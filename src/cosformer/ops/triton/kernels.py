"""The kernels of one call as methods: their tensors, strides, tables and block sizes put in place."""

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.triton.apply import apply
from cosformer.ops.triton.carried import NOTHING, State
from cosformer.ops.triton.configs import Blocks, arithmetic, blocks, is_roomy, power_of_two
from cosformer.ops.triton.decode import step
from cosformer.ops.triton.denominators import denominators
from cosformer.ops.triton.padding import laid_out
from cosformer.ops.triton.pieces import (
    ROWS,
    SUMS,
    WALKS,
    Pieces,
    cut,
    cut_documents,
    multiprocessors,
    parts_of,
    size_of_pieces,
)
from cosformer.ops.triton.states import absorb, scan
from cosformer.ops.triton.tape import Tape
from cosformer.ops.triton.walk import walk
from cosformer.ops.triton.weigh import weigh

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ROOM_FOR_ONES = 64  # features: a walk with more of them leaves the denominators to a kernel of their own
SCANNED = 256  # numbers of a state a program of the scan takes


class Roles(NamedTuple):
    """Which tensors are a, b, c, y and x of a sum (the table in rows.py)."""

    a: str
    b: str
    c: str
    y: str
    x: str | None


ROLES = {
    "o": Roles("q", "k", "v", "out", None),
    "dq": Roles("g", "v", "k", "dq", "q"),
    "dk": Roles("v", "g", "q", "dk", "k"),
    "dv": Roles("k", "q", "g", "dv", None),
}
ON_Q = ("o", "dq")  # y lies along the queries
TURNED = ("dq", "dk")  # the state is used the other way round


class Kernels:
    def __init__(
        self, tape: Tape, tensors: dict[str, Tensor], d: Tensor, key_mask: Tensor | None,
        cu_seqlens: Tensor | None, positions: Tensor | None, offset: int, horizon: float, eps: float,
    ):  # fmt: skip
        """`tensors` by the names that ROLES uses; `d` [B, H, Tq]."""
        self.tape = tape
        self.tensors = {n: laid_out(x) for n, x in tensors.items()}
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        self.mask = None
        if key_mask is not None:
            self.mask = key_mask.contiguous().view(torch.uint8)
        self.mask_stride = 0 if self.mask is None else self.mask.stride(0)
        self.cu, self.positions = cu_seqlens, positions
        self.device, self.heads, self.key_heads = q.device, q.shape[2], k.shape[2]
        self.dims = (k.shape[3], v.shape[3])
        self.rows = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2].
        self.origin_k = max(0, -offset) if positions is None else 0
        self.origin_q = self.origin_k + offset
        self.horizon, self.eps = float(horizon), eps
        self.d = d
        self.r: Tensor = d
        self.e: Tensor = d
        if "g" in tensors:
            self.r, self.e = tape.empty(tuple(d.shape)), tape.empty(tuple(d.shape))
        self.arithmetic, self.roomy = arithmetic(q.dtype, INTERPRETED), is_roomy(q.device)
        self.common: dict[str, Any] = {
            "D": self.dims[0], "DV": self.dims[1], "PACKED": cu_seqlens is not None,
            "MASKED": key_mask is not None, "CARRIED": positions is not None,
            "DOT": self.arithmetic.dot, "PRECISION": self.arithmetic.precision,
        }  # fmt: skip

    def new_state(self) -> State:
        shape = (self.rows, self.key_heads, 2, *self.dims)
        s, z = (self.tape.empty(n) for n in (shape, shape[:-1]))
        return State(s, z, s.stride(1), z.stride(1))

    def new_states(self, count: int) -> Tensor:
        d, dv = self.dims
        return self.tape.empty((count, self.key_heads, 2 * d * (dv + 1)))

    def pieces(
        self, t: slice, programs: int | None = None, wanted: int = WALKS, every: bool = True
    ) -> Pieces:
        """`programs`: how many work on a piece; as many as there are heads if not said."""
        rows, length = self.rows if self.cu is None else 1, t.stop - t.start
        size = size_of_pieces(rows, length, programs or self.heads, wanted, self.device)
        return cut(rows, length, size) if self.cu is None else cut_documents(self.cu, length, size, every)

    def total(self, what: str, t: slice, came: State | None) -> State | None:
        """The state after these rows, in whatever order they are taken."""
        if t.stop <= t.start:
            return came
        pieces = self.pieces(t, self.key_heads)
        many = what == "o" and self.key_heads * pieces.count >= ROWS * multiprocessors(self.device)
        blocks = self._blocks("absorb", "many" if many else what, self.dims[0])
        states = self._absorb(what, t, pieces, blocks)
        if pieces.single and came is None:
            return self.within(states)
        after = self.new_state()
        self._scan(states, pieces, came, after)
        return after

    def starts(
        self, what: str, t: slice, came: State | None, pieces: Pieces, total: bool
    ) -> tuple[State, State | None]:
        """What each piece of a walk starts from and, if asked, what is there after the last."""
        unused = "none" if total else "first" if what == "dv" else "last"
        parts = parts_of(pieces, self.key_heads, SUMS * multiprocessors(self.device))
        small = pieces.divided(parts)
        states = self._absorb(
            what, t, small, self._blocks("absorb", what, self.dims[0]), unused, 0 if total else parts
        )
        begin = states if parts == 1 else self.new_states(pieces.slots)
        after = self.new_state() if total else None
        self._scan(states, small, came, after, begin, what == "dv", parts)
        return self.within(begin), after

    def walk(
        self, what: str, queries: slice, keys: slice, pieces: Pieces, start: State | None, after: State | None
    ) -> None:
        role, (features, columns) = ROLES[what], self._orientation(what)
        heads, of_a, of_b = (self.heads, queries, keys) if what in ON_Q else (self.key_heads, keys, queries)
        a, y, x = (self._of(n, of_a) for n in (role.a, role.y, role.x))
        b, c = self._of(role.b, of_b), self._of(role.c, of_b)
        options = self._blocks("walk", what, features).options(features, columns)
        fused = power_of_two(self.dims[0]) <= ROOM_FOR_ONES
        if what == "o" and not fused:
            self._denominators(queries, keys, pieces, start, after)
        self.tape.launch(
            walk, -(-columns // options["BN"]) * heads * pieces.count,
            a, b, c, y, x, *self._vectors(queries), self._masked(keys), self.positions,
            *(start or NOTHING)[:2], *(after or NOTHING)[:2], *pieces.tables,
            self._origin(what in ON_Q) + of_a.start, of_a.stop - of_a.start, pieces.each, pieces.size,
            self.horizon, self.eps, *_strides(a, b, c, y, x), *self.d.stride()[:2], self.mask_stride,
            *(start or NOTHING)[2:], *(after or NOTHING)[2:], HEADS=heads,
            GROUP=self.heads // self.key_heads, WHAT=what, STARTED=start is not None,
            STORED=after is not None, ONES=fused and what == "o", **options, **self.common,
        )  # fmt: skip

    def _denominators(
        self, queries: slice, keys: slice, pieces: Pieces, start: State | None, after: State | None
    ) -> None:
        q, k, d = self._of("q", queries), self._of("k", keys), self.dims[0]
        options = self._blocks("denominators", "o", d).options(d, d)
        common = {n: x for n, x in self.common.items() if n != "DV"}
        options = {n: x for n, x in options.items() if n != "BN"}
        self.tape.launch(
            denominators, self.heads * pieces.count,
            q, k, self._vectors(queries)[0], self._masked(keys), self.positions, (start or NOTHING)[1],
            (after or NOTHING)[1], *pieces.tables, self.origin_q + queries.start,
            queries.stop - queries.start, pieces.each, pieces.size, self.horizon, *_strides(q, k),
            *self.d.stride()[:2], self.mask_stride, (start or NOTHING)[3], (after or NOTHING)[3],
            HEADS=self.heads, GROUP=self.heads // self.key_heads, STARTED=start is not None,
            STORED=after is not None, **options, **common,
        )  # fmt: skip

    def weigh(self) -> None:
        """r and e, which the gradients need."""
        g, o = self.tensors["g"], self.tensors["out"]
        batch, length, heads, width = o.shape
        if batch * length == 0:
            return
        rows = max(16, 2**12 // power_of_two(width))
        self.tape.launch(
            weigh, heads * batch * -(-length // rows),
            g, o, self.d, self.r, self.e, length, self.eps, *_strides(g, o), *self.d.stride()[:2],
            HEADS=heads, DV=width, ROWS=rows, BF=power_of_two(width), num_warps=4,
        )  # fmt: skip

    def weighs(self) -> bool:
        """Whether applying a state for "dq" is to compute r and e too: a program has to have all columns, or
        several would."""
        features, columns = self._orientation("dq")
        return columns <= self._blocks("apply", "dq", features).columns

    def apply(self, what: str, t: slice, state: State | None, weigh: bool = False) -> None:
        """`weigh`: "dq" computes r and e too."""
        if t.stop <= t.start:
            return
        role, (features, columns) = ROLES[what], self._orientation(what)
        heads = self.heads if what in ON_Q else self.key_heads
        a, y, x = (self._of(n, t) for n in (role.a, role.y, role.x))
        o = self._of("out", t) if weigh else None
        options = self._blocks("apply", what, features).options(features, columns)
        programs = -(-columns // options["BN"]) * heads
        pieces = self.pieces(t, programs, ROWS)
        self.tape.launch(
            apply, programs * pieces.count,
            a, o, y, x, *self._vectors(t if what in ON_Q else None), self._masked(t), self.positions,
            *(state or NOTHING)[:2], *pieces.tables, self._origin(what in ON_Q) + t.start, t.stop - t.start,
            pieces.each, pieces.size, self.horizon, self.eps, *_strides(a, o, y, x), *self.d.stride()[:2],
            self.mask_stride, *(state or NOTHING)[2:], HEADS=heads, GROUP=heads // self.key_heads, WHAT=what,
            STARTED=state is not None, **options, **self.common,
        )  # fmt: skip

    def step(self, came: State, after: State) -> None:
        """One token a row; `after` may be `came`."""
        q, k, v, out = (self.tensors[n] for n in ("q", "k", "v", "out"))
        d, dv = self.dims
        columns = min(power_of_two(dv), 2**12 // power_of_two(d))
        self.tape.launch(
            step, self.key_heads * self.rows,
            q, k, v, out, self.d, self.mask, self.positions, *came[:2], *after[:2], self.origin_q,
            self.horizon, self.eps, q.stride(0), q.stride(2), k.stride(0), k.stride(2), v.stride(0),
            v.stride(2), self.mask_stride, *came[2:], *after[2:], HEADS=self.key_heads,
            GROUP=self.heads // self.key_heads,
            D=d, DV=dv, MASKED=self.mask is not None, BF=power_of_two(d), BN=columns, num_warps=4,
        )  # fmt: skip

    def _absorb(
        self, what: str, t: slice, pieces: Pieces, blocks: Blocks, unused: str = "none", so_many: int = 0
    ) -> Tensor:
        """[slots, Hk, 2 D (Dv + 1)]: S, then z, of each piece; those of `so_many` unused ones of each row are
        not written."""
        d, dv = self.dims
        states = self.new_states(pieces.slots)
        b, c = self._of("k" if what == "o" else "q", t), self._of("v" if what == "o" else "g", t)
        options = blocks.options(d, dv)
        count = pieces.count if self.cu is not None else pieces.count - so_many * self.rows
        self.tape.launch(
            absorb, -(-dv // options["BN"]) * self.key_heads * count,
            b, c, *self._vectors(t)[1:], self._masked(t), self.positions, states, *pieces.tables,
            self._origin(what == "dv") + t.start, t.stop - t.start, pieces.each, pieces.size, so_many,
            self.horizon, *_strides(b, c), *self.d.stride()[:2], self.mask_stride, HEADS=self.key_heads,
            GROUP=self.heads // self.key_heads if what == "dv" else 1, WHAT=what,
            UNUSED=unused, **options, **self.common,
        )  # fmt: skip
        return states

    def _scan(
        self, states: Tensor, pieces: Pieces, came: State | None, after: State | None,
        begin: Tensor | None = None, backwards: bool = False, parts: int = 1,
    ) -> None:  # fmt: skip
        self.tape.launch(
            scan, -(-states.shape[-1] // SCANNED) * self.key_heads * self.rows,
            states, begin, *(came or NOTHING)[:2], *(after or NOTHING)[:2], pieces.first, pieces.slot,
            pieces.each, parts, *(came or NOTHING)[2:], *(after or NOTHING)[2:], HEADS=self.key_heads,
            D=self.dims[0], DV=self.dims[1], PACKED=self.cu is not None, STARTED=came is not None,
            STORED=after is not None, PREFIX=begin is not None, BACKWARDS=backwards, BLOCK=SCANNED,
            num_warps=2,
        )  # fmt: skip

    def within(self, states: Tensor) -> State:
        """S and z of one tensor that holds both."""
        return State.within(states, self.dims[0])

    def _blocks(self, kernel: str, what: str, features: int) -> Blocks:
        return blocks(kernel, what, self.arithmetic.bytes, features, self.roomy)

    def _orientation(self, what: str) -> tuple[int, int]:
        return (self.dims[1], self.dims[0]) if what in TURNED else self.dims

    def _origin(self, of_queries: bool) -> int:
        return self.origin_q if of_queries else self.origin_k

    def _of(self, name: str | None, t: slice) -> Tensor | None:
        if name is None:
            return None
        x = self.tensors[name]
        return x if t == slice(0, x.shape[1]) else x[:, t]

    def _vectors(self, t: slice | None) -> tuple[Tensor, Tensor, Tensor]:
        if t is None:  # of no use
            return self.d, self.r, self.e
        return self.d[..., t], self.r[..., t], self.e[..., t]

    def _masked(self, t: slice) -> Tensor | None:
        return None if self.mask is None else self.mask[:, t]


def _strides(*tensors: Tensor | None) -> list[int]:
    return [n for x in tensors for n in ((0, 0, 0) if x is None else x.stride()[:3])]
