"""A replay gets TMA descriptors of the tensors it is given. Nothing is encoded here: that takes a GPU's
driver."""

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")


@pytest.fixture
def replayed(monkeypatch):
    """Arguments of replayed kernels, which do nothing. A descriptor is encoded as a word."""
    from cosformer.ops.gpu import launch_plan as gpu
    from cosformer.ops.hopper import launch_plan

    found = []

    def encode(descriptor, compiled, index):
        base = f"{compiled} {index}: {descriptor.base.data_ptr()}"
        return [base, *descriptor.shape, *descriptor.strides]

    monkeypatch.setattr(launch_plan, "encode_descriptor", encode)
    monkeypatch.setattr(launch_plan, "launch", lambda *_: "compiled")
    monkeypatch.setattr(gpu, "launcher", lambda *_: lambda stream, values: found.append(values))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    return found


def test_descriptors_follow_the_tensors(replayed):
    from cosformer.ops.hopper.launch_plan import HopperLaunchPlan, tma_descriptor

    def tiles():
        return torch.zeros(2, 64, 2, 64, dtype=torch.bfloat16)

    q, k = tiles(), tiles()
    plan = HopperLaunchPlan((q, k), torch.device("cpu"), True)
    out = plan.empty((2, 64, 2, 64), torch.bfloat16)
    descriptors = [tma_descriptor(x, 64, 64) for x in (q, out)]
    plan.launch_tma("kernel", 1, (descriptors[0], k, descriptors[1], 3.0), (64,))
    plan.finish(out)
    assert plan.replayable
    for _ in range(2):
        q, k = tiles(), tiles()
        (out,) = plan.replay((q, k))
        layout = [2, 64, 2, 64, 8192, 128, 64, 1]
        first, second = (f"compiled {i}: {x.data_ptr()}" for i, x in enumerate((q, out)))
        assert replayed.pop() == [first, *layout, k.data_ptr(), second, *layout, 3.0, 64]
