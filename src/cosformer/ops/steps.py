"""How the chunked operator walks along a sequence: which steps it takes, and the room they work in.

The maths is in chunked.py; here is only what is read when, and where temporaries lie.
"""

import math
import threading
from collections.abc import Sequence
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

    limit = 2**26

    def __init__(self) -> None:
        self.kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        size = math.prod(shape)
        flat = self.kept.get((name, dtype)) if device.type == "cpu" else None
        if flat is None or flat.numel() < size:
            self.kept.pop((name, dtype), None)
            flat = torch.empty(size, dtype=dtype, device=device)
            if device.type == "cpu" and sum(x.nbytes for x in self.kept.values()) + flat.nbytes <= self.limit:
                self.kept[name, dtype] = flat
        return flat[:size].view(shape)


_room = Room()


class Step(NamedTuple):
    """What a step reads and writes: views [chunks, B, Hk, group, chunk, .] of the call's tensors."""

    has_q: bool
    has_k: bool
    size: tuple[int, int]
    of: dict[str, Tensor]


class Walk:
    """The operands of a call, cut into steps, and what every step needs of them.

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
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.causal, self.offset, self.horizon = causal, offset, horizon
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2],
        # where nothing cancels.
        self.at = torch.arange(max(tq, tk), device=k.device)
        start = self.at.new_full((1, 1), max(0, -offset)) if positions is None else positions[:, None]
        angles_q = cos_sin(self.at[:tq] + offset + start, horizon, self.dtype)
        angles_k = cos_sin(self.at[:tk] + start, horizon, self.dtype)
        of_q = of_q | {n: w[..., None, None] for n, w in zip(("cos_q", "sin_q"), angles_q, strict=True)}
        of_k = of_k | {n: w[..., None, None] for n, w in zip(("cos_k", "sin_k"), angles_k, strict=True)}
        if key_mask is not None:
            of_k["hidden"] = ~key_mask[..., None, None]

        self.direct = is_direct(tq, tk, (self.d, self.dv))
        self.steps: list[Step] = []
        for s in plan(tq, tk, offset, causal, (self.d, self.dv), fill):
            has_q, has_k = s.q1 > s.q0, s.k1 > s.k0
            views: dict[str, tuple[Tensor, ...]] = {}
            if has_q:
                views |= {n: self._cut(x, s.q0, s.q1, s.chunk[0], s.stride) for n, x in of_q.items()}
            if has_k:
                views |= {n: self._cut(x, s.k0, s.k1, s.chunk[1], s.stride) for n, x in of_k.items()}
            for cut in zip(*views.values(), strict=True):
                self.steps.append(Step(has_q, has_k, s.chunk, dict(zip(views, cut, strict=True))))
        # After the last step with queries, what keys add can only be told by an outgoing state.
        self.last_read = max((i for i, step in enumerate(self.steps) if step.has_q), default=-1)
        self._buffers: dict[tuple[str, torch.Size], Buffer] = {}
        self._weights: dict[tuple[int, int], Tensor] = {}

    def _cut(self, x: Tensor, start: int, stop: int, chunk: int, stride: int) -> tuple[Tensor, ...]:
        """[B, start:stop, heads, .] as pieces [chunks, B, Hk, group, chunk, .] of at most `stride` chunks."""
        kv_heads = min(self.kv_heads, x.shape[2])
        group, (b, t, h, d) = x.shape[2] // kv_heads, x.stride()
        shape = ((stop - start) // chunk, x.shape[0], kv_heads, group, chunk, x.shape[3])
        strides = (chunk * t, b, group * h, h, t, d)
        return x.as_strided(shape, strides, x.storage_offset() + start * t).split(stride)

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
        key = (name, like.shape)
        if key not in self._buffers:
            shape = (*like.shape[:-1], width)
            self._buffers[key] = Buffer(_room.take(name, shape, self.dtype, like.device))
        return self._buffers[key]

    def zero_state(self, step: Step) -> Tensor:
        v = step.of["v"]
        return v.new_zeros((v.shape[1] * v.shape[2], 2 * self.d, self.dv + 1), dtype=self.dtype)

    def queries(self, step: Step) -> Buffer:
        """q' = ReLU(q)."""
        return self._relu("q", step.of["q"])

    def keys(self, step: Step) -> Buffer:
        """k' = ReLU(k), zero where the key is masked."""
        return self._hide(self._relu("k", step.of["k"]), step)

    def values(self, step: Step) -> Buffer:
        """v1 = [v, 1]; zero where the key is masked, whatever lay there (NaN included)."""
        x = step.of["v"]
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
        if "hidden" in step.of:
            x.whole.masked_fill_(step.of["hidden"], 0)
        return x

    def phi(self, side: str, x: Buffer, step: Step) -> Buffer:
        """[x' cos theta, x' sin theta]; side is "q" or "k"."""
        into = self.buffer("phi_" + side, x.whole, 2 * self.d)
        torch.mul(x.whole, step.of["cos_" + side], out=into.halves[0])
        torch.mul(x.whole, step.of["sin_" + side], out=into.halves[1])
        return into

    def through_phi(self, side: str, grad: Buffer, dphi: Buffer, step: Step) -> None:
        """Adds to dL/dx' what comes to it through phi(x); it is all there is in a step of one side."""
        if step.has_q and step.has_k:
            grad.whole.addcmul_(dphi.halves[0], step.of["cos_" + side])
        else:
            torch.mul(dphi.halves[0], step.of["cos_" + side], out=grad.whole)
        grad.whole.addcmul_(dphi.halves[1], step.of["sin_" + side])

    def square(self, step: Step, left: Buffer, right: Buffer) -> Buffer:
        """(left right^T) * cos((pi/2)(i - j)/M) inside each chunk, the future left out if causal.

        The cosines depend on the distance alone: they are the same in every chunk.
        """
        if step.size not in self._weights:
            shift = self.offset if self.direct else 0
            i, j = self.at[: step.size[0]] + shift, self.at[: step.size[1]]
            self._weights[step.size] = cos_of_distance(i, j, self.horizon, self.dtype, self.causal)
        p = self.buffer("p", left.whole, step.size[1])
        torch.bmm(left.rows, right.columns, out=p.rows)
        p.whole.mul_(self._weights[step.size])
        return p
