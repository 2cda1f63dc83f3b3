"""What the ranks of a sequence group send one another, with gradients.

The gradients on a rank are those of the sum of what all ranks compute. So an input of one rank gets the
gradients of every rank that read it, and a parameter that all ranks hold gets its own share on each of them:
their sum over the ranks is the gradient of the sum, their mean that of what each rank holds of a common loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from cosformer.distributed.group import SequenceGroup

# Newer names of the same functions, where there are any.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _InFlight:
    """Communication in progress: one tensor to all ranks, and rows of another to neighbours."""

    def __init__(self, group: SequenceGroup):
        self.group, self.works = group, list[Any]()
        self.gathered: Tensor | None = None
        self.received: dict[int, Tensor] = {}  # by the distance of the sending rank

    def gather(self, x: Tensor) -> None:
        x = x.contiguous()
        self.gathered = x.new_empty((self.group.size * x.shape[0], *x.shape[1:]))
        self.works.append(_all_gather(self.gathered, x, group=self.group.group, async_op=True))

    def swap(self, sent: dict[int, Tensor], wanted: dict[int, tuple[int, ...]], like: Tensor) -> None:
        """Sends to, and receives from, the ranks at these distances."""
        ops, rank = [], self.group.rank
        for distance, x in sent.items():
            ops.append(dist.P2POp(dist.isend, x, group=self.group.group, group_peer=rank + distance))
        for distance, shape in wanted.items():
            x = self.received[distance] = like.new_empty(shape)
            ops.append(dist.P2POp(dist.irecv, x, group=self.group.group, group_peer=rank + distance))
        if ops:
            self.sent = sent  # kept alive until sent
            self.works += dist.batch_isend_irecv(ops)

    def wait(self) -> tuple[Tensor | None, dict[int, Tensor]]:
        for work in self.works:
            work.wait()
        gathered, size = self.gathered, self.group.size
        return None if gathered is None else gathered.unflatten(0, (size, -1)), self.received


@dataclass
class Exchange:
    """The one exchange of an attention: sums go to all ranks, rows at the edges of a shard to its neighbours.

    `begin` sends and returns at once; `end` waits. Work between the two overlaps with the communication, in
    the forward and in the backward pass.

    Attributes:
        senders: for each slot of the sums, the ranks whose sums are added here.
        receivers: the ranks that add those of this rank.
        before, behind: rows needed of the tokens before and after the shard; they come from several ranks
            where shards are shorter.
    """

    group: SequenceGroup
    senders: Sequence[slice] = ()
    receivers: Sequence[slice] = ()
    before: int = 0
    behind: int = 0
    _flight: _InFlight | None = field(default=None, repr=False)
    _token: Tensor | None = field(default=None, repr=False)
    _rows: tuple[int, ...] = ()
    _like: Tensor | None = field(default=None, repr=False)

    def begin(self, sums: Tensor | None, edge: Tensor | None) -> None:
        """sums [slots, ...]; edge [B, L, ...], the tokens of the shard."""
        self._token = _Begin.apply(self, sums, edge)

    def end(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The sums of the senders [slots, ...]; the rows before and behind the shard [B, n, ...], as many as
        there are."""
        token, self._token = self._token, None
        result: tuple[Tensor | None, Tensor | None, Tensor | None] = _End.apply(self, token)
        return result

    def splits(self, side: int) -> list[tuple[int, int]]:
        """(distance of a rank, rows from it), nearest first, of the tokens before (-1) or behind (+1) a
        shard; ranks beyond the ends included."""
        length, left = self._rows[1], self.before if side < 0 else self.behind
        found = []
        distance = 1
        while left > 0:
            found.append((side * distance, min(left, length)))
            left -= length
            distance += 1
        return found

    def is_rank(self, distance: int) -> bool:
        return 0 <= self.group.rank + distance < self.group.size

    def added(self, gathered: Tensor, ranks: Sequence[slice]) -> Tensor:
        """gathered [size, slots, ...] summed over these ranks: [slots, ...]."""
        return torch.stack([gathered[part, slot].sum(0) for slot, part in enumerate(ranks)])


