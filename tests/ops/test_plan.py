"""The plan of the chunked backend: nothing left out, nothing twice, nothing large."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosformer.ops.args import AttentionArgs
from cosformer.ops.autograd import Saved
from cosformer.ops.chunked import attention
from cosformer.ops.chunked.plan import CHUNK, ChunkPlan, kept_size, plan, tiling
from cosformer.ops.chunked.workspace import Buffer, Workspace, width

CPU = torch.device("cpu")
sizes = st.integers(1, 3000)


def arguments(q, k, v, causal, offset, horizon):
    return AttentionArgs(q, k, v, *[None] * 5, causal, offset, horizon, 1e-6, False, True)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(sizes, sizes, st.integers(-3500, 3500), st.booleans(), st.integers(1, 128), st.integers(1, 9))
def test_every_token_is_taken_once_and_in_order(tq, tk, offset, causal, dim, fill):
    q_seen, k_seen = [], []
    for segment in plan(tq, tk, offset, causal, (dim, dim), fill):
        for q0, q1, k0, k1 in segment.steps():
            q_seen += range(q0, q1)
            k_seen += range(k0, k1)
            if q1 > q0 and k1 > k0 and segment.chunk != (tq, tk):
                assert causal
                assert q0 + offset == k0, "chunks of queries and keys stand at the same positions"
                assert q1 - q0 <= fill * CHUNK
    assert q_seen == list(range(tq))
    assert k_seen == list(range(tk))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    sizes,
    sizes,
    st.integers(-3500, 3500) | st.just(0),
    st.booleans(),
    st.integers(1, 40),
    st.integers(10, 22),
    st.sampled_from([1, 16]),
)
@example(20_000, 20_000, 0, True, 64, 22, 16)  # where a step holds as many chunks as a GPU's buffers
def test_states_have_room(tq, tk, offset, causal, dim, buffer, heads):
    """The bound that holds for symbolic sizes is never less than what a call keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cosformer.ops.chunked.plan.BUFFER", 2**buffer)
        room = kept_size(tq, tk, offset, causal, heads, (dim, dim), CPU)
        fill, _ = tiling(max(tq, tk), heads, (dim, dim), CPU)
    q, k = torch.empty(1, tq, heads, dim), torch.empty(1, tk, heads, dim)
    steps = ChunkPlan({"q": q}, {"k": k, "v": k}, None, None, arguments(q, k, k, causal, offset, 1e4), fill)
    slots, used = steps.slots(torch.empty(1, heads, room))
    assert used <= room
    for slot in slots:
        assert slot is None or slot.shape[-2:] == (dim, width(dim))


def test_an_accelerator_takes_few_large_steps():
    """Each starts kernels: rows of a batch in a few tiles, a long row a quarter at a time at most."""
    of_cpu, of_gpu = (tiling(2048, 16, (64, 64), torch.device(name)) for name in ("cpu", "cuda"))
    assert of_cpu == (8, 1)
    assert of_gpu == (8, 8)
    assert tiling(65536, 16, (64, 64), torch.device("cuda")) == (64, 1)
    assert kept_size(65536, 65536, 0, True, 16, (64, 64), torch.device("cuda")) < 65536 * 16


def call(length):
    """A forward and backward pass in a room of its own: the bytes to work in, and of the kept states."""
    room = Workspace()
    q, k, v = (torch.randn(1, length, 8, 64) for _ in range(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cosformer.ops.chunked.plan._workspace", room)
        args, out, den = arguments(q, k, v, True, 0, length), torch.empty_like(v), torch.empty(q.shape[:-1])
        kept, _ = attention.forward(args, None, out, den)
        into = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
        attention.backward(args, None, Saved(out, den, kept), out, None, into)
    return sum(x.nbytes for x in room.memory.values()), kept.nbytes


def test_temporaries_do_not_grow_with_the_length():
    """Twice the length, once it is long, needs the same room to work in."""
    assert call(4096)[0] == call(8192)[0]


@pytest.mark.parametrize("length", [1024, 4096])
def test_short_sequences_need_less_room_than_their_tensors(length):
    """Beside the output and three gradients, as large as q, little more than three times q."""
    assert sum(call(length)) <= 3.25 * length * 8 * 64 * 4


def test_kept_memory_is_bounded():
    room, cpu = Workspace(), torch.device("cpu")
    room.limit = 2**12
    for n in range(1, 600):
        assert isinstance(room.take("x", (n, 3), torch.float32, cpu), Buffer)
    assert sum(x.nbytes for x in room.memory.values()) <= room.limit
    assert len(room.buffers) <= room.shapes


def test_a_buffer_is_found_again():
    room, cpu = Workspace(), torch.device("cpu")
    first = room.take("x", (4, 3), torch.float32, cpu)
    assert room.take("x", (4, 3), torch.float32, cpu) is first
    assert room.take("x", (2, 3), torch.float32, cpu).whole.data_ptr() == first.whole.data_ptr()
    assert room.take("y", (4, 3), torch.float32, cpu).whole.data_ptr() != first.whole.data_ptr()
    assert room.take("x", (4, 3), torch.float64, cpu).whole.dtype == torch.float64
