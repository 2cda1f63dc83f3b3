"""What a call allocates and launches, written down once and played again for the next call of its kind.

To choose pieces and blocks and to place forty arguments a kernel takes Python longer than the GPU takes
for a short sequence. All of it depends on shapes, strides and settings alone: for those, a call is
a list of allocations and of compiled kernels with their arguments, in which only addresses change.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.triton.carried import State

Input = Tensor | None
Place = tuple[int, int]  # which tensor, and how many bytes from its beginning
MOST = 1024  # tapes kept

TAPES: dict[Any, "Tape"] = {}


class Tape:
    """Numbers tensors as they appear, the inputs first."""

    def __init__(self, inputs: tuple[Input, ...], device: torch.device):
        self.device = device
        self.inputs = len(inputs)
        self.made: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.launches: list[
            tuple[Callable[[int, list[Any]], None], list[Any], list[tuple[int, int, int]]]
        ] = []
        self.results: list[Any] = []
        self.complete = True
        # While it is written: every tensor that a kernel may be given, by identity, and where it is.
        self._places: dict[int, tuple[Tensor, Place]] = {}
        for i, x in enumerate(inputs):
            if x is not None:
                self._places[id(x)] = (x, (i, 0))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=self.device)
        self._places[id(x)] = (x, (self.inputs + len(self.made), 0))
        self.made.append((shape, dtype))
        return x

    def part(self, base: Tensor, view: Tensor) -> Tensor:
        """`view`, which lies in `base`."""
        found = self._places.get(id(base))
        if found is not None and view is not base:
            number, offset = found[1]
            self._places[id(view)] = (view, (number, offset + view.data_ptr() - base.data_ptr()))
        return view

    def place(self, x: Tensor) -> Place | None:
        found = self._places.get(id(x))
        if found is None:  # made in some other way: not to be had again
            self.complete = False
            return None
        return found[1]

    def launch(self, kernel: Any, programs: int, *args: Any, **options: Any) -> None:
        compiled = kernel[(programs,)](*args, **options)
        if compiled is None:  # the interpreter
            self.complete = False
            return
        values = [*args, *(options[p.name] for p in kernel.params[len(args) :])]
        moving = []
        for i, x in enumerate(values):
            if isinstance(x, Tensor):
                place = self.place(x)
                values[i] = 0
                if place is not None:
                    moving.append((i, *place))
        self.launches.append((_starter(compiled, programs), values, moving))

    def finish(self, *results: Any) -> None:
        """`results`: each None, a tensor or a State, made by `empty` or given."""
        self.results = [self._numbers(x) for x in results]
        self._places.clear()

    def _numbers(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.place(x)
        if isinstance(x, State):
            return State(self._numbers(x.s), self._numbers(x.z), x.s_stride, x.z_stride)
        return None

    def play(self, inputs: tuple[Input, ...]) -> list[Any]:
        tensors = [*inputs, *(torch.empty(s, dtype=t, device=self.device) for s, t in self.made)]
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        for start, template, moving in self.launches:
            values = template.copy()
            for i, number, offset in moving:
                values[i] = addresses[number] + offset
            start(stream, values)
        return [_take(x, tensors) for x in self.results]


def _starter(compiled: Any, programs: int) -> Callable[[int, list[Any]], None]:
    """Starts a compiled kernel on a stream, without Triton's hooks, which cost as much again."""
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def start(stream: int, values: list[Any]) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *values)

    return start


def _take(x: Any, tensors: list[Any]) -> Any:
    if x is None:
        return None
    if isinstance(x, State):
        return State(_take(x.s, tensors), _take(x.z, tensors), x.s_stride, x.z_stride)
    number, offset = x
    taken = tensors[number]
    return taken if offset == 0 else taken.view(-1)[offset // taken.element_size() :]


def call(
    function: Callable[..., Any], inputs: tuple[Input, ...], settings: tuple[Any, ...], *, again: bool
) -> Any:
    """function(tape, inputs, *settings), or the tape of an earlier call with the same layout and settings.

    Kernels are compiled for addresses that are multiples of 16: others are not written down, nor is
    what does not lie on a GPU, nor what depends on more than layout and settings (not `again`).
    """
    first: Any = inputs[0]
    aligned = again and first.is_cuda
    names = [id(x) for x in inputs]
    same = tuple([names.index(n) for n in names])  # one tensor may be several inputs
    key: list[Any] = [function, first.get_device(), settings, same]
    for x in inputs:
        if x is None:
            key.append(None)
        else:
            aligned = aligned and x.data_ptr() % 16 == 0
            key += (x.shape, x.stride(), x.dtype)
    if not aligned:
        return function(Tape(inputs, first.device), inputs, *settings)
    name = tuple(key)
    tape = TAPES.get(name)
    if tape is not None:
        return tape.play(inputs)
    tape = Tape(inputs, first.device)
    results = function(tape, inputs, *settings)
    tape.finish(*results)
    if tape.complete:
        if len(TAPES) >= MOST:
            TAPES.clear()
        TAPES[name] = tape
    return results
