"""Launches of kernels that take TMA descriptors, and the launch plan that replays them.

No argument of these kernels is specialised, so a kernel is compiled for its constants alone. A TMA descriptor
is encoded for an address, which takes longer than a launch; the allocator hands out the same addresses again,
so the plan keeps what was encoded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from triton.backends.nvidia.driver import make_tensordesc_arg
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cosformer.ops.gpu.launch_cache import lookup, store
from cosformer.ops.gpu.launch_plan import BandHeads, LaunchPlan, WideHeads

_LAYOUT = NVMMASharedLayout(128, 16, rank=4)


class Address:
    """What a descriptor needs of its tensor, without keeping the tensor alive."""

    __slots__ = ("dtype", "pointer")

    def __init__(self, pointer: int, dtype: torch.dtype):
        self.pointer, self.dtype = pointer, dtype

    def data_ptr(self) -> int:
        return self.pointer


class HopperLaunchPlan(LaunchPlan):
    def launch_tma(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> None:
        """`arguments`, then `constants`, in the order of the kernel's parameters; the last constant is the
        number of warps."""
        compiled = launch(kernel, programs, arguments, constants)
        self.record(compiled, programs, (*arguments, *constants))

    def wide_heads(
        self, tensors: dict[str, Tensor], table: Tensor, window: int, causal: bool
    ) -> WideHeads | None:
        from cosformer.ops.hopper import window_run

        return window_run.wide_heads(self, tensors, table, window, causal)

    def narrow_parts(
        self, tensors: dict[str, Tensor], table: Tensor, windows: list[int], causal: bool
    ) -> Sequence[tuple[Tensor, BandHeads | None]]:
        from cosformer.ops.hopper import band_run

        return band_run.narrow_parts(self, tensors, table, windows, causal)

    def encode(self, x: Any, compiled: Any, index: int) -> tuple[int, Callable[[int], Any], list[Any]] | None:
        if not isinstance(x, TensorDescriptor):
            return None

        def encode(pointer: int) -> Any:
            return encode_descriptor(with_address(x, pointer), compiled, index)[0]

        return x.base.data_ptr(), encode, encode_descriptor(x, compiled, index)


def launch(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> Any:
    """Returns the compiled kernel. From the second launch on, Triton's argument binder is skipped."""
    device = torch.cuda.current_device()
    compiled_key = (kernel, constants, device)
    compiled = lookup(compiled_key)
    if compiled is None:
        return store(compiled_key, kernel[(programs,)](*arguments, *constants, num_warps=constants[-1]))
    stream = torch._C._cuda_getCurrentRawStream(device)
    compiled.run(
        programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments,
        *constants,
    )  # fmt: skip
    return compiled


def tma_can_read(x: Tensor) -> bool:
    """Whether TMA can read x [B, T, H, D] without a copy."""
    strides = _strides(x)
    return strides[3] == 1 and x.data_ptr() % 16 == 0 and all(n > 0 and n % 8 == 0 for n in strides[:3])


def tma_descriptor(x: Tensor, rows: int, width: int) -> TensorDescriptor:
    """x [B, T, H, D] in tiles of `rows` tokens of one head, padded with zeros to `width` features."""
    address = Address(x.data_ptr(), x.dtype)
    return TensorDescriptor(address, list(x.shape), _strides(x), [1, rows, 1, width], _LAYOUT)


def with_address(descriptor: TensorDescriptor, pointer: int) -> TensorDescriptor:
    """The same layout at another address."""
    address = Address(pointer, descriptor.base.dtype)
    return TensorDescriptor(address, descriptor.shape, descriptor.strides, descriptor.block_shape, _LAYOUT)


def encode_descriptor(descriptor: TensorDescriptor, compiled: Any, index: int) -> list[Any]:
    """As the launcher takes it: the encoded descriptor, then shape and strides. `index`: its number among the
    kernel's descriptors."""
    encoded: list[Any] = make_tensordesc_arg(descriptor, compiled.metadata.tensordesc_meta[index])
    return encoded


def _strides(x: Tensor) -> list[int]:
    """The stride of a dimension of size 1 means nothing and may be any number: it is replaced."""
    strides = [x.shape[3] if n == 1 else s for n, s in zip(x.shape[:3], x.stride(), strict=False)]
    return [*strides, x.stride(3)]
