"""Where the paddles of Pathfinder's snakes lie: grown for many pictures at a time.

The stimulus is that of Linsley et al. (2018, arXiv:1805.08315). A snake is a row of short straight paddles;
each next one is turned against the last by an angle that is drawn with weight cos^2(continuity * turn) among
the directions that are free. Free is what keeps its distance to all other paddles, so that no two snakes
touch or cross, and no paddle of a snake comes as near to another snake as to its own neighbours. Where a long
snake has nowhere to go, the picture is given up.

Lengths are in pixels. Pictures are independent of each other: a picture that is given up is dropped from the
batch.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_HEADINGS = 48
_TRIES = 12  # beginnings of a snake that are looked at
# What a cell of the mask is taken by. The tips of long snakes carry discs, which their own first paddles may
# touch.
_PADDLE, _FIRST, _SECOND = 1, 2, 4


@dataclass(frozen=True)
class Stimulus:
    """The published settings for 32 x 32, hard."""

    side: int = 32
    paddles: int = 14
    paddle_length: float = 2.0
    thickness: float = 0.5
    gap: float = 1.0
    border: float = 1.0
    disc: float = 1.5
    apart: float = 7.0
    continuity: float = 1.0
    distractors: int = 5
    distractor_paddles: int = 4
    cells: int = 2  # of the mask, for each pixel

    @property
    def clearance(self) -> float:
        """Between the middle lines of two paddles that are not neighbours."""
        return 1.75 * self.gap + self.thickness

    @property
    def disc_clearance(self) -> float:
        """Between a disc's middle and the middle line of a paddle that does not belong there."""
        return self.disc + 1.5 * self.gap + self.thickness / 2

    @property
    def total(self) -> int:
        """Paddles of a picture."""
        return 2 * self.paddles + self.distractors * self.distractor_paddles


@dataclass(frozen=True)
class Snakes:
    """starts, ends [N, total, 2] of the paddles, as (x, y): the first long snake, the second, then
    distractors.

    Both long snakes begin at their origins.
    """

    starts: Array
    ends: Array


# A circle's cosines and sines by the standard library, whose results do not depend on the processor's
# vectors.
_TURN = 2 * math.pi / _HEADINGS
_DIRECTIONS = np.array([(math.cos(_TURN * h), math.sin(_TURN * h)) for h in range(_HEADINGS)])


