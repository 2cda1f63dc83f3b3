"""Where the paddles of Pathfinder's snakes lie, by the rules of Linsley et al. (2018, arXiv:1805.08315).

A snake is a row of straight paddles. Behind each a pivot moves on by a paddle and two margins; the next
paddle ends on a circle around it, at a point drawn with weight cos^2(continuity * turn) among those that
are free. What is free says a mask, which learns of a paddle when its snake goes on. Mask and paddle may add
up to less than 1.8, where 1 is full, so snakes come near to one another and sometimes touch. Where a long
snake finds no way in three draws, the picture is given up.

Many pictures grow at a time, and do not know of each other.
"""

from dataclasses import dataclass

import numpy as np

from cosformer.tasks.lra.pathfinder_glyphs import DEGREES, FULL, Array, Glyphs, Stimulus, translated

_LEAST = 1e-4 * FULL * 2**20  # the weight of all candidates below which there is no way on
_OVERLAP = 459  # 1.8, of a mask and of a paddle's own, in parts of FULL; as published, 1.8 itself is too much
_TAKEN = 0.3 * FULL  # of a mask, where a distractor begins
_DRAWS = 3
_ATTEMPTS = 5  # at a distractor


@dataclass(frozen=True)
class Snakes:
    """Of N pictures: starts int [N, total, 2] and kinds [N, total] of their paddles: the first long snake,
    the second, then distractors, with kind -1 where one could not be laid.

    A snake's first paddle starts at its tip and lies along its direction. A later one starts at its far end
    and lies back towards its snake.
    """

    starts: Array
    kinds: Array


class Field:
    """The masks of many pictures, uint8 [N, size, size] with a rim as wide as a glyph reaches.

    All beyond the edges is full, as the rows and columns along them are.
    """

    def __init__(self, stimulus: Stimulus, glyphs: Glyphs, rng: np.random.Generator, count: int):
        self.s, self.glyphs, self.rng = stimulus, glyphs, rng
        self.rim = glyphs.reach + glyphs.margin + 1
        self.size = stimulus.side + 2 * self.rim
        self.mask, self.near = np.full((2, count, self.size, self.size), FULL, np.uint8)
        edge = self.rim + stimulus.padding
        for masks, width in ((self.mask, edge), (self.near, edge + glyphs.margin)):
            masks[:, width:-width, width:-width] = 0
        self.starts = np.zeros((count, stimulus.total, 2), np.int64)
        self.kinds = np.full((count, stimulus.total), -1)
        self.pivots = np.zeros((count, stimulus.total, 2), np.int64)

    def __len__(self) -> int:
        return len(self.mask)

    def keep(self, rows: Array) -> None:
        for name in ("mask", "near", "starts", "kinds", "pivots"):
            setattr(self, name, getattr(self, name)[rows])

    def _cells(self, points: Array) -> Array:
        """The number of a cell in its picture."""
        return ((points + self.rim) * (self.size, 1)).sum(-1)

    def _patch(self, rows: Array, starts: Array, width: int) -> Array:
        """[R, width^2]: numbers in all pictures of the cells around starts."""
        offset = np.arange(width) - width // 2
        patch = (offset[:, None] * self.size + offset).reshape(-1)
        return (rows * self.size**2 + self._cells(starts))[:, None] + patch

    def fits(self, rows: Array, starts: Array, kinds: Array) -> Array:
        masks = self.glyphs.masks
        own = masks.reshape(len(masks), -1)[kinds].astype(np.int16)
        return (self.mask.reshape(-1)[self._patch(rows, starts, masks.shape[1])] + own).max(1) < _OVERLAP

    def take(self, rows: Array, paddle: int) -> None:
        """The masks learn of a paddle."""
        starts, kinds = self.starts[rows, paddle], self.kinds[rows, paddle]
        for masks, own in ((self.mask, self.glyphs.masks), (self.near, self.glyphs.near)):
            cells, flat = self._patch(rows, starts, own.shape[1]), masks.reshape(-1)
            flat[cells] = np.maximum(flat[cells], own.reshape(len(own), -1)[kinds])

    def begin(self, rows: Array, paddle: int, tips: Array, kinds: Array) -> None:
        self.starts[rows, paddle], self.kinds[rows, paddle] = tips, kinds
        self.pivots[rows, paddle] = begun(self.s, self.glyphs, tips, kinds)[1]

    def extend(self, rows: Array, paddle: int) -> Array:
        """Lays the paddle behind the one of that number; the rows in which it found a way."""
        g, kinds = self.glyphs, self.kinds[rows, paddle]
        pivots = translated(self.pivots[rows, paddle], g.forwards[kinds], self.s.paddle_length + 2 * g.margin)
        ends = pivots[:, None] + g.candidates  # [R, K, 2]
        inside = inside_of(self.s.side, ends)
        cells = np.where(inside, self._cells(ends), 0) + (rows * self.size**2)[:, None]
        free = np.where(inside, FULL - self.near.reshape(-1)[cells].astype(np.int64), 0)
        weights = (g.weights[kinds] * free).cumsum(1)
        chosen, found = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
        left = np.flatnonzero(weights[:, -1] >= _LEAST)
        for _ in range(_DRAWS):
            limit = (self.rng.random(len(left)) * weights[left, -1]).astype(np.int64)
            chosen[left] = (weights[left] > limit[:, None]).argmax(1)
            fits = self.fits(rows[left], ends[left, chosen[left]], DEGREES + chosen[left])
            found[left[fits]] = True
            left = left[~fits]
        rows, chosen = rows[found], chosen[found]
        self.starts[rows, paddle + 1] = ends[found, chosen]
        self.kinds[rows, paddle + 1] = DEGREES + chosen
        self.pivots[rows, paddle + 1] = pivots[found]
        self.take(rows, paddle)
        return rows


