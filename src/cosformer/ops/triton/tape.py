"""What a call allocates and starts, written down once and played again for the next call of its kind.

To choose pieces and blocks and to place forty arguments a kernel takes Python longer than the GPU takes
for a short sequence. All of it depends on shapes, strides and settings alone: for those, a call is
a list of allocations and of compiled kernels with their arguments, in which only addresses change.
"""

import threading
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cosformer.ops.angles import length_or
from cosformer.ops.triton.carried import State
from cosformer.ops.triton.launching import launcher

if TYPE_CHECKING:
    from cosformer.ops.args import AttentionArgs

Input = Tensor | None
MOST = 1024  # tapes kept, and addresses a description is kept for
LINE = 256  # bytes: where a tensor of the scratch memory may begin

TAPES: dict[Any, "Tape"] = {}
_here = threading.local()


class Place(NamedTuple):
    """Which tensor, the inputs first, and how many bytes from its beginning."""

    tensor: int
    offset: int


class Described(NamedTuple):
    """An argument that is made from an address, and what was made for the addresses seen."""

    argument: int
    tensor: int
    offset: int
    make: Callable[[int], Any]
    known: dict[int, Any]


class Started(NamedTuple):
    """`moving`: arguments that are addresses, each with its tensor and offset."""

    play: Callable[[int, list[Any]], None]
    values: list[Any]
    moving: list[tuple[int, int, int]]
    described: list[Described]


