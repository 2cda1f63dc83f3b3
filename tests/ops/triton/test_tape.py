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
        def run(programs, _y, _z, stream, function, metadata, _entered, _enter, _exit, *values):
            assert (programs, stream, function, metadata) == (grid[0], 77, "function", "metadata")
            self.started.append((programs, values))

        return lambda *args, **options: SimpleNamespace(
            run=run, function="function", packed_metadata="metadata"
        )


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    return Kernel()


def write(kernel, inputs):
    tape = Tape(inputs, torch.device("cpu"))
    a, _, b = inputs
    made = tape.empty((6, 4))
    state = State(made, tape.part(made, made.view(-1)[8:]), 4, 4)
    tape.launch(kernel, 7, a, tape.part(b, b[:, 2:]), 5, made, SIZE=16, num_warps=4)
    tape.launch(kernel, 3, None, b, 5, state.z, SIZE=32)
    tape.finish(made, None, state)
    return tape


def test_addresses_of_the_tensors_given(kernel):
    tape = write(kernel, (torch.zeros(3, 5), None, torch.zeros(2, 8, dtype=torch.bfloat16)))
    assert tape.complete
    for _ in range(2):
        a, b = torch.zeros(3, 5), torch.zeros(2, 8, dtype=torch.bfloat16)
        made, nothing, state = tape.play((a, None, b))
        first, second = kernel.started[-2:]
        assert first == (7, (a.data_ptr(), b.data_ptr() + 4, 5, made.data_ptr(), 16))
        assert second == (3, (None, b.data_ptr(), 5, made.data_ptr() + 32, 32))
        assert nothing is None
        assert made.shape == (6, 4)
        assert state.s is made
        assert state.z.data_ptr() == made.data_ptr() + 32
        assert (state.s_stride, state.z_stride) == (4, 4)


def test_tensors_that_share_memory(kernel):
    """The second lies inside the first when the tape is written, and before it when it is played."""
    block = torch.zeros(40)
    tape = write(kernel, (block[:20].view(4, 5), None, block[10:26].view(2, 8)))
    a, b = block[20:].view(4, 5), block[:16].view(2, 8)
    tape.play((a, None, b))
    assert kernel.started[0][1][:2] == (a.data_ptr(), b.data_ptr() + 8)


def test_what_the_tape_has_not_seen(kernel):
    """A copy made on the way would not be made again."""
    x = torch.zeros(3, 5)
    tape = Tape((x, None, x), torch.device("cpu"))
    tape.launch(kernel, 1, x.clone(), x, 5, x, SIZE=16)
    tape.finish(x)
    assert not tape.complete


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True


def test_one_tensor_as_several_inputs_is_another_kind_of_call(kernel, monkeypatch):
    monkeypatch.setattr(module, "TAPES", {})
    calls = []

    def function(tape, inputs, size):
        calls.append(inputs)
        tape.launch(kernel, 1, *inputs, 5, None, SIZE=size)
        return (None,)

    def call(a, b):
        module.call(function, (a, b), (16,), again=True)

    one, a, b, c, d = (torch.zeros(4).as_subclass(OnGpu) for _ in range(5))
    call(one, one)
    call(a, b)
    assert len(calls) == 2
    call(c, d)
    assert len(calls) == 2
    assert kernel.started == [(1, (c.data_ptr(), d.data_ptr(), 5, None, 16))]
