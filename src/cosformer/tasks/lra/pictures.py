"""Pictures as sequences: a pixel is a token, its grey value from 0 to 255, row by row."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosformer.tasks.base import Row, Rows, row_number
from cosformer.tasks.io.sources import DataError, bad

Array = np.ndarray[Any, np.dtype[Any]]


MOST = 1 << 26  # pixels of a picture; a sheet of CIFAR-10 has 10,240,000


def read_grey(path: Path) -> Array:
    """The grey PNG [height, width] of a file all of whose checksums are right; nothing is unpacked before its
    header is known to be possible."""
    import PIL.Image

    try:
        with PIL.Image.open(path, formats=["PNG"]) as picture:
            width, height = picture.size
            if width * height > MOST or path.stat().st_size > 2 * MOST:
                raise bad(path, None, f"a PNG of {width:,} x {height:,} pixels is none of a data set")
            picture.verify()
        with PIL.Image.open(path, formats=["PNG"]) as picture:  # verifying has read it to its end
            if picture.mode != "L":
                raise bad(path, None, "the PNG must be grey, of 8 bits")
            return np.array(picture)
    except DataError:
        raise
    except (
        OSError,
        SyntaxError,
        ValueError,
        struct.error,
        zlib.error,
        PIL.Image.DecompressionBombError,
    ) as error:
        raise bad(path, None, f"the PNG file is cut off, damaged or has too many pixels ({error})") from error


class PictureRows(Rows):
    """Pictures uint8 [N, height, width], which may be memory-mapped, and their labels [N]."""

    def __init__(self, pictures: Array, labels: Array):
        self.pictures, self.labels = pictures, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Row:
        index = row_number(index, len(self))
        return {
            "input_ids": torch.from_numpy(self.pictures[index].astype(np.int64).reshape(-1)),
            "labels": torch.tensor(int(self.labels[index])),
        }


def drawn(picture: Array, label: str, columns: int = 32) -> str:
    """A picture in characters, its label below."""
    shades = " .:-=+*#%@"
    step = max(1, picture.shape[1] // columns)
    small = picture[: picture.shape[0] // step * step, : picture.shape[1] // step * step]
    small = small.reshape(small.shape[0] // step, step, -1, step).max((1, 3))
    lines = ["".join(shades[int(v) * len(shades) // 256] * 2 for v in row) for row in small]
    return "\n".join([*lines, f"labels  {label}"])
