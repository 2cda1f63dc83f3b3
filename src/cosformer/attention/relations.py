"""The relations that sparse patterns are made of: windows, strides, blocks and columns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cosformer.attention.gather import Lists


@dataclass(frozen=True)
class Window:
    """-after <= (i - j) / dilation <= before, in whole steps of `dilation`."""

    before: int
    after: int
    dilation: int = 1

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        distance = i - j
        near = (distance <= self.before * self.dilation) & (distance >= -self.after * self.dilation)
        return near if self.dilation == 1 else near & (distance % self.dilation == 0)

    def lists(self, length: int, device: torch.device) -> Lists:
        # Wide groups compute scores in vain at their edges, narrow ones copy each key more often.
        size = min(128, max(16, self.before + self.after))
        members = -(-length // self.dilation)
        start = torch.arange(0, members, size, device=device)[:, None]
        queries = start + torch.arange(size, device=device)
        keys = start + torch.arange(-self.before, size + self.after, device=device)
        if keys.shape[1] >= members:
            return Stride(self.dilation).lists(length, device)
        return _by_residue(queries, keys, self.dilation, length)


@dataclass(frozen=True)
class Stride:
    """(i - j) mod step = 0."""

    step: int

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j) % self.step == 0

    def lists(self, length: int, device: torch.device) -> Lists:
        members = torch.arange(-(-length // self.step), device=device)[None]
        return _by_residue(members, members, self.step, length)


@dataclass(frozen=True)
class Blocks:
    """Key blocks at most `reach` blocks away from the query's own."""

    size: int
    reach: int = 0

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        return (_floor(i, self.size) - _floor(j, self.size)).abs() <= self.reach

    def lists(self, length: int, device: torch.device) -> Lists:
        start = torch.arange(0, length, self.size, device=device)[:, None]
        queries = start + torch.arange(self.size, device=device)
        margin = self.reach * self.size
        keys = start + torch.arange(-margin, self.size + margin, device=device)
        if keys.shape[1] >= length:
            return Stride(1).lists(length, device)
        return _by_residue(queries, keys, 1, length)


@dataclass(frozen=True)
class Ends:
    """The first and the last keys of each row, for every query: `first` and `last` are how many, `length`
    [B or 1, 1, 1, 1, 1] is where the rows end."""

    first: int
    last: int
    length: Tensor

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        return ((j < self.first) | (j >= self.length - self.last)) & (i >= 0)

    def lists(self, length: int, device: torch.device) -> Lists:
        queries = torch.arange(length, device=device)[None]
        return Lists(queries, self.rows(length)[:, None, None])

    def rows(self, length: int) -> Tensor:
        """Their indices [B or 1, first + last]; -1 where the row is too short."""
        device = self.length.device
        front = torch.arange(min(self.first, length), device=device)[None]
        back = self.length[:, 0, 0, 0] - 1 - torch.arange(self.last, device=device)
        back = back.masked_fill(back < front.shape[1], -1)
        index = torch.cat([front.expand(back.shape[0], -1), back], 1)
        return index.masked_fill(index >= length, -1)


@dataclass(frozen=True)
class Summaries:
    """The last `count` keys of each block, for every query."""

    size: int
    count: int

    def seen(self, i: Tensor, j: Tensor) -> Tensor:
        return (j % self.size >= self.size - self.count) & (i >= 0)

    def lists(self, length: int, device: torch.device) -> Lists:
        index = torch.arange(length, device=device)
        chosen = index[index % self.size >= self.size - self.count]
        return Lists(index[None], chosen[None, None, None])


def _floor(x: Tensor, size: int) -> Tensor:
    return torch.div(x, size, rounding_mode="floor")


def _by_residue(queries: Tensor, keys: Tensor, step: int, length: int) -> Lists:
    """Lists over the members of a residue class, as lists over the tokens of all classes modulo `step`."""
    residues = torch.arange(step, device=queries.device)[:, None, None]

    def tokens(x: Tensor) -> Tensor:
        spread = (residues + step * x).flatten(0, 1)
        return spread.masked_fill((spread < 0) | (spread >= length), -1)

    return Lists(tokens(queries), tokens(keys)[None, None])
