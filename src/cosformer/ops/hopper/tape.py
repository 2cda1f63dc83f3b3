"""What a call allocates and starts, written down once and played again for the next call of its kind.

For a short sequence Python takes longer to choose pieces and to place forty arguments a kernel than the
GPU takes to run it. All of it depends on shapes, strides and settings alone: for those, a call is a list
of allocations and of compiled kernels with their arguments, in which only addresses change.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from cosformer.ops.hopper.launch import encode, get_ready, launcher, moved, start

MOST = 1024  # tapes kept, and addresses a description is kept for

_tapes: dict[Any, "Tape"] = {}


class Place(NamedTuple):
    """Which tensor, the inputs first, and how many bytes from its beginning."""

    tensor: int
    offset: int


class Described(NamedTuple):
    """A description among a kernel's arguments, and its encoded form for the addresses seen."""

    argument: int
    place: Place
    encode: Callable[[int], Any]
    known: dict[int, Any]


class Started(NamedTuple):
    play: Callable[[int, list[Any]], None]
    values: list[Any]
    moving: list[tuple[int, Place]]
    described: list[Described]


class Tape:
    def __init__(self, inputs: tuple[Tensor | None, ...], device: torch.device, again: bool):
        """`again`: what is started depends on shapes, strides and settings alone."""
        self.device, self.complete = device, again
        self.tensors: list[Tensor | None] = list(inputs)
        self.made: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.starts: list[Started] = []
        self.results: list[int | None] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=self.device)
        self.tensors.append(x)
        self.made.append((shape, dtype))
        return x

    def start(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]
    ) -> None:
        self._write(start(kernel, programs, arguments, constants), programs, (*arguments, *constants))

    def start_plain(self, kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        """A kernel that Triton is to start its own way, the first time."""
        rest = (options[p.name] for p in kernel.params[len(arguments) :])
        self._write(kernel[(programs,)](*arguments, **options), programs, (*arguments, *rest))

    def finish(self, results: tuple[Tensor | None, ...]) -> None:
        """`results`: inputs, and tensors made by `empty`, whole."""
        places = [None if x is None else self._place(x.data_ptr()) for x in results]
        self.results = [None if p is None else p.tensor for p in places]
        self.tensors.clear()

    def play(self, inputs: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        tensors = [*inputs, *[torch.empty(s, dtype=t, device=self.device) for s, t in self.made]]
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        for play, template, moving, described in self.starts:
            values = template.copy()
            for i, (tensor, offset) in moving:
                values[i] = addresses[tensor] + offset
            for i, (tensor, offset), make, known in described:
                address = addresses[tensor] + offset
                found = known.get(address)
                if found is None:
                    if len(known) >= MOST:
                        known.clear()
                    found = known[address] = make(address)
                values[i] = found
            play(stream, values)
        return [None if i is None else tensors[i] for i in self.results]

    def _write(self, compiled: Any, programs: int, arguments: tuple[Any, ...]) -> None:
        if not self.complete:
            return
        values: list[Any] = []
        moving: list[tuple[int, Place]] = []
        described: list[Described] = []
        for x in arguments:
            if isinstance(x, Tensor):
                moving.append((len(values), self._place(x.data_ptr())))
                values.append(0)
            elif isinstance(x, TensorDescriptor):
                number = len(described)

                def make(pointer: int, x: Any = x, number: int = number) -> Any:
                    return encode(moved(x, pointer), compiled, number)[0]

                described.append(Described(len(values), self._place(x.base.data_ptr()), make, {}))
                values += encode(x, compiled, number)
            else:
                values.append(x)
        self.starts.append(Started(launcher(compiled, programs), values, moving, described))

    def _place(self, pointer: int) -> Place:
        """Of tensors that lie in one another, the one that begins there."""
        whole = [(i, x, x.data_ptr()) for i, x in enumerate(self.tensors) if x is not None]
        for i, _, begin in whole:
            if pointer == begin:
                return Place(i, 0)
        for i, x, begin in whole:
            if x.is_contiguous() and 0 <= pointer - begin < x.nbytes:
                return Place(i, pointer - begin)
        self.complete = False  # a copy, or made in some other way: not to be had again
        return Place(0, 0)


def call(
    function: Callable[..., tuple[Tensor | None, ...]], inputs: tuple[Tensor | None, ...],
    settings: tuple[Any, ...], *, again: bool,
) -> Any:  # fmt: skip
    """function(tape, *inputs, *settings), or the tape of an earlier call with the same layout and
    settings."""
    first: Any = inputs[0]
    get_ready(first.device)
    addresses = [0 if x is None else x.data_ptr() for x in inputs]
    # Kernels are compiled for addresses that are multiples of 16. One tensor may be several inputs.
    same = tuple([addresses.index(n) for n in addresses])
    again = again and not any(n % 16 for n in addresses)
    if not again:
        return function(Tape(inputs, first.device, again), *inputs, *settings)
    layouts = tuple([None if x is None else (x.shape, x.stride(), x.dtype) for x in inputs])
    name = (function, first.device, settings, layouts, same)
    tape = _tapes.get(name)
    if tape is not None and tape.complete:
        return tape.play(inputs)
    tape = Tape(inputs, first.device, again)
    results = function(tape, *inputs, *settings)
    tape.finish(results)
    if len(_tapes) >= MOST:
        _tapes.clear()
    _tapes[name] = tape
    return results
