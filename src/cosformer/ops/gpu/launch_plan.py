"""The allocations and kernel launches of one call, recorded once and replayed with other addresses.

Choosing splits and block sizes and placing forty arguments a kernel takes Python longer than the GPU needs
for a short sequence. All of it depends on shapes, strides and settings alone. For given ones a call is a list
of allocations and of compiled kernels with their arguments, in which only addresses change.

A plan also knows which kernels its backend has for heads with windows (`narrow_parts`, `wide_heads`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.launcher import launcher
from cosformer.ops.gpu.side_stream import side_stream

Input = Tensor | None
MAX_ADDRESSES = 1024  # an encoded argument is kept for
WORKSPACE_ALIGNMENT = 256  # bytes


class Location(NamedTuple):
    """Which tensor (the inputs come first), and how many bytes from its beginning."""

    tensor: int
    offset: int


class EncodedArgument(NamedTuple):
    """An argument computed from an address (a TMA descriptor), and its values for the addresses seen."""

    argument: int
    tensor: int
    offset: int
    encode: Callable[[int], Any]
    by_address: dict[int, Any]


class Launch(NamedTuple):
    """`pointers`: (argument, tensor, offset) of arguments that are addresses. `aside`: on the side stream."""

    launch: Callable[[int, list[Any]], None]
    values: list[Any]
    pointers: list[tuple[int, int, int]]
    encoded: list[EncodedArgument]
    aside: bool


class Allocation(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


class WideHeads(Protocol):
    """A backend's own kernels for heads that share a wide window."""

    def forward(self, den: Tensor, eps: float) -> None: ...
    def backward(self, inv_den: Tensor, delta: Tensor) -> None: ...


class BandHeads(Protocol):
    """A backend's own kernels for heads with narrow windows. `aside`: they are meant for the side stream."""

    aside: bool

    def queries(self, what: str, den: Tensor, inv_den: Tensor, delta: Tensor, eps: float) -> None: ...
    def keys(self, inv_den: Tensor, delta: Tensor) -> None: ...


