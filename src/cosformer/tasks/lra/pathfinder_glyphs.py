"""Pathfinder's stimulus, and what a paddle and a disc of it look like, as tables.

Points are (row, column), whole pixels, rows downwards. The kinds of paddles are few: 360 whole degrees for a
snake's first, and for those behind it one for each point where they may end.
"""

import decimal
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

FULL = 255  # what one is in the tables, which are uint8
DEGREES = 360
SCALE = 2  # glyphs are drawn as many times larger and reduced
_BITS = 22  # of the weights of a reduction


@dataclass(frozen=True)
class Stimulus:
    """The published settings for 32 x 32, hard. Lengths are in pixels; a disc has contrast 1.

    Args:
        padding: rows and columns along the edges that count as taken.
        margins: between a paddle and what is not its neighbour; one is drawn for each picture.
        apart, inset: the first tips of the long snakes lie so far from each other, and the first paddle at
            least so far from the edges (published: twice `apart`).
        disc: radius.
        corner_rule: whether an orientation has no place at all, neither for the first snake nor for a
            distractor, if a first paddle begun in some corner would lie wholly outside. So the published
            search has it, which finds a value there that it takes for an error: at 32 x 32 it leaves 30
            degrees of 360.
    """

    side: int = 32
    padding: int = 1
    paddles: int = 14
    paddle_length: int = 2
    thickness: float = 0.5
    margins: tuple[int, ...] = (1,)
    continuity: float = 1.0
    apart: int = 7
    inset: int = 14
    disc: float = 1.5
    contrast: float = 1.5
    distractors: int = 5
    distractor_paddles: int = 4
    distractor_contrast: float = 2.0
    corner_rule: bool = True

    @property
    def total(self) -> int:
        """Paddles of a picture."""
        return 2 * self.paddles + self.distractors * self.distractor_paddles


class Glyphs:
    """All kinds of paddles of a stimulus with one margin: those of `DEGREES`, from -180 on, then those that
    end at each of `candidates`.

        candidates    int [K, 2], from a pivot
        forwards      [kinds, 2], the direction (sine, cosine) in which a snake goes on
        backwards     [DEGREES, 2], the opposite one
        weights       int [kinds, K]: 2**20 cos^2(continuity * turn) of a candidate behind a paddle
        lines, masks  uint8 [kinds, 2 reach + 1, 2 reach + 1], what is seen and what is taken, around a start
        near          uint8 [kinds, ...], masks wider by the margin
        cores         for each degree, int [n, 2]: what has to be free around a first paddle, from its start
        searched      bool [DEGREES]: for which of them a place is looked for
        middle        for each degree, int [n, 2]: where a picture's first paddle may start
    """

    def __init__(self, stimulus: Stimulus, margin: int):
        s, self.margin = stimulus, margin
        self.reach = s.paddle_length + math.ceil(s.thickness) + margin
        radius = s.paddle_length + margin
        around = [(radius * math.sin(k / radius), radius * math.cos(k / radius)) for k in _circle(radius)]
        ends = sorted({(math.floor(y), math.floor(x)) for y, x in around})
        self.candidates = np.array(ends)
        angles = [math.pi * d / 180 for d in range(-180, 180)] + [math.atan2(y, x) for y, x in ends]
        self.forwards = directions(angles)
        backwards = directions(a + math.pi if a < 0 else a - math.pi for a in angles)
        self.backwards = backwards[:DEGREES]
        after = angles[DEGREES:]
        self.weights = np.array([[_weight(s.continuity * _turn(a, b)) for b in after] for a in angles])
        # A later paddle is drawn from its end back to its start.
        drawn = np.concatenate([self.forwards[:DEGREES], backwards[DEGREES:]])
        middle = np.array([SCALE * self.reach] * 2)
        to = [translated(middle, d, SCALE * s.paddle_length).tolist() for d in drawn]
        large = [_line(SCALE * self.reach, y, x, round(s.thickness * SCALE)) for y, x in to]
        size = 2 * self.reach + 1
        self.lines = np.array([reduced(a, size) for a in large])
        self.masks = np.array([reduced(dilated(a, SCALE * margin), size) for a in large])
        self.near = np.array([dilated(np.pad(a, margin), margin) for a in self.masks])
        self.cores = [self._core(mask, s.paddle_length + margin) for mask in self.masks[:DEGREES]]
        self.searched = np.array([not (s.corner_rule and _leaves_a_corner(core)) for core in self.cores])
        outer = np.ones((s.side, s.side), bool)
        outer[s.inset : s.side - s.inset, s.inset : s.side - s.inset] = False
        self.middle = [
            self.places(outer, d) if found else np.zeros((0, 2), np.int64)
            for d, found in enumerate(self.searched)
        ]

    def _core(self, mask: Array, reach: int) -> Array:
        """As published, one pixel further down and to the right than the paddle, and cut off there."""
        cells = np.argwhere(mask == FULL) - self.reach + 1
        return cells[(cells <= reach).all(1)]

    def places(self, taken: Array, degree: int) -> Array:
        """[n, 2]: points of a picture, bool [side, side], around which nothing of a core is taken."""
        side, rim = len(taken), self.reach
        wide = np.pad(taken, rim, constant_values=True)
        blocked = np.zeros((side, side), bool)
        for y, x in (self.cores[degree] + rim).tolist():
            blocked |= wide[y : y + side, x : x + side]
        return np.argwhere(~blocked)


