"""Starting kernels: what the copy engine must know of a tensor, and Triton's launcher without its binder.

No argument of these kernels is specialised, so a kernel is compiled for its constants alone and is kept
with them.
"""

from typing import Any

import torch
from torch import Tensor
from triton.backends.nvidia.driver import make_tensordesc_arg
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_LAYOUT = NVMMASharedLayout(128, 16, rank=4)

_compiled: dict[Any, Any] = {}


class Address:
    """What a description needs of its tensor, without keeping the tensor alive."""

    __slots__ = ("dtype", "pointer")

    def __init__(self, pointer: int, dtype: torch.dtype):
        self.pointer, self.dtype = pointer, dtype

    def data_ptr(self) -> int:
        return self.pointer


def fits(x: Tensor) -> bool:
    """Whether the copy engine can read x [B, T, H, D] as it lies."""
    strides = _strides(x)
    return strides[3] == 1 and x.data_ptr() % 16 == 0 and all(n > 0 and n % 8 == 0 for n in strides[:3])


def describe(x: Tensor, rows: int, width: int) -> TensorDescriptor:
    """x [B, T, H, D] in tiles of `rows` tokens of one head, padded to `width`."""
    address = Address(x.data_ptr(), x.dtype)
    return TensorDescriptor(address, list(x.shape), _strides(x), [1, rows, 1, width], _LAYOUT)


def moved(description: TensorDescriptor, pointer: int) -> TensorDescriptor:
    """The same of another tensor."""
    address = Address(pointer, description.base.dtype)
    return TensorDescriptor(address, description.shape, description.strides, description.block_shape, _LAYOUT)


def _strides(x: Tensor) -> list[int]:
    """Those of dimensions of size 1 say nothing, and may be anything."""
    strides = [x.shape[3] if n == 1 else s for n, s in zip(x.shape[:3], x.stride(), strict=False)]
    return [*strides, x.stride(3)]


def start(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> Any:
    """`arguments`, then `constants`, in the order of the kernel's parameters; the last constant is the
    number of warps. Gives what was compiled."""
    device = torch.cuda.current_device()
    key = (kernel, constants, device)
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _compiled[key] = kernel[(programs,)](*arguments, *constants, num_warps=constants[-1])
        return compiled
    stream = torch._C._cuda_getCurrentRawStream(device)
    compiled.run(
        programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments,
        *constants,
    )  # fmt: skip
    return compiled


def encode(description: TensorDescriptor, compiled: Any, number: int) -> list[Any]:
    """A description as the launcher wants it: the copy engine's own form, shape and strides; `number`:
    which of the kernel's descriptions it is."""
    encoded: list[Any] = make_tensordesc_arg(description, compiled.metadata.tensordesc_meta[number])
    return encoded