class LaunchPlan:
    """Runs a call and records it; `replay` runs the record. Tensors are numbered in the order in which they
    appear, the inputs first. `replayable`: what is launched depends on shapes, strides and settings alone; it
    becomes False when something is launched that could not be replayed."""

    def __init__(self, inputs: tuple[Input, ...], device: torch.device, replayable: bool):
        self.device, self.replayable = device, replayable
        self.inputs = len(inputs)
        self.launches: list[Launch] = []
        self.results: list[Any] = []
        self.allocations: list[Allocation] = []
        # For each allocation: itself if it is returned, else its offset in one workspace for all others.
        self.placement: list[Allocation | int] = []
        self.workspace_bytes = 0
        self.forks = False  # something is launched aside
        self._tensors: list[Input] = list(inputs)  # while recording
        self._main: torch.cuda.Stream | None = None  # while launching aside

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory of the main stream, aside too: the allocator hands it on in the order of the stream that
        took it, and that is the one that waits for both. With deterministic algorithms PyTorch fills what is
        new, on that stream: the side stream waits for it."""
        with nullcontext() if self._main is None else torch.cuda.stream(self._main):
            x = torch.empty(shape, dtype=dtype, device=self.device)
            if self._main is not None:
                side_stream(self.device).fork()
        self._tensors.append(x)
        return x

    @contextmanager
    def aside(self, wanted: bool) -> Iterator[None]:
        """What is launched inside runs beside the rest of the call, on a side stream, if that is `wanted` and
        the call is recorded: it may use nothing that the rest writes, nor the other way round. It may use
        what was launched aside before, so that goes on where the call turns out not to be replayable."""
        if not (wanted and (self.replayable or self.forks)):
            yield
            return
        side = side_stream(self.device)
        side.fork()  # each time: what was copied on the main stream since the last one is in place
        self.forks, self._main = True, torch.cuda.current_stream(self.device)
        try:
            with torch.cuda.stream(side.stream):
                yield
        finally:
            self._main = None

    def join(self) -> None:
        """What is launched after the call waits for what was launched aside."""
        if self.forks:
            side_stream(self.device).join()

    def launch(self, kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        """Launches a Triton kernel on `programs` CTAs and records it."""
        compiled = kernel[(programs,)](*arguments, **options)
        rest = (options[p.name] for p in kernel.params[len(arguments) :]) if self.replayable else ()
        self.record(compiled, programs, (*arguments, *rest))

    def record(self, compiled: Any, programs: int, arguments: tuple[Any, ...]) -> None:
        """A kernel that was launched, with all its arguments."""
        if compiled is None:  # by Triton's interpreter
            self.replayable = False
        if not self.replayable:
            return
        values: list[Any] = []
        pointers: list[tuple[int, int, int]] = []
        encoded: list[EncodedArgument] = []
        for x in arguments:
            if isinstance(x, Tensor):
                pointers.append((len(values), *self.locate(x.data_ptr())))
                values.append(0)
            elif (found := self.encode(x, compiled, len(encoded))) is not None:
                pointer, encode, current = found
                encoded.append(EncodedArgument(len(values), *self.locate(pointer), encode, {}))
                values += current
            else:
                values.append(x)
        aside = self._main is not None
        self.launches.append(Launch(launcher(compiled, programs), values, pointers, encoded, aside))

    def encode(self, x: Any, compiled: Any, index: int) -> tuple[int, Callable[[int], Any], list[Any]] | None:
        """For an argument computed from an address: the address, a function that encodes another address, and
        the current values. `index`: how many such arguments precede it. None for any other argument."""
        return None

    def finish(self, *results: Any) -> None:
        """`results`: each None, a tensor or a State, allocated by `empty` or an input."""
        self.results = [self._locate_result(x) for x in results]
        self.allocations = [
            Allocation(tuple(x.shape), x.dtype, x.nbytes)
            for x in self._tensors[self.inputs :]
            if x is not None
        ]
        self._tensors.clear()
        self._place_allocations()

    def first_result_only(self) -> "LaunchPlan":
        """The same plan for a caller who needs the first result alone; the others go to the workspace."""
        plan = copy(self)
        plan.results = self.results[:1]
        plan._place_allocations()
        return plan

    def _place_allocations(self) -> None:
        returned = {location.tensor for x in self.results for location in _locations(x)}
        self.placement, self.workspace_bytes = [], 0
        for i, allocation in enumerate(self.allocations, self.inputs):
            if i in returned:
                self.placement.append(allocation)
            else:
                self.placement.append(self.workspace_bytes)
                self.workspace_bytes += -(-allocation.bytes // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT

    def wide_heads(
        self, tensors: dict[str, Tensor], table: Tensor, window: int, causal: bool
    ) -> WideHeads | None:
        """Kernels of its own for heads with this window, and for calls without a mask, documents or offsets;
        None: the portable ones."""
        return None

    def narrow_parts(
        self, tensors: dict[str, Tensor], table: Tensor, windows: list[int], causal: bool
    ) -> Sequence[tuple[Tensor, BandHeads | None]]:
        """The rows of `table`, heads with narrow windows sorted by these, in groups, each with the kernels
        for it, or None: the portable ones. Asked of calls without a mask, documents or offsets."""
        return [(table, None)]

    def replay(self, inputs: tuple[Input, ...]) -> list[Any]:
        tensors, device = list(inputs), self.device
        addresses = [0 if x is None else x.data_ptr() for x in inputs]
        if self.workspace_bytes:
            workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=device)
            base = workspace.data_ptr()
        for place in self.placement:
            if isinstance(place, int):
                tensors.append(None)
                addresses.append(base + place)
            else:
                x = torch.empty(place.shape, dtype=place.dtype, device=device)
                tensors.append(x)
                addresses.append(x.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        if self.forks:
            side = side_stream(device)
            side.fork()
        for launch, template, pointers, encoded, aside in self.launches:
            values = template.copy()
            for i, tensor, offset in pointers:
                values[i] = addresses[tensor] + offset
            for i, tensor, offset, encode, by_address in encoded:
                address = addresses[tensor] + offset
                value = by_address.get(address)
                if value is None:
                    if len(by_address) >= MAX_ADDRESSES:
                        by_address.clear()
                    value = by_address[address] = encode(address)
                values[i] = value
            launch(side.stream.cuda_stream if aside else stream, values)
        if self.forks:
            side.join()
        return [_take(x, tensors) for x in self.results]

    def locate(self, pointer: int) -> Location:
        """The tensor that begins at this address, else the only one that contains it."""
        present = [(i, x, x.data_ptr()) for i, x in enumerate(self._tensors) if x is not None and x.numel()]
        for i, _, begin in present:
            if pointer == begin:
                return Location(i, 0)
        containing = [
            Location(i, pointer - begin)
            for i, x, begin in present
            if begin < pointer < begin + _extent_bytes(x)
        ]
        if len(containing) == 1:
            return containing[0]
        # A copy made outside the plan, or a range that two tensors share: it could not be found again.
        self.replayable = False
        return Location(0, 0)

    def _locate_result(self, x: Any) -> Any:
        if isinstance(x, State):
            return State(self._locate_result(x.s), self._locate_result(x.z), x.s_stride, x.z_stride)
        return None if x is None or not self.replayable else self.locate(x.data_ptr())


def _extent_bytes(x: Tensor) -> int:
    """From the first element to the last."""
    return x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)))


def _locations(result: Any) -> list[Any]:
    if result is None:
        return []
    return [x for x in result[:2] if x is not None] if isinstance(result, State) else [result]


def _take(x: Any, tensors: list[Any]) -> Any:
    if x is None:
        return None
    if isinstance(x, State):
        return State(_take(x.s, tensors), _take(x.z, tensors), x.s_stride, x.z_stride)
    index, offset = x
    taken = tensors[index]
    return taken if offset == 0 else taken.view(-1)[offset // taken.element_size() :]
