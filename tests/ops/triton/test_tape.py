"""A tape plays what was launched, with the addresses of other tensors. Kernels are stood in for: this is
about addresses, and needs no GPU."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.triton import tape as module
from cosformer.ops.triton.carried import State
from cosformer.ops.triton.tape import Tape


class Kernel:
    """Writes down what it was started with."""

    params = tuple(SimpleNamespace(name=n) for n in ("A", "B", "n", "C", "SIZE"))

    def __init__(self):
        self.started = []

    def __getitem__(self, grid):
        return lambda *args, **options: "compiled"


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    kernel = Kernel()

    def launcher(compiled, programs):
        def play(stream, values):
            assert (compiled, stream) == ("compiled", 77)
            kernel.started.append((programs, values))

        return play

    monkeypatch.setattr(module, "launcher", launcher)
    monkeypatch.setattr(module, "get_ready", lambda device: None)
    monkeypatch.setattr(module, "TAPES", {})
    return kernel


def write(kernel, inputs):
    tape = Tape(inputs, torch.device("cpu"), True)
    a, _, b = inputs
    made, unseen = tape.empty((6, 4)), tape.empty((5, 3))
    state = State(made, made.view(-1)[8:], 4, 4)
    tape.launch(kernel, 7, a, b[:, 2:], 5, made, SIZE=16, num_warps=4)
    tape.launch(kernel, 3, None, b, 5, state.z, SIZE=32)
    tape.launch(kernel, 2, unseen, unseen[1:], 5, tape.empty((9,)), SIZE=32)
    tape.finish(made, None, state)
    return tape


def test_addresses_of_the_tensors_given(kernel):
    tape = write(kernel, (torch.zeros(3, 5), None, torch.zeros(2, 8, dtype=torch.bfloat16)))
    assert tape.complete
    for _ in range(2):
        a, b = torch.zeros(3, 5), torch.zeros(2, 8, dtype=torch.bfloat16)
        made, nothing, state = tape.play((a, None, b))
        first, second, third = kernel.started[-3:]
        assert first == (7, [a.data_ptr(), b.data_ptr() + 4, 5, made.data_ptr(), 16])
        assert second == (3, [None, b.data_ptr(), 5, made.data_ptr() + 32, 32])
        # What nobody gets lies in one block of memory, each part of it at the beginning of a line.
        scratch = third[1][0]
        assert third == (2, [scratch, scratch + 12, 5, scratch + 256, 32])
        assert nothing is None
        assert made.shape == (6, 4)
        assert state.s is made
        assert state.z.data_ptr() == made.data_ptr() + 32
        assert (state.s_stride, state.z_stride) == (4, 4)


def test_who_wants_the_first_result_alone(kernel):
    tape = Tape((torch.zeros(3, 5),), torch.device("cpu"), True)
    first, second = tape.empty((6, 4)), tape.empty((5, 3))
    tape.launch(kernel, 7, first, second, 5, tape.empty((9,)), SIZE=16)
    tape.finish(first, second)
    (out,) = tape.first().play((torch.zeros(3, 5),))
    _, (a, b, _, c, _) = kernel.started[-1]
    assert a == out.data_ptr()
    assert out.shape == (6, 4)
    assert c == b + 256  # the second lies with what nobody gets
    results = tape.play((torch.zeros(3, 5),))
    assert [x.data_ptr() for x in results] == kernel.started[-1][1][:2]


def test_tensors_that_share_memory(kernel):
    """The second lies inside the first when the tape is written, and before it when it is played."""
    block = torch.zeros(40)

    def write(a, b, *arguments):
        tape = Tape((a, b), torch.device("cpu"), True)
        tape.launch(kernel, 1, *arguments, 5, None, SIZE=16)
        tape.finish(None)
        return tape

    a, b = block[:20].view(4, 5), block[10:26].view(2, 8)
    tape = write(a, b, a, b)
    assert tape.complete
    a, b = block[20:].view(4, 5), block[:16].view(2, 8)
    tape.play((a, b))
    assert kernel.started == [(1, [a.data_ptr(), b.data_ptr(), 5, None, 16])]
    # What lies in both cannot be told.
    a, b = block[:20].view(4, 5), block[10:26].view(2, 8)
    assert not write(a, b, a, b[:, 2:]).complete


def test_what_the_tape_has_not_seen(kernel):
    """A copy made on the way would not be made again."""
    x = torch.zeros(3, 5)
    tape = Tape((x, None, x), torch.device("cpu"), True)
    tape.launch(kernel, 1, x.clone(), x, 5, x, SIZE=16)
    tape.finish(x)
    assert not tape.complete


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True


def test_one_tensor_as_several_inputs_is_another_kind_of_call(kernel):
    calls = []

    def function(tape, a, b, size):
        calls.append((a, b))
        tape.launch(kernel, 1, a, b, 5, None, SIZE=size)
        return (None,)

    def call(a, b):
        module.call(function, (a, b), (16,), again=True)

    one, a, b, c, d = (torch.zeros(4).as_subclass(OnGpu) for _ in range(5))
    call(one, one)
    call(a, b)
    assert len(calls) == 2
    call(c, d)
    assert len(calls) == 2
    assert kernel.started == [(1, [c.data_ptr(), d.data_ptr(), 5, None, 16])]


def test_another_layout_is_another_kind_of_call(kernel):
    calls = []

    def function(tape, x, size):
        calls.append(x)
        tape.launch(kernel, 1, x, None, 5, None, SIZE=size)
        return (None,)

    for x in (torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(8, 4), torch.zeros(8, 4).T):
        module.call(function, (x.as_subclass(OnGpu),), (16,), again=True)
    assert len(calls) == 3
    assert len(kernel.started) == 1


def test_what_was_made_in_another_way_is_made_again(kernel):
    calls = []

    def function(tape, x, size):
        calls.append(x)
        tape.launch(kernel, 1, x + 1, None, 5, None, SIZE=size)
        return (None,)

    for _ in range(3):
        module.call(function, (torch.zeros(4).as_subclass(OnGpu),), (16,), again=True)
    assert len(calls) == 3
    assert kernel.started == []