class Made(NamedTuple):
    """A tensor that a call allocates."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


class Tape:
    """Numbers tensors as they appear, the inputs first. `again`: what is started depends on shapes, strides
    and settings alone."""

    def __init__(self, inputs: tuple[Input, ...], device: torch.device, again: bool):
        self.device, self.complete = device, again
        self.inputs = len(inputs)
        self.starts: list[Started] = []
        self.results: list[Any] = []
        self.made: list[Made] = []
        # What of it is given back, and where the rest lies in memory that is taken once for all of that.
        self.places: list[Made | int] = []
        self.scratch = 0
        self._tensors: list[Input] = list(inputs)  # while it is written

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        x = torch.empty(shape, dtype=dtype, device=self.device)
        self._tensors.append(x)
        return x

    def launch(self, kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        """A kernel as Triton starts it."""
        compiled = kernel[(programs,)](*arguments, **options)
        rest = (options[p.name] for p in kernel.params[len(arguments) :]) if self.complete else ()
        self.write(compiled, programs, (*arguments, *rest))

    def write(self, compiled: Any, programs: int, arguments: tuple[Any, ...]) -> None:
        """A kernel that was started, with all its arguments."""
        if compiled is None:  # the interpreter
            self.complete = False
        if not self.complete:
            return
        values: list[Any] = []
        moving: list[tuple[int, int, int]] = []
        described: list[Described] = []
        for x in arguments:
            if isinstance(x, Tensor):
                moving.append((len(values), *self.place(x.data_ptr())))
                values.append(0)
            elif (made := self.description(x, compiled, len(described))) is not None:
                pointer, make, encoded = made
                described.append(Described(len(values), *self.place(pointer), make, {}))
                values += encoded
            else:
                values.append(x)
        self.starts.append(Started(launcher(compiled, programs), values, moving, described))

    def description(
        self, x: Any, compiled: Any, number: int
    ) -> tuple[int, Callable[[int], Any], list[Any]] | None:
        """Of an argument that is made from an address: that, a function of others, and what a kernel is
        given."""
        return None

    def finish(self, *results: Any) -> None:
        """`results`: each None, a tensor or a State, made by `empty` or given."""
        self.results = [self._places(x) for x in results]
        self.made = [
            Made(tuple(x.shape), x.dtype, x.nbytes) for x in self._tensors[self.inputs :] if x is not None
        ]
        self._tensors.clear()
        self._lay_out()

    def first(self) -> "Tape":
        """The same for a caller who wants the first result alone."""
        tape = copy(self)
        tape.results = self.results[:1]
        tape._lay_out()
        return tape

    def _lay_out(self) -> None:
        returned = {place.tensor for x in self.results for place in _flat(x)}
        self.places, self.scratch = [], 0
        for i, made in enumerate(self.made, self.inputs):
            if i in returned:
                self.places.append(made)
            else:
                self.places.append(self.scratch)
                self.scratch += -(-made.bytes // LINE) * LINE

    def play(self, inputs: tuple[Input, ...]) -> list[Any]:
        tensors, device = list(inputs), self.device
        addresses = [0 if x is None else x.data_ptr() for x in inputs]
        if self.scratch:
            scratch = torch.empty(self.scratch, dtype=torch.uint8, device=device)
            base = scratch.data_ptr()
        for made in self.places:
            if isinstance(made, int):
                tensors.append(None)
                addresses.append(base + made)
            else:
                x = torch.empty(made.shape, dtype=made.dtype, device=device)
                tensors.append(x)
                addresses.append(x.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        for play, template, moving, described in self.starts:
            values = template.copy()
            for i, tensor, offset in moving:
                values[i] = addresses[tensor] + offset
            for i, tensor, offset, make, known in described:
                address = addresses[tensor] + offset
                found = known.get(address)
                if found is None:
                    if len(known) >= MOST:
                        known.clear()
                    found = known[address] = make(address)
                values[i] = found
            play(stream, values)
        return [_take(x, tensors) for x in self.results]

    def place(self, pointer: int) -> Place:
        """The tensor that begins there, else the only one that it lies in."""
        there = [(i, x, x.data_ptr()) for i, x in enumerate(self._tensors) if x is not None and x.numel()]
        for i, _, begin in there:
            if pointer == begin:
                return Place(i, 0)
        around = [Place(i, pointer - begin) for i, x, begin in there if begin < pointer < begin + _extent(x)]
        if len(around) == 1:
            return around[0]
        self.complete = False  # a copy, or made in some other way, or not to be told: not to be had again
        return Place(0, 0)

    def _places(self, x: Any) -> Any:
        if isinstance(x, State):
            return State(self._places(x.s), self._places(x.z), x.s_stride, x.z_stride)
        return None if x is None or not self.complete else self.place(x.data_ptr())


def _extent(x: Tensor) -> int:
    """Bytes from the first number to the last."""
    return x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)))


def _flat(x: Any) -> list[Any]:
    return [] if x is None else [p for p in x[:2] if p is not None] if isinstance(x, State) else [x]


def _take(x: Any, tensors: list[Any]) -> Any:
    if x is None:
        return None
    if isinstance(x, State):
        return State(_take(x.s, tensors), _take(x.z, tensors), x.s_stride, x.z_stride)
    number, offset = x
    taken = tensors[number]
    return taken if offset == 0 else taken.view(-1)[offset // taken.element_size() :]


def get_ready(device: torch.device) -> None:
    """A thread has the context of its GPU only after a call of the CUDA runtime; a fresh one, as PyTorch's
    own for the backward, may come here without. Addresses cannot be described there."""
    devices = _here.__dict__.get("devices", ())
    if device not in devices:
        torch.cuda.mem_get_info(device)
        _here.devices = (*devices, device)


def player(
    function: Callable[..., Any], flags: tuple[bool, ...], r: "AttentionArgs"
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The tape of a forward call without masks, documents or states, if there is one, as a function of q, k
    and v that lie as those of `r`; it gives the output. `flags`: the function's last settings."""
    nothing = (None,) * 5
    settings = (r.causal, r.query_offset, length_or(r.horizon, r.q, r.k), r.eps, *flags)
    tape = TAPES.get(_name(function, (r.q, r.k, r.v, *nothing), settings))
    if tape is None:
        return None
    device, run = r.q.device, tape.first().play

    def play(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        get_ready(device)
        out: Tensor = run((q, k, v, *nothing))[0]
        return out

    return play


def _name(function: Callable[..., Any], inputs: tuple[Input, ...], settings: tuple[Any, ...]) -> Any:
    addresses = [0 if x is None else x.data_ptr() for x in inputs]
    same = tuple([addresses.index(n) for n in addresses])  # one tensor may be several inputs
    layouts = tuple([None if x is None else (x.shape, x.stride(), x.dtype) for x in inputs])
    return function, inputs[0].get_device(), settings, same, layouts  # type: ignore[union-attr]


def call(
    function: Callable[..., tuple[Any, ...]], inputs: tuple[Input, ...], settings: tuple[Any, ...], *,
    again: bool, kind: type[Tape] = Tape,
) -> Any:  # fmt: skip
    """function(tape, *inputs, *settings), or the tape of an earlier call with the same layout and settings.

    Kernels are compiled for addresses that are multiples of 16: others are not written down, nor is
    what does not lie on a GPU, nor what depends on more than layout and settings (not `again`).
    """
    first: Any = inputs[0]
    if not (again and first.is_cuda) or any(x is not None and x.data_ptr() % 16 for x in inputs):
        return function(kind(inputs, first.device, False), *inputs, *settings)
    get_ready(first.device)
    name = _name(function, inputs, settings)
    tape = TAPES.get(name)
    if tape is not None:
        return tape.play(inputs)
    tape = kind(inputs, first.device, True)
    results = function(tape, *inputs, *settings)
    tape.finish(*results)
    if tape.complete:
        if len(TAPES) >= MOST:
            TAPES.clear()
        TAPES[name] = tape
    return results