class _Field:
    """The paddles laid so far, and which cells of each picture they take up.

    The mask has a margin as wide as the largest stamp, so that none is ever cut off.
    """

    def __init__(self, rng: np.random.Generator, stimulus: Stimulus, count: int):
        self.rng, self.s = rng, stimulus
        half_turns = _HEADINGS // 4
        turns = np.arange(-half_turns, half_turns + 1)
        angles = [stimulus.continuity * _TURN * int(t) for t in turns]
        # Beyond a right angle of continuity * turn the square would rise again.
        weights = np.array([math.cos(a) ** 2 if abs(a) < math.pi / 2 - 1e-9 else 0.0 for a in angles])
        self.turns, self.weights = turns[weights > 0], weights[weights > 0]
        steps = np.linspace(0, stimulus.paddle_length, math.ceil(2 * stimulus.paddle_length) + 1)
        self.points = _DIRECTIONS[:, None] * steps[:, None]  # [headings, points, 2], from a paddle's start
        self.bars = self._stamps(stimulus.paddle_length / 2, stimulus.clearance)
        # Half a cell more, for what is lost by cutting the plane into cells.
        self.discs = self._stamps(0.0, stimulus.disc_clearance + 0.5 / stimulus.cells)[:1]
        self.margin = max(self.bars.shape[1], self.discs.shape[1]) // 2 + 1
        size = stimulus.side * stimulus.cells + 2 * self.margin
        self.mask = np.zeros((count, size, size), np.uint8)
        self.starts = np.empty((count, stimulus.total, 2))
        self.ends = np.empty((count, stimulus.total, 2))
        self.laid = 0

    def __len__(self) -> int:
        return len(self.mask)

    def keep(self, alive: Any) -> None:
        """Gives up all pictures but those of alive, bool [B]."""
        if not alive.all():
            self.mask, self.starts, self.ends = self.mask[alive], self.starts[alive], self.ends[alive]

    def part(self, rows: Array) -> "_Field":
        """Copies of some pictures, to try something on."""
        part = copy.copy(self)
        part.mask, part.starts, part.ends = self.mask[rows], self.starts[rows], self.ends[rows]
        return part

    def put(self, rows: Array, part: "_Field") -> None:
        """What went well on copies."""
        self.mask[rows], self.starts[rows], self.ends[rows] = part.mask, part.starts, part.ends

    def _stamps(self, half: float, radius: float) -> Array:
        """[headings, n, n]: the cells nearer than a radius to a bar of that half length around the middle."""
        reach = math.ceil((half + radius) * self.s.cells)
        at = np.arange(-reach, reach + 1) / self.s.cells
        x, y = at[None, :], at[:, None]
        stamps = []
        for cosine, sine in _DIRECTIONS:
            along, across = x * cosine + y * sine, y * cosine - x * sine
            beyond = np.maximum(abs(along) - half, 0)
            stamps.append(beyond * beyond + across * across < radius * radius)
        return np.array(stamps)

    def stamp(self, stamps: Array, kinds: Array, centres: Array, value: int) -> None:
        """Takes the cells around centres [B, 2]."""
        corner = np.floor(centres * self.s.cells).astype(np.int64) + self.margin - stamps.shape[1] // 2
        offset = np.arange(stamps.shape[1])
        x, y = corner[:, 0, None] + offset, corner[:, 1, None] + offset  # [B, n]
        place = np.arange(len(self))[:, None, None], y[:, :, None], x[:, None, :]
        self.mask[place] |= stamps[kinds] * np.uint8(value)

    def free(self, starts: Array, headings: Array, forbidden: int, border: float) -> Array:
        """bool like headings [B, K]: whether a paddle from starts [B, K, 2] touches nothing forbidden."""
        ends = starts + self.points[headings, -1]
        low, high = border, self.s.side - border
        both = np.stack([starts, ends], 3)
        inside = np.logical_and(both >= low, both <= high).all((2, 3))
        cells = (starts[:, :, None] + self.points[headings]) * self.s.cells + self.margin  # [B, K, P, 2]
        cells = cells.astype(np.int32).clip(0, self.mask.shape[1] - 1)
        taken = self.mask[np.arange(len(self))[:, None, None], cells[..., 1], cells[..., 0]]
        return np.logical_and(inside, ((taken & np.uint8(forbidden)) == 0).all(2))

    def lay(self, starts: Array, headings: Array) -> None:
        self.starts[:, self.laid] = starts
        self.ends[:, self.laid] = starts + self.s.paddle_length * _DIRECTIONS[headings]
        self.laid += 1

    def take(self, paddle: int, headings: Array) -> None:
        """The mask learns of a paddle."""
        centres = (self.starts[:, paddle] + self.ends[:, paddle]) / 2
        self.stamp(self.bars, headings, centres, _PADDLE)

    def draw(self, weights: Array) -> tuple[Array, Array]:
        """One column of weights [B, K] for each row, and whether there was any to choose."""
        sums = weights.cumsum(1)
        limit = self.rng.random(len(weights)) * sums[:, -1]
        return (sums > limit[:, None]).argmax(1), sums[:, -1] > 0


def grow(rng: np.random.Generator, stimulus: Stimulus, count: int) -> Snakes:
    """Begins so many pictures and returns those that could be finished."""
    field = _Field(rng, stimulus, count)
    origins = _origins(field)
    for snake, disc in enumerate((_FIRST, _SECOND)):
        origins = _grow_long(field, origins, snake, disc)
    field.keep(_discs_are_clear(field))
    for tip in (field.ends[:, stimulus.paddles - 1], field.ends[:, 2 * stimulus.paddles - 1]):
        field.stamp(field.discs, np.zeros(len(field), np.int64), tip, _FIRST)
    for _ in range(stimulus.distractors):
        _lay_distractor(field)
    return Snakes(field.starts, field.ends)


def _origins(field: _Field) -> Array:
    """[B, 2, 2]: two points at a given distance, with room for discs around them."""
    s, rng, count = field.s, field.rng, len(field)
    margin = s.border + s.disc
    first = margin + rng.random((count, 1, 2)) * (s.side - 2 * margin)
    headings = rng.integers(0, _HEADINGS, (count, _TRIES))
    second = first + s.apart * _DIRECTIONS[headings]
    low, high = margin, s.side - margin
    inside = (
        (second[..., 0] >= low)
        & (second[..., 0] <= high)
        & (second[..., 1] >= low)
        & (second[..., 1] <= high)
    )
    chosen, alive = inside.argmax(1), inside.any(1)
    field.keep(alive)
    origins = np.concatenate([first, second[np.arange(count), chosen][:, None]], 1)[alive]
    for i, disc in enumerate((_FIRST, _SECOND)):
        field.stamp(field.discs, np.zeros(len(field), np.int64), origins[:, i], disc)
    return origins


