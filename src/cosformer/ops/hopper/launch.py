"""Starting kernels: what the copy engine must know of a tensor, and Triton's launcher without its binder.

No argument of these kernels is specialised, so a kernel is compiled for its constants alone and is kept
with them.
"""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.backends.nvidia.driver import make_tensordesc_arg
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_LAYOUT = NVMMASharedLayout(128, 16, rank=4)

_compiled: dict[Any, Any] = {}
_here = threading.local()


class Address:
    """What a description needs of its tensor, without keeping the tensor alive."""

    __slots__ = ("dtype", "pointer")

    def __init__(self, pointer: int, dtype: torch.dtype):
        self.pointer, self.dtype = pointer, dtype

    def data_ptr(self) -> int:
        return self.pointer


def get_ready(device: torch.device) -> None:
    """A thread has the context of its GPU only after a call of the CUDA runtime; a fresh one, as PyTorch's
    own for the backward, may come here without. Descriptions cannot be encoded there."""
    if device not in _here.__dict__.setdefault("devices", set()):
        torch.cuda.mem_get_info(device)
        _here.devices.add(device)


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


def launcher(compiled: Any, programs: int) -> Callable[[int, list[Any]], None]:
    """A function of the stream and of all arguments, descriptions as `encode` gives them: the innermost
    one of Triton's own."""
    run = compiled.run
    launch = inspect.getclosurevars(run.launch).nonlocals["launcher"] if _described(compiled) else run.launch
    function, metadata = compiled.function, compiled.packed_metadata
    if run.global_scratch_size or run.profile_scratch_size:
        raise NotImplementedError("kernels that need scratch memory are not played again.")
    flags = (run.launch_cooperative_grid, run.launch_pdl)
    if not hasattr(run, "arg_annotations"):  # 3.6

        def play(stream: int, values: list[Any]) -> None:
            launch(programs, 1, 1, stream, function, *flags, None, None, metadata, None, None, None, *values)
    else:
        types = (run.arg_annotations, run.kernel_signature)

        def play(stream: int, values: list[Any]) -> None:
            launch(
                programs, 1, 1, stream, function, *flags, metadata, None, None, None, None, None, *types,
                values,
            )  # fmt: skip

    return play


def encode(description: TensorDescriptor, compiled: Any, number: int) -> list[Any]:
    """A description as the launcher wants it: the copy engine's own form, shape and strides; `number`:
    which of the kernel's descriptions it is."""
    encoded: list[Any] = make_tensordesc_arg(description, compiled.metadata.tensordesc_meta[number])
    return encoded


def _described(compiled: Any) -> bool:
    return bool(compiled.metadata.tensordesc_meta)
