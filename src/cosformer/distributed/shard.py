"""The place of a shard in its sequence, and which documents continue on other ranks."""

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cosformer.distributed.group import SequenceGroup


@dataclass(frozen=True)
class Part:
    """Neighbouring tokens of a shard that are computed in one call.

    Attributes:
        start, stop: columns of the shard.
        documents: indices of the documents (packed rows only).
        bounds: of the documents inside the part; None: one document, or rows of a batch.
        slots: of the sums from other ranks, those that it adds.
        offset: position of its first token in its document.
    """

    start: int
    stop: int
    documents: slice
    bounds: tuple[int, ...] | None
    slots: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Shard:
    """Tokens `start` to `stop` of a sequence of `total`: those of one rank of the group.

    Attributes:
        group: the ranks that share the sequence.
        length: tokens of a shard, the same on every rank.
        packed: bounds of documents in the whole sequence (its `cu_seqlens`), None where rows of a batch are
            documents.
    """

    group: SequenceGroup
    length: int
    packed: tuple[int, ...] | None = None

    @property
    def start(self) -> int:
        return self.group.rank * self.length

    @property
    def stop(self) -> int:
        return self.start + self.length

    @property
    def total(self) -> int:
        return self.group.size * self.length

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Of documents; a row of a batch is one."""
        return (0, self.total) if self.packed is None else self.packed

    def documents(self, start: int, stop: int) -> slice:
        """Those that have tokens among these of the sequence (and empty ones between them)."""
        return slice(bisect_right(self.bounds, start) - 1, bisect_left(self.bounds, stop))

    def cut(self, start: int, stop: int) -> tuple[slice, tuple[int, ...]]:
        """The documents among these tokens, and their bounds counted from `start`."""
        found = self.documents(start, stop)
        inside = self.bounds[found.start : found.stop + 1]
        return found, tuple(min(max(b, start), stop) - start for b in inside)

    @property
    def first(self) -> int:
        """The document of the first token."""
        return self.documents(self.start, self.stop).start

    @property
    def last(self) -> int:
        """The document of the last token."""
        return self.documents(self.start, self.stop).stop - 1

    @property
    def before(self) -> slice:
        """Ranks that hold earlier tokens of the first document."""
        return slice(self.bounds[self.first] // self.length, self.group.rank)

    @property
    def behind(self) -> slice:
        """Ranks that hold later tokens of the last document."""
        end = (self.bounds[self.last + 1] - 1) // self.length
        return slice(self.group.rank + 1, end + 1)

    def routes(self, causal: bool) -> tuple[list[slice], list[slice]]:
        """Senders and receivers of the sums of an exchange. Slot 0 has sums from earlier ranks, of their last
        documents. Slot 1 has sums from later ranks, of their first documents; it exists in bidirectional
        calls where the first and the last document of a shard differ. Bidirectional rows (not packed) are
        summed over all ranks, this one included."""
        if causal:
            return [self.before], [self.behind]
        if self.packed is None:
            every = slice(0, self.group.size)
            return [every], [every]
        return [self.before, self.behind], [self.behind, self.before]

    def sent(self, causal: bool) -> list[Part]:
        """The columns whose sums this rank sends, by slot: its last document, and its first one."""
        documents = [self.last] if causal or self.packed is None else [self.last, self.first]
        return [self._part(document, ()) for document in documents]

    def _part(self, document: int, slots: tuple[int, ...]) -> Part:
        """What this shard has of one document."""
        a, b = (min(max(x, self.start), self.stop) for x in self.bounds[document : document + 2])
        own = slice(document, document + 1)
        return Part(a - self.start, b - self.start, own, None, slots, a - self.bounds[document])

    def parts(self, causal: bool) -> list[Part]:
        """Each document that continues on other ranks by itself, as it adds their sums; all others in one
        packed call."""
        first, last = self.first, self.last
        if self.packed is None:
            return [self._part(0, (0,))]
        open_left, open_right = self.bounds[first] < self.start, self.bounds[last + 1] > self.stop
        slots: dict[int, tuple[int, ...]] = {}
        if open_left:
            slots[first] = (0,)
        if open_right and not causal:
            slots[last] = (*slots.get(last, ()), 1)
        found: list[Part] = []
        rest = range(first, last + 1)
        for document, own in sorted(slots.items()):
            found += self._packed_part(rest.start, document)
            found.append(self._part(document, own))
            rest = range(document + 1, last + 1)
        return found + self._packed_part(rest.start, rest.stop)

    def _packed_part(self, first: int, stop: int) -> list[Part]:
        if first >= stop or self.bounds[first] == self.bounds[stop]:
            return []
        a, b = max(self.bounds[first], self.start), min(self.bounds[stop], self.stop)
        inside = tuple(min(max(x, a), b) - a for x in self.bounds[first : stop + 1])
        return [Part(a - self.start, b - self.start, slice(first, stop), inside, (), 0)]

    def positions(self, device: torch.device) -> Tensor:
        """[1, L]: the positions of the tokens in their documents."""
        at = torch.arange(self.start, self.stop, device=device)
        if self.packed is None:
            return at[None]
        found = self.documents(self.start, self.stop)
        starts = torch.tensor(self.bounds[found], device=device)
        sizes = torch.tensor([b - a for a, b in itertools.pairwise(self.cut(self.start, self.stop)[1])])
        return (at - starts.repeat_interleave(sizes.to(device)))[None]
