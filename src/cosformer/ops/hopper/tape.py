"""The portable kernels' tape, for kernels that are given descriptions of tensors instead of their addresses.

What the copy engine wants to know of a tensor is encoded for its address; that takes longer than a start, and
tensors come back to the same addresses: what was encoded is kept.
"""

from collections.abc import Callable
from typing import Any

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cosformer.ops.hopper.launch import encode, moved, start
from cosformer.ops.triton import tape as portable


class Tape(portable.Tape):
    def start(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> None:
        self.write(start(kernel, programs, arguments, constants), programs, (*arguments, *constants))

    def description(
        self, x: Any, compiled: Any, number: int
    ) -> tuple[int, Callable[[int], Any], list[Any]] | None:
        if not isinstance(x, TensorDescriptor):
            return None

        def make(pointer: int) -> Any:
            return encode(moved(x, pointer), compiled, number)[0]

        return x.base.data_ptr(), make, encode(x, compiled, number)
