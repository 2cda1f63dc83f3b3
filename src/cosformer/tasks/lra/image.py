"""Image of the Long Range Arena: CIFAR-10 in grey (Krizhevsky, 2009), pixel by pixel."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cosformer.ops.checks import flag, positive_int
from cosformer.tasks.base import Split, Task, checked_split
from cosformer.tasks.io import cache, sources
from cosformer.tasks.lra.pictures import Array, PictureRows, drawn, read_grey
from cosformer.tasks.metrics import Accuracy
from cosformer.tasks.registry import register

CLASSES = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")
_SHEETS = (*(f"gray_train{i}" for i in range(1, 6)), "gray_test")
_SIDE = 32
_COUNTS = {"y_train": 50_000, "y_test": 10_000}
_ADVICE = (
    "It holds 100 x 100 pictures of CIFAR-10 in grey (0.2989 R + 0.5870 G + 0.1140 B), row by row in the "
    "official order; make it from the pictures of www.cs.toronto.edu/~kriz/cifar.html."
)


@register("image")
@dataclass(frozen=True)
class Image(Task):
    """What is on a picture of 32 x 32 grey pixels, read as a sequence of 1,024: one of ten classes.

        input_ids   61 60 63 55 ... 142     (rows one after the other, values 0 to 255)
        labels      6                       (a frog)

    Provenance: CIFAR-10 in grey, as `cifar10/gray_{train1..5,test}.png` and `cifar10/labels.json` (y_train,
    y_test). 50,000 / 10,000 pictures, balanced; as in the Long Range Arena the last tenth of train is valid:
    45,000 / 5,000 / 10,000.

    Args:
        side: pixels along an edge, a divisor of 32: each is the mean of a block of the original ones.
        official: whether there must be as many pictures.
    """

    side: int = _SIDE
    official: bool = True

    title = "Image"
    head = "classification"
    metric = Accuracy()
    vocab_size = 256
    num_labels = 10
    pad_token_id = None

    def __post_init__(self) -> None:
        if _SIDE % positive_int("side", self.side):
            raise ValueError(f"side must be a divisor of {_SIDE}, but got {self.side}.")
        flag("official", self.official)

    @property
    def length(self) -> int:
        return self.side**2

    def dataset(self, split: Split) -> PictureRows:
        checked_split(split)
        sheets = [sources.find(f"cifar10/{name}.png", advice=_ADVICE) for name in _SHEETS]
        labels = sources.find("cifar10/labels.json", advice=_ADVICE)
        files = [sources.identity(path) for path in (*sheets, labels)]
        key = {"version": 1, "files": files, "official": self.official}
        folder = cache.entry("image", key, partial(_build, sheets, labels, self.official))
        part = "test" if split == "test" else "train"
        pictures = np.load(folder / f"{part}.npy", mmap_mode="r")
        numbers = np.load(folder / f"{part}.labels.npy")
        train = len(numbers) * 9 // 10
        own = {"train": slice(train), "valid": slice(train, None), "test": slice(None)}[split]
        return PictureRows(_shrunk(pictures[own], self.side), numbers[own])

    def example(self) -> str:
        rows = self.dataset("train")
        label = int(rows.labels[0])
        return drawn(rows.pictures[0], f"{label} ({CLASSES[label]})")


def _shrunk(pictures: Array, side: int) -> Array:
    """[N, 32, 32] to [N, side, side]; as they are, still memory-mapped, where that is 32."""
    if side == _SIDE:
        return pictures
    block = _SIDE // side
    means = pictures.reshape(-1, side, block, side, block).mean((2, 4), dtype=np.float32)
    return means.astype(np.uint8)


def _build(sheets: list[Path], labels: Path, official: bool, folder: Path) -> None:
    numbers = _labels(labels, official)
    for part, own in (("train", sheets[:-1]), ("test", sheets[-1:])):
        pictures = np.concatenate([_cut(path) for path in own])
        if len(pictures) != len(numbers[part]):
            raise sources.bad(
                labels, None, f"{len(numbers[part]):,} labels for {len(pictures):,} pictures of {part}"
            )
        np.save(folder / f"{part}.npy", pictures)
        np.save(folder / f"{part}.labels.npy", numbers[part])


def _cut(path: Path) -> Array:
    """The pictures [N, 32, 32] of a sheet, row by row."""
    sheet = read_grey(path)
    height, width = sheet.shape
    if height % _SIDE or width % _SIDE:
        raise sources.bad(
            path, None, f"a sheet is rows of pictures of 32 x 32 pixels, and not {width} x {height}"
        )
    cells = sheet.reshape(height // _SIDE, _SIDE, width // _SIDE, _SIDE).swapaxes(1, 2)
    return cells.reshape(-1, _SIDE, _SIDE)


def _labels(path: Path, official: bool) -> dict[str, Array]:
    try:
        found = json.loads(b"".join(sources.pieces(path, limit=1 << 26)))
        parts = {name: list(found[name]) for name in _COUNTS}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError) as error:
        raise sources.bad(path, None, f"JSON with y_train and y_test is expected ({error!r})") from error
    for name, part in parts.items():
        sources.counted(path, len(part), (_COUNTS[name],) if official else (), f"labels in {name}")
        for i, label in enumerate(part):
            if label not in range(10):
                raise sources.bad(path, None, f"{name}[{i}] must be a class from 0 to 9, but it is {label!r}")
    return {name.removeprefix("y_"): np.array(part, np.uint8) for name, part in parts.items()}
