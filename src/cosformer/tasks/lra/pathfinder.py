"""Pathfinder and Path-X of the Long Range Arena (Linsley et al., 2018; Tay et al., 2020,
arXiv:2011.04006)."""

import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from cosformer.tasks.base import SPLITS, Split, Task, checked_split
from cosformer.tasks.io import cache, workers
from cosformer.tasks.lra.pathfinder_glyphs import FULL, Array, Glyphs, Stimulus, discs, glyphs
from cosformer.tasks.lra.pathfinder_snakes import Snakes, grow
from cosformer.tasks.lra.pictures import PictureRows, drawn
from cosformer.tasks.metrics import Accuracy
from cosformer.tasks.registry import register
from cosformer.tasks.synthetic.tables import sizes

_PER_JOB = 256  # part of what a seed means: with another number the same seed would give other pictures
_TOY = Stimulus(
    side=8, paddles=2, paddle_length=1, apart=4, inset=2, disc=0.75, distractors=0, corner_rule=False
)
_PATH_X = Stimulus(
    side=128, paddle_length=5, thickness=1.5, margins=(2, 3), continuity=1.8, apart=20, inset=40, disc=3.0,
    contrast=0.9, distractors=8, distractor_contrast=0.9,
)  # fmt: skip


@register("pathfinder")
@dataclass(frozen=True)
class Pathfinder(Task):
    """Are two discs joined by one of two long snakes (1), or does each lie on another (0)? 32 x 32 pixels.

        input_ids   0 0 17 190 84 ... 0     (rows one after the other, values 0 to 255)
        labels      1                       (`example()` draws the picture)

    Provenance: generated from a seed, by the rules of Linsley et al. (2018) with the arena's settings for
    its hard version (two snakes of 14 paddles, up to five distractors of 4), on all cores, with the same
    result on any number of them, and cached: 160,000 / 20,000 / 20,000 pictures. One of the two long snakes
    begins near the middle, the other 7 pixels from it. A disc lies on the first tip of one of them, another
    on the far end of the same or of the other, each with probability 1/2. As in the published pictures,
    snakes sometimes touch or cross, so that a few labels do not follow from what is seen; `contact_sheet`
    shows some.

    Args:
        side: pixels along an edge: 32, as published, or 8, a toy by the same rules that a CPU begins to
            learn in a minute: two snakes of two paddles of one pixel, no distractors.
        train_rows, valid_rows, test_rows: sizes of the splits.
        seed: of the generator.
    """

    side: int = 32
    train_rows: int = 160_000
    valid_rows: int = 20_000
    test_rows: int = 20_000
    seed: int = 0

    title = "Pathfinder"
    head = "classification"
    metric = Accuracy()
    vocab_size = 256
    num_labels = 2
    pad_token_id = None
    stimuli: ClassVar[dict[int, Stimulus]] = {32: Stimulus(), 8: _TOY}

    def __post_init__(self) -> None:
        if self.side not in self.stimuli:
            known = " or ".join(map(str, self.stimuli))
            raise ValueError(f"side must be {known}, but got {self.side!r}.")

    @property
    def stimulus(self) -> Stimulus:
        return self.stimuli[self.side]

    @property
    def length(self) -> int:
        return self.side**2

    def dataset(self, split: Split) -> PictureRows:
        counts = {s: sizes(self, s) for s in SPLITS}
        key = {"version": 3, "seed": self.seed, "counts": counts, "stimulus": asdict(self.stimulus)}
        build = partial(_generate, self.stimulus, self.seed, counts)
        folder = cache.entry(self.name, key, build)
        return PictureRows(
            np.load(folder / f"{checked_split(split)}.npy", mmap_mode="r"),
            np.load(folder / f"{split}.labels.npy"),
        )

    def example(self) -> str:
        pictures, labels = pictures_of(self.stimulus, self.seed, 0, 1)
        return drawn(pictures[0], f"{labels[0]} ({('apart', 'joined')[labels[0]]})", columns=64)


@register("pathx")
@dataclass(frozen=True)
class PathX(Pathfinder):
    """Path-X: Pathfinder on 128 x 128 pixels, with longer paddles and up to eight distractors.

        input_ids   0 0 17 190 84 ... 0     (16,384 pixels, rows one after the other, values 0 to 255)
        labels      1                       (`example()` draws the picture)

    Provenance: generated as Pathfinder is, with the settings published for 128 x 128, hard, of which one is
    drawn for each picture, the margin between paddles (2 or 3 pixels): 160,000 / 20,000 / 20,000 pictures
    (3.3 GB in the cache). Long snakes with the wider margin seldom find room: a picture takes thirty times
    as long.

    Args:
        side: pixels along an edge: 128, as published, or 8: Pathfinder's toy, with the straighter snakes of
            Path-X.
    """

    side: int = 128

    title = "Path-X"
    stimuli: ClassVar[dict[int, Stimulus]] = {128: _PATH_X, 8: replace(_TOY, continuity=_PATH_X.continuity)}


