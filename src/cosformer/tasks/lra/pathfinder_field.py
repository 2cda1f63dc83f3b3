"""Pathfinder's stimulus, and the field its paddles are laid on, of many pictures at a time.

A field knows which cells of a picture are taken, so that whether a paddle would come too near to others is
a look into a table. Lengths are in pixels.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HEADINGS = 48
# A circle's cosines and sines by the standard library, whose results do not depend on the processor's
# vectors.
_TURN = 2 * math.pi / HEADINGS
DIRECTIONS = np.array([(math.cos(_TURN * h), math.sin(_TURN * h)) for h in range(HEADINGS)])

# What a cell is taken by: a paddle, or a disc at a tip of the first or the second long snake.
PADDLE, FIRST, SECOND = 1, 2, 4


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
    def inset(self) -> float:
        """Between an edge and the first origin, at least: twice the distance of the origins, as published, so
        that they lie near the middle. A toy, which has no room for that, keeps the room of a disc."""
        return 2 * self.apart if 4 * self.apart < self.side else self.border + self.disc

    @property
    def total(self) -> int:
        """Paddles of a picture."""
        return 2 * self.paddles + self.distractors * self.distractor_paddles


class Field:
    """The paddles laid so far, and which cells of each picture they take up.

    The mask has a margin as wide as the largest stamp, so that none is ever cut off.
    """

    def __init__(self, rng: np.random.Generator, stimulus: Stimulus, count: int):
        self.rng, self.s = rng, stimulus
        half_turns = HEADINGS // 4
        turns = np.arange(-half_turns, half_turns + 1)
        angles = [stimulus.continuity * _TURN * int(t) for t in turns]
        # Beyond a right angle of continuity * turn the square would rise again.
        weights = np.array([math.cos(a) ** 2 if abs(a) < math.pi / 2 - 1e-9 else 0.0 for a in angles])
        self.turns, self.weights = turns[weights > 0], weights[weights > 0]
        # Points of a paddle that are looked at: between two of them nothing round and so wide fits.
        steps = np.linspace(0, stimulus.paddle_length, math.ceil(stimulus.paddle_length / stimulus.gap) + 1)
        self.points = DIRECTIONS[:, None] * steps[:, None]  # [headings, points, 2], from a paddle's start
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

    def part(self, rows: Array) -> "Field":
        """Copies of some pictures, to try something on."""
        part = copy.copy(self)
        part.mask, part.starts, part.ends = self.mask[rows], self.starts[rows], self.ends[rows]
        return part

    def put(self, rows: Array, part: "Field") -> None:
        """What went well on copies."""
        self.mask[rows], self.starts[rows], self.ends[rows] = part.mask, part.starts, part.ends

    def _stamps(self, half: float, radius: float) -> Array:
        """[headings, n, n]: the cells nearer than a radius to a bar of that half length around the middle."""
        reach = math.ceil((half + radius) * self.s.cells)
        at = np.arange(-reach, reach + 1) / self.s.cells
        x, y = at[None, :], at[:, None]
        stamps = []
        for cosine, sine in DIRECTIONS:
            along, across = x * cosine + y * sine, y * cosine - x * sine
            beyond = np.maximum(abs(along) - half, 0)
            stamps.append(beyond * beyond + across * across < radius * radius)
        return np.array(stamps)

    def stamp(self, stamps: Array, kinds: Array, centres: Array, value: int) -> None:
        """Takes the cells around centres [B, 2]."""
        size, width = self.mask.shape[1], stamps.shape[1]
        corner = np.floor(centres * self.s.cells).astype(np.int64) + self.margin - width // 2
        first = (np.arange(len(self)) * size + corner[:, 1]) * size + corner[:, 0]
        patch = (np.arange(width)[:, None] * size + np.arange(width)).reshape(-1)
        # By the numbers of cells in the whole, which is faster than by picture, row and column.
        cells, taken = first[:, None] + patch, self.mask.reshape(-1)
        taken[cells] |= (stamps * np.uint8(value)).reshape(len(stamps), -1)[kinds]

    def free(self, starts: Array, headings: Array, forbidden: int, border: float) -> Array:
        """bool like headings [B, K]: whether a paddle from starts [B, K, 2] touches nothing forbidden."""
        ends = starts + self.points[headings, -1]
        low, high = border, self.s.side - border
        both = np.stack([starts, ends], 3)
        inside = np.logical_and(both >= low, both <= high).all((2, 3))
        size = self.mask.shape[1]
        points = (starts[:, :, None] + self.points[headings]) * self.s.cells + self.margin  # [B, K, P, 2]
        cells = points.astype(np.int64).clip(0, size - 1)
        rows = np.arange(len(self))[:, None, None] * size
        taken = self.mask.reshape(-1)[(rows + cells[..., 1]) * size + cells[..., 0]]
        return np.logical_and(inside, ((taken & np.uint8(forbidden)) == 0).all(2))

    def lay(self, starts: Array, headings: Array) -> None:
        self.starts[:, self.laid] = starts
        self.ends[:, self.laid] = starts + self.s.paddle_length * DIRECTIONS[headings]
        self.laid += 1

    def take(self, paddle: int, headings: Array) -> None:
        """The mask learns of a paddle."""
        centres = (self.starts[:, paddle] + self.ends[:, paddle]) / 2
        self.stamp(self.bars, headings, centres, PADDLE)

    def draw(self, weights: Array) -> tuple[Array, Array]:
        """One column of weights [B, K] for each row, and whether there was any to choose."""
        sums = weights.cumsum(1)
        limit = self.rng.random(len(weights)) * sums[:, -1]
        return (sums > limit[:, None]).argmax(1), sums[:, -1] > 0
