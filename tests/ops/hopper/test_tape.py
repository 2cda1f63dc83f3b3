"""Descriptions that are played again are those of the tensors given. Nothing is encoded here: that takes a
GPU's driver."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")


@pytest.fixture
def starts(monkeypatch):
    """Arguments of kernels that were played; they do nothing. A description is encoded as a word."""
    from cosformer.ops.hopper import tape
    from cosformer.ops.triton import tape as portable

    played = []

    def encode(description, compiled, number):
        base = f"{compiled} {number}: {description.base.data_ptr()}"
        return [base, *description.shape, *description.strides]

    monkeypatch.setattr(tape, "encode", encode)
    monkeypatch.setattr(tape, "start", lambda *_: "compiled")
    monkeypatch.setattr(portable, "launcher", lambda *_: lambda stream, values: played.append(values))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    return played


def test_descriptions_follow_the_tensors(starts):
    from cosformer.ops.hopper.launch import describe
    from cosformer.ops.hopper.tape import Tape

    def tiles():
        return torch.zeros(2, 64, 2, 64, dtype=torch.bfloat16)

    q, k = tiles(), tiles()
    tape = Tape((q, k), torch.device("cpu"), True)
    out = tape.empty((2, 64, 2, 64), torch.bfloat16)
    described = [describe(x, 64, 64) for x in (q, out)]
    tape.start("kernel", 1, (described[0], k, described[1], 3.0), (64,))
    tape.finish(out)
    assert tape.complete
    for _ in range(2):
        q, k = tiles(), tiles()
        (out,) = tape.play((q, k))
        layout = [2, 64, 2, 64, 8192, 128, 64, 1]
        first, second = (f"compiled {i}: {x.data_ptr()}" for i, x in enumerate((q, out)))
        assert starts.pop() == [first, *layout, k.data_ptr(), second, *layout, 3.0, 64]
