"""Pictures as sequences: a pixel is a token, its grey value from 0 to 255, row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosformer.tasks.base import Row, Rows, row_number, stacked

Array = np.ndarray[Any, np.dtype[Any]]


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


def collate_pictures(rows: Sequence[Row]) -> dict[str, Tensor]:
    return stacked(rows)


def drawn(picture: Array, label: str, columns: int = 32) -> str:
    """A picture in characters, its label below."""
    shades = " .:-=+*#%@"
    step = max(1, picture.shape[1] // columns)
    small = picture[: picture.shape[0] // step * step, : picture.shape[1] // step * step]
    small = small.reshape(small.shape[0] // step, step, -1, step).max((1, 3))
    lines = ["".join(shades[int(v) * len(shades) // 256] * 2 for v in row) for row in small]
    return "\n".join([*lines, f"labels  {label}"])