def pictures_of(stimulus: Stimulus, seed: int, job: int, count: int) -> tuple[Array, Array]:
    """The first `count` pictures uint8 [count, side, side] of a job, and their labels."""
    rng = np.random.default_rng([seed, job])
    first, label = rng.integers(0, 2, (2, _PER_JOB))
    margins = rng.choice(stimulus.margins, _PER_JOB)
    pictures = np.empty((_PER_JOB, stimulus.side, stimulus.side), np.uint8)
    for margin in stimulus.margins:
        rows, table = np.flatnonzero(margins == margin), glyphs(stimulus, margin)
        snakes = grow(rng, stimulus, table, len(rows))
        pictures[rows] = draw(snakes, stimulus, table, tips(snakes, stimulus, first[rows], label[rows]))
    return pictures[:count], label[:count].astype(np.uint8)


def tips(snakes: Snakes, stimulus: Stimulus, first: Array, label: Array) -> Array:
    """[N, 2, 2]: the first tip of long snake `first` [N], and the far end of the same one (label 1) or of the
    other."""
    rows, n = np.arange(len(label)), stimulus.paddles
    second = np.where(label == 1, first, 1 - first)
    return np.stack([snakes.starts[rows, first * n], snakes.starts[rows, second * n + n - 1]], 1)


def draw(snakes: Snakes, stimulus: Stimulus, table: Glyphs, centres: Array) -> Array:
    """Pictures uint8 [N, side, side] of the paddles, with discs around centres [N, 2, 2]: of all that lies
    somewhere the brightest, stretched to 0 to 255."""
    round_, count = discs(stimulus), len(centres)
    rim = max(round_.reach, table.reach)
    canvas = np.zeros((count, stimulus.side + 2 * rim, stimulus.side + 2 * rim), np.float32)
    for i in range(snakes.starts.shape[1]):
        rows = np.flatnonzero(snakes.kinds[:, i] >= 0)
        contrast = stimulus.contrast if i < 2 * stimulus.paddles else stimulus.distractor_contrast
        glyph = table.lines[snakes.kinds[rows, i]] * np.float32(contrast)
        _brighten(canvas, rim, rows, snakes.starts[rows, i], glyph)
    for centre in (centres[:, 0], centres[:, 1]):
        _brighten(canvas, rim, np.arange(count), centre, round_.at(centre))
    canvas = canvas[:, rim:-rim, rim:-rim].astype(np.float64)
    low, high = canvas.min((1, 2), keepdims=True), canvas.max((1, 2), keepdims=True)
    return np.rint((canvas - low) * FULL / (high - low)).astype(np.uint8)


def _brighten(canvas: Array, rim: int, rows: Array, centres: Array, glyph: Array) -> None:
    """The greater of a canvas and of glyphs [N, n, n] around centres [N, 2]."""
    at = np.arange(glyph.shape[1]) - glyph.shape[1] // 2 + rim
    y, x = centres[:, 0, None] + at, centres[:, 1, None] + at
    place = rows[:, None, None], y[:, :, None], x[:, None, :]
    canvas[place] = np.maximum(canvas[place], glyph)


def _job(stimulus: Stimulus, seed: int, job: tuple[int, int]) -> tuple[Array, Array]:
    return pictures_of(stimulus, seed, *job)


def _generate(stimulus: Stimulus, seed: int, counts: dict[Split, int], folder: Path) -> None:
    """Every split begins with a job of its own."""
    places = [
        (split, slice(k, min(k + _PER_JOB, count)))
        for split, count in counts.items()
        for k in range(0, count, _PER_JOB)
    ]
    side = stimulus.side
    out = {
        split: np.lib.format.open_memmap(folder / f"{split}.npy", "w+", np.uint8, (count, side, side))
        for split, count in counts.items()
    }
    for split in out:
        _allocate(folder / f"{split}.npy")
    labels = {split: np.empty(count, np.uint8) for split, count in counts.items()}
    jobs = [(job, place.stop - place.start) for job, (_, place) in enumerate(places)]
    made = workers.ordered(partial(_job, stimulus, seed), jobs)
    for (split, place), (pictures, own) in zip(places, made, strict=True):
        out[split][place], labels[split][place] = pictures, own
    for split, array in out.items():
        array.flush()
        np.save(folder / f"{split}.labels.npy", labels[split])


def _allocate(path: Path) -> None:
    """Takes the room on the disk at once: where it is full, writing to a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def contact_sheet(task: Pathfinder, path: Path, across: int = 8, down: int = 4) -> None:
    """A PNG to look at: above the line pictures with label 1 (joined), below it those with label 0."""
    import PIL.Image

    pictures, labels = pictures_of(task.stimulus, task.seed, 0, _PER_JOB)
    zoom = max(1, 128 // task.stimulus.side)
    pictures = pictures.repeat(zoom, 1).repeat(zoom, 2)
    pictures = np.pad(pictures, ((0, 0), (1, 1), (1, 1)), constant_values=64)
    side, half = pictures.shape[1], across * down
    blocks = [
        pictures[labels == label][:half]
        .reshape(down, across, side, side)
        .swapaxes(1, 2)
        .reshape(down * side, -1)
        for label in (1, 0)
    ]
    line = np.full((6, blocks[0].shape[1]), 255, np.uint8)
    PIL.Image.fromarray(np.concatenate([blocks[0], line, blocks[1]])).save(path)