@functools.lru_cache(maxsize=8)
def glyphs(stimulus: Stimulus, margin: int) -> Glyphs:
    return Glyphs(stimulus, margin)


def directions(angles: Iterable[float]) -> Array:
    """[N, 2]: sine and cosine. At multiples of 30 degrees their last digit says which way a point is rounded,
    so it must be that of the exact value on every processor."""
    return np.array([[_series(a, a, 1), _series(a, 1.0, 0)] for a in angles])


def _series(angle: float, first: float, power: int) -> float:
    with decimal.localcontext(prec=40):
        square, term, total = -(decimal.Decimal(angle) ** 2), decimal.Decimal(first), decimal.Decimal(first)
        for k in range(power, power + 50, 2):
            term *= square / ((k + 1) * (k + 2))
            total += term
        return float(total)


def translated(points: Array, along: Array, distance: int) -> Array:
    """Points [..., 2] so far along directions [..., 2], rounded up, as published."""
    return np.ceil(points + distance * along).astype(np.int64)


def _circle(radius: int) -> range:
    """About one sample for each pixel."""
    return range(math.ceil(2 * math.pi * radius))


def _turn(a: float, b: float) -> float:
    return min(abs(a - b), 2 * math.pi - abs(a - b))


def _weight(angle: float) -> int:
    return round(2**20 * math.cos(min(angle, math.pi / 2)) ** 2)


