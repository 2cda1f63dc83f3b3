"""The steps in which the chunked backend goes along a sequence, and what each step reads.

The maths is in attention.py; where temporaries lie, in workspace.py.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cosformer.ops.angles import cos_sin
from cosformer.ops.args import AttentionArgs
from cosformer.ops.chunked.workspace import Buffer, Workspace, width
from cosformer.ops.seen import apart, finite

# With 64 tokens the quadratic part inside a chunk costs less than the state. A step takes several chunks, to
# save calls of PyTorch operators, within two bounds: its buffers hold about BUFFER elements (they should stay
# in a CPU's cache; on a GPU, where each call launches a kernel, LARGE_BUFFER), and a long sequence is at
# least PARTS steps, so that the buffers stay smaller than the inputs, unless they are below LEAST elements.
CHUNK = 64
BUFFER = 2**19
LARGE_BUFFER = 2**22
PARTS = 4
LEAST = 2**16


def most_chunks(heads: int, dims: tuple[int, int], device: torch.device) -> int:
    """The most chunks that fit into the buffers of a step."""
    buffer = BUFFER if device.type == "cpu" else LARGE_BUFFER
    return max(1, buffer // (heads * max(dims) * CHUNK))


def tiling(length: int, heads: int, dims: tuple[int, int], device: torch.device) -> tuple[int, int]:
    """Chunks of a step, and rows of the batch that are computed together."""
    chunks, most = -(-length // CHUNK), most_chunks(heads, dims, device)
    fill = min(max(PARTS, -(-chunks // PARTS), LEAST // (heads * max(dims) * CHUNK)), most)
    return fill, max(1, most // min(fill, max(1, chunks)))


class Segment(NamedTuple):
    """Queries [q0, q1) meet keys [k0, k1), one of them perhaps empty, in chunks of `chunk` tokens.

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
    """The segments of a call; `offset` is the position of the first query seen from the first key."""
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


