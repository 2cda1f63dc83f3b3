"""A launch plan replays what was launched, with the addresses of other tensors. Kernels are replaced by
stand-ins: this is about addresses, and needs no GPU."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from cosformer.ops.gpu import launch_cache, launch_plan
from cosformer.ops.gpu.carried_state import State
from cosformer.ops.gpu.launch_plan import LaunchPlan


class Kernel:
    """Records what it was launched with."""

    params = tuple(SimpleNamespace(name=n) for n in ("A", "B", "n", "C", "SIZE"))

    def __init__(self):
        self.launched = []

    def __getitem__(self, grid):
        return lambda *args, **options: "compiled"


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    kernel = Kernel()

    def launcher(compiled, programs):
        def launch(stream, values):
            assert (compiled, stream) == ("compiled", 77)
            kernel.launched.append((programs, values))

        return launch

    monkeypatch.setattr(launch_plan, "launcher", launcher)
    monkeypatch.setattr(launch_cache, "ensure_cuda_context", lambda device: None)
    monkeypatch.setattr(launch_cache, "PLAN_CACHE", {})
    return kernel


def record(kernel, inputs):
    plan = LaunchPlan(inputs, torch.device("cpu"), True)
    a, _, b = inputs
    made, unseen = plan.empty((6, 4)), plan.empty((5, 3))
    state = State(made, made.view(-1)[8:], 4, 4)
    plan.launch(kernel, 7, a, b[:, 2:], 5, made, SIZE=16, num_warps=4)
    plan.launch(kernel, 3, None, b, 5, state.z, SIZE=32)
    plan.launch(kernel, 2, unseen, unseen[1:], 5, plan.empty((9,)), SIZE=32)
    plan.finish(made, None, state)
    return plan


def test_addresses_of_the_tensors_given(kernel):
    plan = record(kernel, (torch.zeros(3, 5), None, torch.zeros(2, 8, dtype=torch.bfloat16)))
    assert plan.replayable
    for _ in range(2):
        a, b = torch.zeros(3, 5), torch.zeros(2, 8, dtype=torch.bfloat16)
        made, nothing, state = plan.replay((a, None, b))
        first, second, third = kernel.launched[-3:]
        assert first == (7, [a.data_ptr(), b.data_ptr() + 4, 5, made.data_ptr(), 16])
        assert second == (3, [None, b.data_ptr(), 5, made.data_ptr() + 32, 32])
        # What is not returned lies in one workspace, each tensor at a multiple of 256 bytes.
        workspace = third[1][0]
        assert third == (2, [workspace, workspace + 12, 5, workspace + 256, 32])
        assert nothing is None
        assert made.shape == (6, 4)
        assert state.s is made
        assert state.z.data_ptr() == made.data_ptr() + 32
        assert (state.s_stride, state.z_stride) == (4, 4)


def test_the_first_result_only(kernel):
    plan = LaunchPlan((torch.zeros(3, 5),), torch.device("cpu"), True)
    first, second = plan.empty((6, 4)), plan.empty((5, 3))
    plan.launch(kernel, 7, first, second, 5, plan.empty((9,)), SIZE=16)
    plan.finish(first, second)
    (out,) = plan.first_result_only().replay((torch.zeros(3, 5),))
    _, (a, b, _, c, _) = kernel.launched[-1]
    assert a == out.data_ptr()
    assert out.shape == (6, 4)
    assert c == b + 256  # the second is in the workspace
    results = plan.replay((torch.zeros(3, 5),))
    assert [x.data_ptr() for x in results] == kernel.launched[-1][1][:2]


def test_tensors_that_share_memory(kernel):
    """The second lies inside the first when the plan is recorded, and before it when it is replayed."""
    block = torch.zeros(40)

    def record(a, b, *arguments):
        plan = LaunchPlan((a, b), torch.device("cpu"), True)
        plan.launch(kernel, 1, *arguments, 5, None, SIZE=16)
        plan.finish(None)
        return plan

    a, b = block[:20].view(4, 5), block[10:26].view(2, 8)
    plan = record(a, b, a, b)
    assert plan.replayable
    a, b = block[20:].view(4, 5), block[:16].view(2, 8)
    plan.replay((a, b))
    assert kernel.launched == [(1, [a.data_ptr(), b.data_ptr(), 5, None, 16])]
    # An address inside both belongs to either.
    a, b = block[:20].view(4, 5), block[10:26].view(2, 8)
    assert not record(a, b, a, b[:, 2:]).replayable


def test_a_tensor_that_the_plan_did_not_allocate(kernel):
    """A copy made in between would not be made by a replay."""
    x = torch.zeros(3, 5)
    plan = LaunchPlan((x, None, x), torch.device("cpu"), True)
    plan.launch(kernel, 1, x.clone(), x, 5, x, SIZE=16)
    plan.finish(x)
    assert not plan.replayable


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True


def test_one_tensor_as_several_inputs_has_a_plan_of_its_own(kernel):
    calls = []

    def function(plan, a, b, size):
        calls.append((a, b))
        plan.launch(kernel, 1, a, b, 5, None, SIZE=size)
        return (None,)

    def call(a, b):
        launch_cache.cached_call(function, (a, b), (16,), replayable=True)

    one, a, b, c, d = (torch.zeros(4).as_subclass(OnGpu) for _ in range(5))
    call(one, one)
    call(a, b)
    assert len(calls) == 2
    call(c, d)
    assert len(calls) == 2
    assert kernel.launched == [(1, [c.data_ptr(), d.data_ptr(), 5, None, 16])]


def test_another_layout_has_a_plan_of_its_own(kernel):
    calls = []

    def function(plan, x, size):
        calls.append(x)
        plan.launch(kernel, 1, x, None, 5, None, SIZE=size)
        return (None,)

    for x in (torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(8, 4), torch.zeros(8, 4).T):
        launch_cache.cached_call(function, (x.as_subclass(OnGpu),), (16,), replayable=True)
    assert len(calls) == 3
    assert len(kernel.launched) == 1


def test_a_call_that_cannot_be_replayed_runs_again(kernel):
    calls = []

    def function(plan, x, size):
        calls.append(x)
        plan.launch(kernel, 1, x + 1, None, 5, None, SIZE=size)
        return (None,)

    for _ in range(3):
        launch_cache.cached_call(function, (torch.zeros(4).as_subclass(OnGpu),), (16,), replayable=True)
    assert len(calls) == 3
    assert kernel.launched == []


def test_what_is_launched_aside(kernel, monkeypatch):
    """Between a fork and a join, on the other stream, when it is recorded and when it is replayed."""
    told = []
    side = SimpleNamespace(
        stream=SimpleNamespace(cuda_stream=88),
        fork=lambda: told.append("fork"),
        join=lambda: told.append("join"),
    )
    monkeypatch.setattr(launch_plan, "side_stream", lambda device: side)
    monkeypatch.setattr(
        launch_plan, "launcher", lambda compiled, n: lambda stream, x: told.append((n, stream))
    )
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "main")
    plan = LaunchPlan((torch.zeros(3),), torch.device("cpu"), True)
    for wanted, programs in ((True, 5), (False, 6), (True, 7)):
        with plan.aside(wanted):
            x = plan.empty((4,))
            plan.launch(kernel, programs, x, x, 1, x, SIZE=4)
    plan.join()
    plan.finish(x)
    # Copies that are not of the plan may lie between the two, and new memory may be filled.
    assert told == ["fork", "fork", "fork", "fork", "join"]
    told.clear()
    plan.replay((torch.zeros(3),))
    assert told == ["fork", (5, 88), (6, 77), (7, 88), "join"]
    alone = LaunchPlan((torch.zeros(3),), torch.device("cpu"), False)  # is not recorded: one stream
    with alone.aside(True):
        alone.launch(kernel, 5, x, x, 1, x, SIZE=4)
    alone.join()
    assert len(told) == 5


def test_memory_that_is_filled_is_not_used_before(monkeypatch):
    """Deterministic algorithms fill new memory, on the stream that takes it, which is the main one."""
    told = []
    side = SimpleNamespace(stream="side", fork=lambda: told.append("fork"), join=lambda: None)

    @contextmanager
    def stream(of):
        told.append(of)
        yield
        told.append(f"behind {of}")

    empty = torch.empty
    monkeypatch.setattr(launch_plan, "side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "main")
    monkeypatch.setattr(torch, "empty", lambda *a, **k: told.append("empty") or empty(*a, **k))
    plan = LaunchPlan((torch.zeros(3),), torch.device("cpu"), True)
    with plan.aside(True):
        plan.empty((4,))
    assert told == ["fork", "side", "main", "empty", "fork", "behind main", "behind side"]


def test_what_was_begun_aside_goes_on_there(monkeypatch):
    """Also where something turns up that cannot be replayed: it may need what was launched there before."""
    used = []
    side = SimpleNamespace(stream="side", fork=lambda: None, join=lambda: None)
    monkeypatch.setattr(launch_plan, "side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(used.append(stream)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "main")
    plan = LaunchPlan((torch.zeros(3),), torch.device("cpu"), True)
    for replayable in (True, False):
        plan.replayable = replayable
        with plan.aside(True):
            pass
    assert used == ["side", "side"]