def _leaves_a_corner(core: Array) -> bool:
    """Whether from some corner of a picture all of a core lies outside. The published search takes that for
    a picture without a free place."""
    sides = [(core * corner >= 0).all(1).any() for corner in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    return not all(sides)


def _line(middle: int, y: int, x: int, width: int) -> Array:
    """uint8 [2 middle + 1, 2 middle + 1]: a straight line from the middle to (y, x), FULL on 0."""
    out = np.zeros((2 * middle + 1, 2 * middle + 1), np.uint8)
    dy, dx = y - middle, x - middle
    if width > 1:
        return _bar(out, (middle, middle), (y, x), width)
    steps = max(abs(dy), abs(dx))
    for i in range(steps + 1):
        down, right = ((2 * i * abs(d) + steps) // (2 * steps) for d in (dy, dx))
        out[middle + (down if dy > 0 else -down), middle + (right if dx > 0 else -right)] = FULL
    return out


def _bar(out: Array, start: tuple[int, int], end: tuple[int, int], width: int) -> Array:
    """A polygon with whole corners, filled row by row up to half a pixel beyond its edges."""
    (y0, x0), (y1, x1) = start, end
    half = (width - 1) / 2 / math.hypot(y1 - y0, x1 - x0)
    down, right = (round(half * d) for d in (x1 - x0, y0 - y1))
    corners = [
        (y0 + down, x0 + right), (y1 + down, x1 + right), (y1 - down, x1 - right), (y0 - down, x0 - right),
    ]  # fmt: skip
    for y in range(min(c[0] for c in corners), max(c[0] for c in corners) + 1):
        crossed: list[float] = []
        for (ya, xa), (yb, xb) in zip(corners, corners[1:] + corners[:1], strict=True):
            if ya == yb == y:
                crossed += [xa, xb]
            elif ya != yb and min(ya, yb) <= y <= max(ya, yb):
                crossed.append(xa + (y - ya) * (xb - xa) / (yb - ya))
        out[y, math.floor(min(crossed) + 0.5) : math.ceil(max(crossed) - 0.5) + 1] = FULL
    return out


def dilated(image: Array, radius: int) -> Array:
    """[h, w]: the largest value within a radius."""
    height, width = image.shape
    wide, out = np.pad(image, radius), image.copy()
    for y in range(2 * radius + 1):
        for x in range(2 * radius + 1):
            if (y - radius) ** 2 + (x - radius) ** 2 <= radius**2:
                out = np.maximum(out, wide[y : y + height, x : x + width])
    return out


@functools.cache
def _reduction(before: int, after: int) -> Array:
    """int [after, before]: Lanczos' filter of three lobes, in parts of 2**_BITS."""
    scale = before / after
    out = np.zeros((after, before), np.int64)
    for i in range(after):
        centre = (i + 0.5) * scale
        low, high = max(0, int(centre - 3 * scale + 0.5)), min(before, int(centre + 3 * scale + 0.5))
        row = [_lanczos((j - centre + 0.5) / scale) for j in range(low, high)]
        out[i, low:high] = [round(2**_BITS * v / sum(row)) for v in row]
    return out


def _lanczos(t: float) -> float:
    if t == 0:
        return 1.0
    t *= math.pi
    return 3 * math.sin(t) * math.sin(t / 3) / t**2 if abs(t) < 3 * math.pi else 0.0


def reduced(image: Array, size: int) -> Array:
    """uint8 [..., h, w] as [..., size, size]: rows, then columns, each rounded to uint8."""
    for _ in range(2):
        image = np.swapaxes(image.astype(np.int64), -1, -2)
        image = np.matmul(_reduction(image.shape[-2], size), image)
        image = ((image + 2 ** (_BITS - 1)) >> _BITS).clip(0, FULL)
    return image.astype(np.uint8)


class Discs:
    """Discs of a stimulus. Beside an edge, where the filter has fewer pixels to go by, they differ.

    tables: uint8 [n, n, 2 reach + 1, 2 reach + 1], around each point of a small picture.
    """

    def __init__(self, stimulus: Stimulus):
        self.side = stimulus.side
        self.reach = math.ceil(stimulus.disc) + 3
        size = min(self.side, 4 * self.reach + 1)
        at = np.arange(SCALE * size)
        rows = []
        for y in range(size):
            below = (at - SCALE * y) ** 2
            beside = (at - SCALE * np.arange(size)[:, None]) ** 2
            inside = below[:, None] + beside[:, None, :] <= (SCALE * stimulus.disc) ** 2
            pictures = np.pad(reduced(inside * FULL, size), ((0, 0), *[(self.reach, self.reach)] * 2))
            rows.append(
                [p[y:, x:][: 2 * self.reach + 1, : 2 * self.reach + 1] for x, p in enumerate(pictures)]
            )
        self.tables = np.array(rows)

    def at(self, centres: Array) -> Array:
        """[N, 2 reach + 1, 2 reach + 1], around centres [N, 2]."""
        size, near = len(self.tables), len(self.tables) // 2
        far = centres - self.side + size
        place = np.where(centres < near, centres, np.where(far > near, far, near))
        return self.tables[place[:, 0], place[:, 1]]


@functools.lru_cache(maxsize=8)
def discs(stimulus: Stimulus) -> Discs:
    return Discs(stimulus)