def kept_size(
    tq: int, tk: int, offset: int, causal: bool, heads: int, dims: tuple[int, int], device: torch.device
) -> int:
    """How many numbers, for each row and key head, hold the states a forward keeps for its backward:
    one a step with queries, keys, and keys before them, and one for the queries that come after all
    keys.

    A bound that is linear in the length: exact counts of steps make hard conditions on symbolic sizes. Where
    a program is exported, lengths are not even asked whether they are short: it would hold for those alone,
    and the shape of what only a backward looks at is not part of it.
    """
    if not torch.compiler.is_exporting() and (tk == 0 or is_direct(tq, tk, dims)):
        return 0
    size = dims[0] * width(dims[1])
    if not causal:
        return size
    per_token = -(-size // (most_chunks(heads, dims, device) * CHUNK))
    return tq * per_token + (PARTS + (1 if offset == 0 else 2)) * size


_workspace = Workspace()


class Operand(NamedTuple):
    """A tensor [B, T, heads, width] along the queries or the keys, ready to be cut."""

    x: Tensor
    along_q: bool
    sizes: tuple[int, int, int, int]  # B, Hk, group, width
    strides: tuple[int, ...]
    start: int


class PlanStep(NamedTuple):
    """Queries [q0, q1) and keys [k0, k1), in chunks of `size` tokens."""

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


class ChunkPlan:
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
        args: AttentionArgs,
        fill: int,
    ):
        """`of_q` and `of_k`: the tensors [B, T, heads, .] that lie along the queries and the keys, and with
        `key_mask` and `positions` some rows of a batch; `args` tells the rest."""
        q, k = of_q["q"], of_k["k"]
        tq, tk, self.kv_heads, self.d, self.dv = q.shape[1], *k.shape[1:], of_k["v"].shape[3]
        self.batch, self.device = k.shape[0], k.device
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        causal, offset = args.causal, args.query_offset
        self.causal, self.offset, self.horizon, self.masked = (
            causal,
            offset,
            args.m,
            key_mask is not None,
        )
        # Without a state the origin is free: the earliest position keeps every angle in [0, pi/2],
        # where nothing cancels.
        at = torch.arange(max(tq, tk), device=k.device)
        at = at + (max(0, -offset) if positions is None else positions[:, None])
        self.operands: dict[str, Operand] = {}
        phases = self._phases(at)
        self._add_phases("k", phases)
        self._add_phases("q", phases if offset == 0 else self._phases(at[..., :tq] + offset))
        if key_mask is not None:
            self._add("hidden", ~key_mask[..., None, None], False)
        for name, x in of_q.items():
            self._add(name, x, True)
        for name, x in of_k.items():
            self._add(name, x, False)

        self.group = q.shape[2] // self.kv_heads
        # Of a square inside a chunk: the last key that its first query sees.
        self.diagonal = offset if is_direct(tq, tk, (self.d, self.dv)) else 0
        self.steps: list[PlanStep] = []
        for s in plan(tq, tk, offset, causal, (self.d, self.dv), fill):
            for q0, q1, k0, k1 in s.steps():
                self.steps.append(PlanStep(q0, q1, k0, k1, s.chunk, self.operands))
        # After the last step with queries, what keys add can only be told by an outgoing state.
        self.last_read = max((i for i, step in enumerate(self.steps) if step.has_q), default=-1)

    def _phases(self, at: Tensor) -> Tensor:
        """[cos theta, sin theta, 0 ...] at these positions [..., T]: the tail of a row with phases."""
        x = torch.zeros((*at.shape, width(self.dv) - 2 * self.dv), dtype=self.dtype, device=self.device)
        x[..., 0], x[..., 1] = cos_sin(at, self.horizon, self.dtype)
        return x.view(-1, at.shape[-1], 1, x.shape[-1])

    def _add_phases(self, side: str, x: Tensor) -> None:
        for name, part in (("cos", x[..., :1]), ("sin", x[..., 1:2]), ("tail", x)):
            self._add(f"{name}_{side}", part, side == "q")

    def _add(self, name: str, x: Tensor, along_q: bool) -> None:
        heads = min(self.kv_heads, x.shape[2])
        sizes = (x.shape[0], heads, x.shape[2] // heads, x.shape[3])
        self.operands[name] = Operand(x, along_q, sizes, x.stride(), int(x.storage_offset()))

    def slots(self, kept: Tensor) -> tuple[list[Tensor | None], int]:
        """The view [B, Hk, D, .] of `kept` [B, Hk, .] in which each step saves its state for the backward
        (None: it reads no state, or only the initial one), and how much of the last dimension is used."""
        shape = (self.d, width(self.dv))
        size, used = math.prod(shape), 0
        found: list[Tensor | None] = []
        applying, keys_seen = False, False
        for step in self.steps:
            slot = None
            if step.has_q and keys_seen:
                used += 0 if applying and not step.has_k else size  # state_apply steps in a row share one
                applying = not step.has_k
                slot = kept[..., used - size : used].unflatten(-1, shape)
            found.append(slot)
            keys_seen |= step.has_k
        return found, used

    def buffer(self, name: str, like: Tensor, width: int) -> Buffer:
        """Workspace with the rows of `like` and this width."""
        return _workspace.take(name, (*like.shape[:-1], width), self.dtype, self.device)

    def phased(self, name: str, like: Tensor) -> Buffer:
        """Workspace for a value with its phases, and a number with its own, for each row of `like`."""
        return _workspace.take(name, (*like.shape[:-1], width(self.dv)), self.dtype, self.device, self.dv)

    def zero_state(self) -> Tensor:
        shape = (self.batch * self.kv_heads, self.d, width(self.dv))
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def state_copy(self, state: Tensor | None) -> Tensor:
        """A copy that a step may change, zero where there was nothing."""
        shape = (self.batch * self.kv_heads, self.d, width(self.dv))
        into = _workspace.take("state", shape, self.dtype, self.device).whole
        return into.zero_() if state is None else into.copy_(state)

    def queries(self, step: PlanStep) -> Buffer:
        """q' = ReLU(q)."""
        return self._relu("q", step.of("q"))

    def keys(self, step: PlanStep) -> Buffer:
        """k' = ReLU(k), zero where the key is masked."""
        return self._hide(self._relu("k", step.of("k")), step)

    def values(self, step: PlanStep) -> Buffer:
        """vv = [v cos, v sin, cos, sin]; zero where the key is masked, whatever lay there (NaN included)."""
        x = step.of("v")
        into = self.phased("vv", x)
        cos, sin, tail = into.parts
        torch.mul(x, step.of("cos_k"), out=cos)
        torch.mul(x, step.of("sin_k"), out=sin)
        tail.copy_(step.of("tail_k"))
        return self._hide(into, step)

    def _relu(self, name: str, x: Tensor) -> Buffer:
        into = self.buffer(name, x, self.d)
        if x.dtype == self.dtype:
            torch.clamp_min(x, 0, out=into.whole)
        else:
            into.whole.copy_(x).clamp_min_(0)
        return into

    def _hide(self, x: Buffer, step: PlanStep) -> Buffer:
        if self.masked:
            x.whole.masked_fill_(step.of("hidden"), 0)
        return x

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """x * y for tensors of one type, rounded only to the type of the sums."""
        into = self.buffer("g", x, x.shape[-1]).whole
        return torch.mul(x, y, out=into) if x.dtype == self.dtype else into.copy_(x).mul_(y)

    def square(self, step: PlanStep, like: Buffer, *factors: tuple[Tensor, Tensor]) -> Buffer:
        """The sum of left right^T inside each chunk [tokens of `like`, keys]; no future if causal."""
        p = self.buffer("square", like.whole, step.size[1])
        for n, (left, right) in enumerate(factors):
            p.rows.baddbmm_(left, right.mT, beta=min(n, 1))
        if self.causal:
            p.whole.tril_(self.diagonal)
        return p

    def sees(self, step: PlanStep, tokens: slice) -> Tensor:
        """Which keys of its chunk a query sees, if causal: [rows of `square`, keys]."""
        ones = torch.ones(step.size, dtype=torch.bool, device=self.device)
        return ones.tril_(self.diagonal)[tokens].repeat(self.group, 1)

    def seen_product(
        self, step: PlanStep, square: Tensor, right: Tensor, total: Tensor, transposed: bool = False,
        fresh: bool = True, tokens: slice = slice(None),
    ) -> None:  # fmt: skip
        """total += square right; a `fresh` total is overwritten. `square` [queries, keys], or `transposed`,
        is zero where a query does not see a key; non-finite elements of `right` must not pass as 0 x NaN.
        `tokens`: the queries of each chunk that `square` has."""
        lost = None
        if self.causal and not finite(right):
            sees = self.sees(step, tokens)
            right, lost = apart(right, sees.mT if transposed else sees)
        total.baddbmm_(square, right, beta=0 if fresh else 1)
        if lost is not None:
            total.masked_fill_(lost, torch.nan)
