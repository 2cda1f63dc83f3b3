"""A call that is played again uses the tensors it is given, and nothing of the call it was written from."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")


@pytest.fixture
def starts(monkeypatch):
    """Arguments of kernels that were played; they do nothing."""
    from cosformer.ops.hopper import tape

    played = []
    monkeypatch.setattr(tape, "_tapes", {})
    monkeypatch.setattr(tape, "get_ready", lambda device: None)
    monkeypatch.setattr(tape, "start", lambda *_: None)
    monkeypatch.setattr(tape, "launcher", lambda *_: lambda stream, values: played.append(values))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    return played


def made(shape=(8,)):
    return torch.randn(shape)


def call(function, *inputs):
    from cosformer.ops.hopper import tape

    return tape.call(function, inputs, (3.0,), again=True)


def test_addresses_follow_the_tensors(starts):
    def function(tape, q, k, missing, setting):
        out = tape.empty((4,))
        tape.start("kernel", 1, (q, None, k, out, out[2:], setting), (64,))
        return out, missing

    written, _ = call(function, made(), made(), None)
    assert starts == []
    for _ in range(2):
        q, k = made(), made()
        out, missing = call(function, q, k, None)
        assert missing is None
        here = [q.data_ptr(), None, k.data_ptr(), out.data_ptr(), out.data_ptr() + 8, 3.0, 64]
        assert starts.pop() == here
        assert out.shape == written.shape
        assert out.data_ptr() != written.data_ptr()


def test_one_tensor_twice_is_another_kind_of_call(starts):
    def function(tape, q, k, setting):
        tape.start("kernel", 1, (q, k), (64,))
        return (None,)

    one = made()
    call(function, one, one)
    call(function, made(), made())
    assert starts == []
    q, k = made(), made()
    call(function, q, k)
    assert starts.pop() == [q.data_ptr(), k.data_ptr(), 64]


def test_tensors_that_lie_in_one_another_are_kept_apart(starts):
    def function(tape, q, k, setting):
        tape.start("kernel", 1, (q, k), (64,))
        return (None,)

    q, k = made((8, 8)).chunk(2, -1)
    call(function, q, k)
    call(function, k, q)
    assert starts.pop() == [k.data_ptr(), q.data_ptr(), 64]


def test_what_was_made_in_another_way_is_made_again(starts):
    calls = []

    def function(tape, q, setting):
        calls.append(q)
        tape.start("kernel", 1, (q + 1,), (64,))
        return (None,)

    for _ in range(3):
        call(function, made())
    assert len(calls) == 3
    assert starts == []


def test_another_layout_is_another_kind_of_call(starts):
    calls = []

    def function(tape, q, setting):
        calls.append(q)
        tape.start("kernel", 1, (q,), (64,))
        return (None,)

    for q in (made((4, 8)), made((4, 8)), made((8, 4)), made((8, 4)).T):
        call(function, q)
    assert len(calls) == 3
    assert len(starts) == 1