def _grow_long(field: _Field, origins: Array, snake: int, disc: int) -> Array:
    """A long snake from its origin; the origins of the pictures that are left."""
    s, other = field.s, _FIRST + _SECOND - disc
    headings = field.rng.integers(0, _HEADINGS, (len(field), _TRIES))
    starts = np.broadcast_to(origins[:, snake, None], (len(field), _TRIES, 2))
    good = field.free(starts, headings, _PADDLE | other, s.border)
    alive = good.any(1)
    first = headings[np.arange(len(field)), good.argmax(1)]
    field.keep(alive)
    origins, heading = origins[alive], first[alive]
    field.lay(origins[:, snake], heading)
    for i in range(1, s.paddles):
        # A snake may leave its own disc, but not come back.
        forbidden = _PADDLE | other | (disc if i > 2 else 0)
        margin = s.border + (s.disc if i == s.paddles - 1 else 0)
        heading, alive = _extend(field, heading, forbidden, margin)
        origins = origins[alive]
    field.take(field.laid - 1, heading)
    return origins


def _extend(field: _Field, heading: Array, forbidden: int, margin: float) -> tuple[Array, Array]:
    """Lays the next paddle: its heading in each picture that is left, and which of them are left."""
    candidates = (heading[:, None] + field.turns) % _HEADINGS
    starts = field.ends[:, field.laid - 1, None] + field.s.gap * _DIRECTIONS[candidates]
    weights = field.weights * field.free(starts, candidates, forbidden, margin)
    chosen, alive = field.draw(weights)
    rows = np.flatnonzero(alive)
    chosen = chosen[alive]
    field.keep(alive)
    field.lay(starts[rows, chosen], candidates[rows, chosen])
    # The paddle before becomes an obstacle only now: its neighbour had to come near.
    field.take(field.laid - 2, heading[alive])
    return candidates[rows, chosen], alive


def _lay_distractor(field: _Field) -> None:
    """A short snake anywhere; where it comes to a dead end, another one is tried."""
    waiting = np.arange(len(field))
    laid = field.laid
    for _ in range(_TRIES):
        part = field.part(waiting)
        grown = _grow_distractor(part)
        field.put(waiting[grown], part)
        waiting = np.delete(waiting, grown)
        if not len(waiting):
            break
    field.laid = laid + field.s.distractor_paddles
    field.keep(~np.isin(np.arange(len(field)), waiting))


def _grow_distractor(field: _Field) -> Array:
    """Grows one in each picture, and says in which of them it was finished; only these are left."""
    s, everything = field.s, _PADDLE | _FIRST | _SECOND
    starts = s.border + field.rng.random((len(field), _TRIES, 2)) * (s.side - 2 * s.border)
    headings = field.rng.integers(0, _HEADINGS, (len(field), _TRIES))
    good = field.free(starts, headings, everything, s.border)
    chosen, left = good.argmax(1), np.flatnonzero(good.any(1))
    field.keep(good.any(1))
    heading = headings[left, chosen[left]]
    field.lay(starts[left, chosen[left]], heading)
    for _ in range(1, s.distractor_paddles):
        heading, alive = _extend(field, heading, everything, s.border)
        left = left[alive]
    field.take(field.laid - 1, heading)
    return left


def _discs_are_clear(field: _Field) -> Array:
    """bool [B]: whether discs at the four tips would meet neither each other nor paddles far from their own
    tip."""
    s, n = field.s, field.s.paddles
    starts, ends = field.starts[:, : 2 * n], field.ends[:, : 2 * n]
    tips = np.stack([starts[:, 0], ends[:, n - 1], starts[:, n], ends[:, 2 * n - 1]], 1)
    clear = np.ones(len(field), bool)
    for i, near in enumerate((range(2), range(n - 2, n), range(n, n + 2), range(2 * n - 2, 2 * n))):
        for j in range(i):
            clear &= _squared(tips[:, i] - tips[:, j]) > (2 * s.disc + 1.5 * s.gap) ** 2
        others = [paddle for paddle in range(2 * n) if paddle not in near]
        distance = distances(tips[:, i, None], starts[:, others], ends[:, others])
        clear &= (distance > s.disc_clearance).all(1)
    return clear


def distances(points: Array, starts: Array, ends: Array) -> Array:
    """From points [..., 2] to the bars between starts and ends [..., 2]."""
    bar, towards = ends - starts, points - starts
    along = ((towards * bar).sum(-1) / _squared(bar)).clip(0, 1)
    return np.sqrt(_squared(towards - along[..., None] * bar))


def _squared(vectors: Array) -> Array:
    return (vectors * vectors).sum(-1)
