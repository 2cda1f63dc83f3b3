"""The memory in which the chunked backend works, and the views of its matrices.

Values with both their phases, and sums of them, have rows [x cos, x sin, y cos, y sin, 0 ...]: x is as
wide as a value, y is a number (what belongs to the denominator).
"""

import math
import threading
from functools import cached_property

import torch
from torch import Tensor


def width(dv: int) -> int:
    """Of a row [cos v, sin v, cos, sin, 0 ...], in whole vector registers: matrices of 130 columns
    take longer to multiply than matrices of 144."""
    return -(-(2 * dv + 2) // 16) * 16


def halves(x: Tensor, dv: int) -> tuple[Tensor, Tensor]:
    """The rows [x cos, x sin, y cos, y sin, 0 ...] of a matrix, cut behind x cos; no zeros."""
    return x[..., :dv], x[..., dv : 2 * dv + 2]


class Buffer:
    """Workspace for one operand of a step [chunks, B, Hk, group, tokens, .], and the ways it is looked at.

    With `dv`, its rows are [x cos, x sin, y cos, y sin, 0 ...], with x of that width and y a number.
    """

    def __init__(self, whole: Tensor, dv: int = 0):
        self.whole, self.dv = whole, dv

    @cached_property
    def _matrices(self) -> Tensor:
        x = self.whole
        return x.view(x.shape[0], x.shape[1] * x.shape[2], -1, x.shape[-1])

    @cached_property
    def rows(self) -> Tensor:
        """All chunks as one batch of matrices."""
        return self._matrices.flatten(0, 1)

    @cached_property
    def columns(self) -> Tensor:
        return self.rows.mT

    @cached_property
    def chunks(self) -> tuple[Tensor, ...]:
        return self._matrices.unbind(0)

    @cached_property
    def chunk_columns(self) -> tuple[Tensor, ...]:
        return self._matrices.mT.unbind(0)

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """`rows` for products that sum along the row: two sums round less than one twice as long."""
        return halves(self.rows, self.dv)

    @cached_property
    def chunk_halves(self) -> list[tuple[Tensor, Tensor]]:
        return [halves(x, self.dv) for x in self.chunks]

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """x cos, x sin, and the rest of the row."""
        return (
            self.whole[..., : self.dv],
            self.whole[..., self.dv : 2 * self.dv],
            self.whole[..., 2 * self.dv :],
        )

    @cached_property
    def last(self) -> tuple[Tensor, Tensor]:
        """y cos, y sin."""
        return self.parts[2][..., :1], self.parts[2][..., 1:2]


SMALL = 2**18  # numbers: what is larger leaves the cache of a CPU before it is used again


def scratch(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory for a temporary of heads with a window, of the type and on the device of another tensor. It is
    valid until the same name is asked for again."""
    if math.prod(shape) > SMALL:
        return like.new_empty(shape)
    return _of_windows.take(name, shape, like.dtype, like.device).whole


class Workspace(threading.local):
    """Memory for buffers, kept from call to call by each thread: on a CPU, fresh pages can cost
    more than the arithmetic done in them. Other devices have allocators that see to this."""

    shapes = 256  # looked at in the same memory, before they are forgotten

    def __init__(self, limit: int = 2**26) -> None:
        self.limit = limit  # bytes, of each thread
        self.memory: dict[tuple[str, torch.dtype], Tensor] = {}
        self.buffers: dict[tuple[str, tuple[int, ...], int, torch.dtype], Buffer] = {}

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, dv: int = 0
    ) -> Buffer:
        if device.type != "cpu":
            return Buffer(torch.empty(shape, dtype=dtype, device=device), dv)
        key = (name, shape, dv, dtype)
        if key not in self.buffers:
            size = math.prod(shape)
            flat = self.memory.get((name, dtype))
            if flat is None or flat.numel() < size or len(self.buffers) >= self.shapes:
                self.buffers.clear()
                self.memory.pop((name, dtype), None)
                with torch.inference_mode(False):  # what is kept must serve calls of every kind
                    flat = torch.empty(size, dtype=dtype)
                if sum(x.nbytes for x in self.memory.values()) + flat.nbytes > self.limit:
                    return Buffer(flat.view(shape), dv)
                self.memory[name, dtype] = flat
            self.buffers[key] = Buffer(flat[:size].view(shape), dv)
        return self.buffers[key]


_of_windows = Workspace(2**25)