class _Begin(torch.autograd.Function):
    """Sends. Its one output only tells autograd that `_End` follows it; the tensors are in flight."""

    @staticmethod
    def forward(ctx: Any, x: Exchange, sums: Tensor | None, edge: Tensor | None) -> Tensor:
        flight = x._flight = _InFlight(x.group)
        ctx.exchange, ctx.has = x, (sums is not None, edge is not None)
        if sums is not None:
            flight.gather(sums)
        if edge is not None:
            x._rows, x._like = tuple(edge.shape), edge.new_empty(0)
            sent, wanted = {}, {}
            for side in (-1, 1):
                for distance, n in x.splits(side):
                    if x.is_rank(-distance):  # its rows on that side belong to this rank
                        sent[-distance] = (edge[:, -n:] if side < 0 else edge[:, :n]).contiguous()
                    if x.is_rank(distance):
                        wanted[distance] = (edge.shape[0], n, *edge.shape[2:])
            flight.swap(sent, wanted, edge)
        like = sums if sums is not None else edge
        assert like is not None
        return like.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        x: Exchange = ctx.exchange
        assert x._flight is not None
        gathered, received = x._flight.wait()
        x._flight = None
        d_sums = d_edge = None
        if ctx.has[0]:
            assert gathered is not None
            d_sums = x.added(gathered, x.receivers)
        if ctx.has[1]:
            assert x._like is not None
            d_edge = x._like.new_zeros(x._rows)
            for side in (-1, 1):
                for distance, n in x.splits(side):
                    if -distance in received:
                        part = d_edge[:, -n:] if side < 0 else d_edge[:, :n]
                        part += received[-distance]
        return None, d_sums, d_edge


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Exchange, token: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        assert x._flight is not None
        gathered, received = x._flight.wait()
        x._flight, ctx.exchange = None, x
        sums = None if gathered is None else x.added(gathered, x.senders)
        if not x._rows:
            return sums, None, None
        return sums, _joined(x, received, -1), _joined(x, received, 1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_sums: Tensor | None, d_before: Tensor | None, d_behind: Tensor | None
    ) -> tuple[None, Tensor]:
        x: Exchange = ctx.exchange
        flight = x._flight = _InFlight(x.group)
        if d_sums is not None:
            flight.gather(d_sums)
        if x._rows:
            assert d_before is not None
            assert d_behind is not None
            sent, wanted = {}, {}
            for side, grad in ((-1, d_before), (1, d_behind)):
                at = grad.shape[1] if side < 0 else 0
                for distance, n in x.splits(side):
                    if x.is_rank(distance):
                        part = grad[:, at - n : at] if side < 0 else grad[:, at : at + n]
                        sent[distance], at = part.contiguous(), at + side * n
                    if x.is_rank(-distance):
                        wanted[-distance] = (x._rows[0], n, *x._rows[2:])
            flight.swap(sent, wanted, d_before)
        like = d_sums if d_sums is not None else d_before
        assert like is not None
        return None, like.new_zeros(())


def _joined(x: Exchange, received: dict[int, Tensor], side: int) -> Tensor:
    found = [received[distance] for distance, _ in x.splits(side) if distance in received]
    if not found:
        assert x._like is not None
        return x._like.new_zeros((x._rows[0], 0, *x._rows[2:]))
    return torch.cat(found[::side], 1)


class _Tie(torch.autograd.Function):
    """`out`; the others become part of its graph, with no gradient, whether anything reads them or not."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *others: Tensor) -> Tensor:
        ctx.others = len(others)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, *[None] * ctx.others


def tie(out: Tensor, *others: Tensor | None) -> Tensor:
    """out, made to depend on the others: every rank must run the backward of an exchange, or the rest
    waits."""
    tied: Tensor = _Tie.apply(out, *(x for x in others if x is not None))
    return tied


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: SequenceGroup) -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group.group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group.group)
        return grad, None


def group_sum(x: Tensor, group: SequenceGroup) -> Tensor:
    """The sum over the ranks, on each of them."""
    if group.size == 1:
        return x
    total: Tensor = _Sum.apply(x, group)
    return total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: SequenceGroup) -> Tensor:
        ctx.group, x = group, x.contiguous()
        every = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
        _all_gather(every, x, group=group.group)
        return every.unflatten(0, (group.size, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        own = grad.new_empty(grad.shape[1:])
        _reduce_scatter(own, grad.flatten(0, 1).contiguous(), group=ctx.group.group)
        return own, None


def group_gather(x: Tensor, group: SequenceGroup) -> Tensor:
    """[size, *x.shape]: that of every rank, on each of them."""
    if group.size == 1:
        return x[None]
    every: Tensor = _Gather.apply(x, group)
    return every


def gather_sequence(x: Tensor, group: SequenceGroup) -> Tensor:
    """Shards [B, L, ...] as the whole sequence [B, size L, ...]."""
    return group_gather(x, group).movedim(0, 1).flatten(1, 2)
