"""How the chunked operator walks along a sequence: which steps it takes, and the room they work in.

The maths is in chunked.py; here is only what is read when, and where temporaries lie.
"""

import math
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.angles import cos_of_distance, cos_sin

# Chunks of 64 tokens keep the square inside a chunk cheaper than the state. A step takes as many
# chunks, and a tile as many rows of the batch, as fill buffers of about this many numbers: calls
# then cost little and the caches still serve.
CHUNK = 64
BUFFER = 2**18


class Tiling(NamedTuple):
    rows: int  # of the batch, walked together
    chunks: int  # to a step


def tiling(batch: int, heads: int, dims: tuple[int, int]) -> Tiling:
    chunk = heads * max(dims) * CHUNK
    rows = max(1, min(batch, BUFFER // chunk))
    return Tiling(rows, max(1, BUFFER // (rows * chunk)))


class Segment(NamedTuple):
    """Queries [q0, q1) meet keys [k0, k1), one of them perhaps empty, in chunks of so many tokens.

    With both, a query sees the keys of its own chunk directly and all before it through the state.
    A step takes `stride` chunks.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    chunk: tuple[int, int]
    stride: int

    def steps(self) -> Iterator[tuple[int, int, int, int]]:
        """The bounds of each step."""
        q_step, k_step = self.chunk[0] * self.stride, self.chunk[1] * self.stride
        count = -(-(self.q1 - self.q0) // q_step) if self.q1 > self.q0 else -(-(self.k1 - self.k0) // k_step)
        for i in range(count):
            yield (
                min(self.q0 + i * q_step, self.q1),
                min(self.q0 + (i + 1) * q_step, self.q1),
                min(self.k0 + i * k_step, self.k1),
                min(self.k0 + (i + 1) * k_step, self.k1),
            )


def is_direct(tq: int, tk: int, dims: tuple[int, int]) -> bool:
    """Short enough for the whole square to cost less than going through the state."""
    d, dv = dims
    return 0 < tq * tk * (d + dv) <= 2 * d * dv * (tq + tk)


def overlap(tq: int, tk: int, offset: int) -> tuple[int, int, int]:
    """Queries before any key, keys before any query, and how many positions then have both."""
    q0, k0 = max(0, min(-offset, tq)), max(0, min(offset, tk))
    return q0, k0, min(tq - q0, tk - k0)


def plan(tq: int, tk: int, offset: int, causal: bool, dims: tuple[int, int], fill: int) -> list[Segment]:
    """The walk of a call; `offset` is the position of the first query seen from the first key."""
    if is_direct(tq, tk, dims):
        return [Segment(0, tq, 0, tk, (tq, tk), 1)]
    segments: list[Segment] = []

    def add(q0: int, q1: int, k0: int, k1: int, chunk: int, stride: int) -> None:
        """The whole chunks of the range as one segment, what is left over as another."""
        length = max(q1 - q0, k1 - k0)
        whole = length - length % chunk
        for a, b in ((0, whole), (whole, length)):
            if b > a:
                q = (q0 + a, q0 + b) if q1 > q0 else (0, 0)
                k = (k0 + a, k0 + b) if k1 > k0 else (0, 0)
                segments.append(Segment(*q, *k, (min(chunk, b - a),) * 2, stride))

    if causal:
        q0, k0, both = overlap(tq, tk, offset)
        add(0, q0, 0, 0, fill * CHUNK, 1)
        add(0, 0, 0, k0, fill * CHUNK, 1)
        add(q0, q0 + both, k0, k0 + both, CHUNK, fill)
        q0, k0 = q0 + both, k0 + both
    else:
        q0 = k0 = 0
    add(0, 0, k0, tk, fill * CHUNK, 1)
    add(q0, tq, 0, 0, fill * CHUNK, 1)
    return segments


def room_for_states(tq: int, tk: int, causal: bool, dims: tuple[int, int], fill: int) -> int:
    """How many numbers, for each row and key head, hold the states a forward keeps for its backward:
    one a step with queries and keys, and one for the queries that come after all keys.

    A bound that is linear in the length: exact counts of steps make hard conditions on symbolic sizes.
    """
    if tk == 0 or is_direct(tq, tk, dims):
        return 0
    size = 2 * dims[0] * (dims[1] + 1)
    per_token = -(-size // (fill * CHUNK))
    return tq * per_token + 3 * size if causal else size


class Buffer:
    """Room for one operand of a step [chunks, B, Hk, ..., width], and the ways it is looked at."""

    def __init__(self, whole: Tensor):
        self.whole = whole

    @cached_property
    def _matrices(self) -> Tensor:
        x = self.whole
        return x.view(x.shape[0], x.shape[1] * x.shape[2], -1, x.shape[-1])

    @cached_property
    def rows(self) -> Tensor:
        """All chunks as one batch of matrices."""
        return self._matrices.flatten(0, 1)

    @cached_property
    def columns(self) -> Tensor:
        return self.rows.mT

    @cached_property
    def chunks(self) -> tuple[Tensor, ...]:
        return self._matrices.unbind(0)

    @cached_property
    def chunk_columns(self) -> tuple[Tensor, ...]:
        return self._matrices.mT.unbind(0)

    @cached_property
    def halves(self) -> tuple[Tensor, ...]:
        return self.whole.chunk(2, -1)


class Room(threading.local):
    """Memory for buffers, kept from call to call by each thread: on a CPU, fresh pages can cost
    more than the arithmetic done in them. Other devices have allocators that see to this."""

    limit = 2**26  # bytes in all
    shapes = 256  # looked at in the same memory, before they are forgotten

    def __init__(self) -> None:
        self.memory: dict[tuple[str, torch.dtype], Tensor] = {}
        self.buffers: dict[tuple[str, tuple[int, ...], torch.dtype], Buffer] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Buffer:
        if device.type != "cpu":
            return Buffer(torch.empty(shape, dtype=dtype, device=device))
        key = (name, shape, dtype)
        if key not in self.buffers:
            size = math.prod(shape)
            flat = self.memory.get((name, dtype))
            if flat is None or flat.numel() < size or len(self.buffers) >= self.shapes:
                self.buffers.clear()
                self.memory.pop((name, dtype), None)
                with torch.inference_mode(False):  # what is kept must serve calls of every kind
                    flat = torch.empty(size, dtype=dtype)
                if sum(x.nbytes for x in self.memory.values()) + flat.nbytes > self.limit:
                    return Buffer(flat.view(shape))
                self.memory[name, dtype] = flat
            self.buffers[key] = Buffer(flat[:size].view(shape))
        return self.buffers[key]


_room = Room()


class Operand(NamedTuple):
    """A tensor [B, T, heads, width] along the queries or the keys, ready to be cut."""

    x: Tensor
    along_q: bool
    sizes: tuple[int, int, int, int]  # B, Hk, group, width
    strides: tuple[int, ...]
    start: int


class Step(NamedTuple):
    """Queries [q0, q1) and keys [k0, k1) of a walk, in chunks of `size` tokens."""

    q0: int
    q1: int
    k0: int
    k1: int
    size: tuple[int, int]
    operands: dict[str, Operand]

    @property
    def has_q(self) -> bool:
        return self.q1 > self.q0

    @property
    def has_k(self) -> bool:
        return self.k1 > self.k0

    def of(self, name: str) -> Tensor:
        """The step's part of an operand: a view [chunks, B, Hk, group, chunk, width]."""
        x, along_q, (batch, heads, group, width), (b, t, h, d), start = self.operands[name]
        a, z, chunk = (self.q0, self.q1, self.size[0]) if along_q else (self.k0, self.k1, self.size[1])
        shape = ((z - a) // chunk, batch, heads, group, chunk, width)
        return x.as_strided(shape, (chunk * t, b, group * h, h, t, d), start + a * t)


class Walk:
    """The operands of a call, the steps it takes, and what every step needs of them.

    The heads that share a key head are rows of one matrix: grouped heads are never expanded. Chunks
    come first because the matrix library is fast only on whole contiguous batches.
    """

    def __init__(
        self,
        of_q: dict[str, Tensor],
        of_k: dict[str, Tensor],
        key_mask: Tensor | None,
        positions: Tensor | None,
        causal: bool,
        offset: int,
        horizon: float,
        fill: int,
    ):
        """`of_q` and `of_k`: the tensors [B, T, heads, .] that lie along the queries and the keys."""
        q, k = of_q["q"], of_k["k"]
        tq, tk, self.kv_heads, self.d, self.dv = q.shape[1], *k.shape[1:], of_k["v"].shape[3]
        self.batch, self.device = k.shape[0], k.device
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.causal, self.offset, self.horizon, self.masked = causal, offset, horizon, key_mask is not None
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2],
        # where nothing cancels.
        self.at = torch.arange(max(tq, tk), device=k.device)
        at = self.at + max(0, -offset) if positions is None else self.at + positions[:, None]
        angles = cos_sin(at, horizon, self.dtype)
        angles_q = angles if offset == 0 else cos_sin(at[..., :tq] + offset, horizon, self.dtype)
        self.operands: dict[str, Operand] = {}
        for names, tables, along_q in (
            (("cos_q", "sin_q"), angles_q, True),
            (("cos_k", "sin_k"), angles, False),
        ):
            for name, w in zip(names, tables, strict=True):
                self._add(name, w.view(-1, w.shape[-1], 1, 1), along_q)
        if key_mask is not None:
            self._add("hidden", ~key_mask[..., None, None], False)
        for name, x in of_q.items():
            self._add(name, x, True)
        for name, x in of_k.items():
            self._add(name, x, False)

        self.direct = is_direct(tq, tk, (self.d, self.dv))
        self.steps: list[Step] = []
        for s in plan(tq, tk, offset, causal, (self.d, self.dv), fill):
            for q0, q1, k0, k1 in s.steps():
                self.steps.append(Step(q0, q1, k0, k1, s.chunk, self.operands))
        # After the last step with queries, what keys add can only be told by an outgoing state.
        self.last_read = max((i for i, step in enumerate(self.steps) if step.has_q), default=-1)
        self._weights: dict[tuple[int, int], Tensor] = {}

    def _add(self, name: str, x: Tensor, along_q: bool) -> None:
        heads = min(self.kv_heads, x.shape[2])
        sizes = (x.shape[0], heads, x.shape[2] // heads, x.shape[3])
        self.operands[name] = Operand(x, along_q, sizes, x.stride(), int(x.storage_offset()))

    def slots(self, kept: Tensor) -> list[Tensor | None]:
        """Where in `kept` [B, Hk, .] each step finds its state [B, Hk, 2D, Dv+1] again; None where it
        reads none, or the one that came in."""
        shape = (2 * self.d, self.dv + 1)
        size, used = math.prod(shape), 0
        found: list[Tensor | None] = []
        applying, keys_seen = False, False
        for step in self.steps:
            slot = None
            if step.has_q and not self.direct and (step.has_k or keys_seen):
                used += 0 if applying and not step.has_k else size  # all applies in a row share one
                applying = not step.has_k
                slot = kept[..., used - size : used].unflatten(-1, shape)
            found.append(slot)
            keys_seen |= step.has_k
        return found

    def buffer(self, name: str, like: Tensor, width: int) -> Buffer:
        """Room with the rows of `like` and this width."""
        return _room.take(name, (*like.shape[:-1], width), self.dtype, self.device)

    def zero_state(self) -> Tensor:
        shape = (self.batch * self.kv_heads, 2 * self.d, self.dv + 1)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def queries(self, step: Step) -> Buffer:
        """q' = ReLU(q)."""
        return self._relu("q", step.of("q"))

    def keys(self, step: Step) -> Buffer:
        """k' = ReLU(k), zero where the key is masked."""
        return self._hide(self._relu("k", step.of("k")), step)

    def values(self, step: Step) -> Buffer:
        """v1 = [v, 1]; zero where the key is masked, whatever lay there (NaN included)."""
        x = step.of("v")
        into = self.buffer("v", x, self.dv + 1)
        into.whole[..., :-1] = x
        into.whole[..., -1] = 1
        return self._hide(into, step)

    def _relu(self, name: str, x: Tensor) -> Buffer:
        into = self.buffer(name, x, self.d)
        if x.dtype == self.dtype:
            torch.clamp_min(x, 0, out=into.whole)
        else:
            into.whole.copy_(x).clamp_min_(0)
        return into

    def _hide(self, x: Buffer, step: Step) -> Buffer:
        if self.masked:
            x.whole.masked_fill_(step.of("hidden"), 0)
        return x

    def phi(self, side: str, x: Buffer, step: Step) -> Buffer:
        """[x' cos theta, x' sin theta]; side is "q" or "k"."""
        into = self.buffer("phi_" + side, x.whole, 2 * self.d)
        torch.mul(x.whole, step.of("cos_" + side), out=into.halves[0])
        torch.mul(x.whole, step.of("sin_" + side), out=into.halves[1])
        return into

    def through_phi(self, side: str, grad: Buffer, dphi: Buffer, step: Step) -> None:
        """Adds to dL/dx' what comes to it through phi(x); it is all there is in a step of one side."""
        if step.has_q and step.has_k:
            grad.whole.addcmul_(dphi.halves[0], step.of("cos_" + side))
        else:
            torch.mul(dphi.halves[0], step.of("cos_" + side), out=grad.whole)
        grad.whole.addcmul_(dphi.halves[1], step.of("sin_" + side))

    def square(self, step: Step, left: Buffer, right: Buffer) -> Buffer:
        """(left right^T) * cos((pi/2)(i - j)/M) inside each chunk, the future left out if causal.

        The cosines depend on the distance alone: they are the same in every chunk.
        """
        if step.size not in self._weights:
            shift = self.offset if self.direct else 0
            i, j = self.at[: step.size[0]] + shift, self.at[: step.size[1]]
            self._weights[step.size] = cos_of_distance(i, j, self.horizon, self.dtype, self.causal)
        p = self.buffer("large", left.whole, step.size[1])
        torch.bmm(left.rows, right.columns, out=p.rows)
        p.whole.mul_(self._weights[step.size])
        return p