def inside_of(side: int, points: Array) -> Array:
    return np.all(np.logical_and(points >= 0, points < side), axis=-1)


def begun(s: Stimulus, g: Glyphs, tips: Array, kinds: Array) -> tuple[Array, Array]:
    """Far end and pivot of first paddles."""
    heads = translated(tips, g.forwards[kinds], s.paddle_length)
    return heads, translated(heads, g.backwards[kinds], s.paddle_length + g.margin)


def grow(rng: np.random.Generator, stimulus: Stimulus, glyphs: Glyphs, count: int) -> Snakes:
    """`count` pictures."""
    parts: list[Field] = []
    while sum(map(len, parts)) < count:
        parts.append(_long_snakes(rng, stimulus, glyphs, max(512, 8 * count)))
    field = parts[0]
    for name in ("mask", "near", "starts", "kinds", "pivots"):
        setattr(field, name, np.concatenate([getattr(p, name) for p in parts])[:count])
    for i in range(stimulus.distractors):
        _distractor(field, 2 * stimulus.paddles + i * stimulus.distractor_paddles)
    return Snakes(field.starts, field.kinds)


def _long_snakes(rng: np.random.Generator, s: Stimulus, g: Glyphs, count: int) -> Field:
    """Begins `count` pictures, and returns those whose long snakes could be finished."""
    field = Field(s, g, rng, count)
    rows = np.arange(count)
    tips, kinds = _first_tips(field, count)
    field.begin(rows, 0, tips, kinds)
    for _ in range(_DRAWS):
        kinds = rng.integers(0, DEGREES, len(rows))
        away = s.apart * g.forwards[rng.integers(0, DEGREES, len(rows))]
        tips = np.rint(field.starts[rows, 0] + away).astype(np.int64)
        good = np.logical_and.reduce([inside_of(s.side, p) for p in (tips, *begun(s, g, tips, kinds))])
        field.begin(rows[good], s.paddles, tips[good], kinds[good])
        rows = rows[~good]
    rows = np.flatnonzero(field.kinds[:, s.paddles] >= 0)
    for i in range(s.paddles - 1):
        for first in (0, s.paddles):
            rows = field.extend(rows, first + i)
    field.keep(rows)
    # As published, only the second snake's last paddle is taken when both are done.
    field.take(np.arange(len(rows)), 2 * s.paddles - 1)
    return field


def _first_tips(field: Field, count: int) -> tuple[Array, Array]:
    """Tips [count, 2] and kinds of the first paddles, near the middle. All orientations that have a place are
    equally likely, and so are the places of each."""
    places, rng = field.glyphs.middle, field.rng
    kinds = rng.choice([k for k, found in enumerate(places) if len(found)], count)
    draws = rng.random(count)
    tips = [places[k][int(draw * len(places[k]))] for k, draw in zip(kinds.tolist(), draws, strict=True)]
    return np.array(tips), kinds


def _distractor(field: Field, paddle: int) -> None:
    """A short snake anywhere, by five attempts."""
    n = field.s.distractor_paddles
    waiting = np.arange(len(field))
    for _ in range(_ATTEMPTS):
        begun_in = _begin_anywhere(field, waiting, paddle)
        before = field.mask[begun_in], field.near[begun_in]
        rows = begun_in
        for i in range(n - 1):
            rows = field.extend(rows, paddle + i)
        field.take(rows, paddle + n - 1)
        lost = ~np.isin(begun_in, rows)
        field.mask[begun_in[lost]], field.near[begun_in[lost]] = before[0][lost], before[1][lost]
        waiting = np.setdiff1d(waiting, rows)
        field.kinds[waiting, paddle : paddle + n] = -1


def _begin_anywhere(field: Field, rows: Array, paddle: int) -> Array:
    """Lays the first paddle of a distractor; the rows in which there was a place for it."""
    s, g, rng = field.s, field.glyphs, field.rng
    found, inner = [], slice(field.rim, -field.rim)
    for _ in range(_DRAWS):
        kinds, draws = rng.integers(0, DEGREES, len(rows)), rng.random(len(rows))
        looked = g.searched[kinds]
        again = []
        for row, kind, draw in zip(rows[looked], kinds[looked], draws[looked], strict=True):
            places = g.places(field.mask[row, inner, inner] > _TAKEN, kind)
            if len(places):
                tip = places[int(draw * len(places))]
                if all(inside_of(s.side, p) for p in begun(s, g, tip, kind)):
                    field.begin(row, paddle, tip, kind)
                    found.append(row)
                else:
                    again.append(row)
        rows = np.array(again, np.int64)
    return np.array(sorted(found), np.int64)
