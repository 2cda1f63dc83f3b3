"""Where the paddles of Pathfinder's snakes lie: grown for many pictures at a time.

The stimulus is that of Linsley et al. (2018, arXiv:1805.08315). A snake is a row of short straight paddles;
each next one is turned against the last by an angle that is drawn with weight cos^2(continuity * turn) among
the directions that are free. Free is what keeps its distance to all other paddles, so that no two snakes
touch or cross, and no paddle of a snake comes as near to another snake as to its own neighbours. Where a long
snake has nowhere to go, the picture is given up.

Pictures are independent of each other: a picture that is given up is dropped from the
batch.
"""

from dataclasses import dataclass

import numpy as np

from cosformer.tasks.lra.pathfinder_field import (
    DIRECTIONS,
    FIRST,
    HEADINGS,
    PADDLE,
    SECOND,
    Array,
    Field,
    Stimulus,
)

_TRIES = 12  # beginnings of a snake that are looked at


@dataclass(frozen=True)
class Snakes:
    """starts, ends [N, total, 2] of the paddles, as (x, y): the first long snake, the second, then
    distractors.

    Both long snakes begin at their origins.
    """

    starts: Array
    ends: Array


def grow(rng: np.random.Generator, stimulus: Stimulus, count: int) -> Snakes:
    """Begins `count` pictures and returns those that could be finished."""
    field = Field(rng, stimulus, count)
    origins = _origins(field)
    for snake, disc in enumerate((FIRST, SECOND)):
        origins = _grow_long(field, origins, snake, disc)
    field.keep(_discs_are_clear(field))
    for tip in (field.ends[:, stimulus.paddles - 1], field.ends[:, 2 * stimulus.paddles - 1]):
        field.stamp(field.discs, np.zeros(len(field), np.int64), tip, FIRST)
    for _ in range(stimulus.distractors):
        _lay_distractor(field)
    return Snakes(field.starts, field.ends)


def _origins(field: Field) -> Array:
    """[B, 2, 2]: a point near the middle and one at a given distance, with room for discs around them."""
    s, rng, count = field.s, field.rng, len(field)
    margin = s.border + s.disc
    first = s.inset + rng.random((count, 1, 2)) * (s.side - 2 * s.inset)
    headings = rng.integers(0, HEADINGS, (count, _TRIES))
    second = first + s.apart * DIRECTIONS[headings]
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
    for i, disc in enumerate((FIRST, SECOND)):
        field.stamp(field.discs, np.zeros(len(field), np.int64), origins[:, i], disc)
    return origins


def _grow_long(field: Field, origins: Array, snake: int, disc: int) -> Array:
    """A long snake from its origin; the origins of the pictures that are left."""
    s, other = field.s, FIRST + SECOND - disc
    headings = field.rng.integers(0, HEADINGS, (len(field), _TRIES))
    starts = np.broadcast_to(origins[:, snake, None], (len(field), _TRIES, 2))
    good = field.free(starts, headings, PADDLE | other, s.border)
    alive = good.any(1)
    first = headings[np.arange(len(field)), good.argmax(1)]
    field.keep(alive)
    origins, heading = origins[alive], first[alive]
    field.lay(origins[:, snake], heading)
    for i in range(1, s.paddles):
        # A snake may leave its own disc, but not come back.
        forbidden = PADDLE | other | (disc if i > 2 else 0)
        margin = s.border + (s.disc if i == s.paddles - 1 else 0)
        heading, alive = _extend(field, heading, forbidden, margin)
        origins = origins[alive]
    field.take(field.laid - 1, heading)
    return origins


def _extend(field: Field, heading: Array, forbidden: int, margin: float) -> tuple[Array, Array]:
    """Lays the next paddle: its heading in each picture that is left, and which of them are left."""
    candidates = (heading[:, None] + field.turns) % HEADINGS
    starts = field.ends[:, field.laid - 1, None] + field.s.gap * DIRECTIONS[candidates]
    weights = field.weights * field.free(starts, candidates, forbidden, margin)
    chosen, alive = field.draw(weights)
    rows = np.flatnonzero(alive)
    chosen = chosen[alive]
    field.keep(alive)
    field.lay(starts[rows, chosen], candidates[rows, chosen])
    # The paddle before becomes an obstacle only now: its neighbour had to come near.
    field.take(field.laid - 2, heading[alive])
    return candidates[rows, chosen], alive


def _lay_distractor(field: Field) -> None:
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


def _grow_distractor(field: Field) -> Array:
    """Grows one in each picture, and says in which of them it was finished; only these are left."""
    s, everything = field.s, PADDLE | FIRST | SECOND
    starts = s.border + field.rng.random((len(field), _TRIES, 2)) * (s.side - 2 * s.border)
    headings = field.rng.integers(0, HEADINGS, (len(field), _TRIES))
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


def _discs_are_clear(field: Field) -> Array:
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
