"""The kernels compile, without a GPU, for every architecture they support: within its shared memory, without
large spills, and the same for every length."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from tests.ops.triton.process import run

SHARED = {80: 163, 86: 99, 89: 99, 90: 227}  # KiB a CTA may use
SPILLED = {64: 256, 128: 1024}  # bytes a thread may spill, beside its 255 registers

RECORD = """
import sys, torch
from cosformer.ops.gpu import state_scan
from cosformer.ops.triton import kernels, run
from tests.ops.triton.compiling import Recorder, report

launches = []
for module, names in (
    (kernels, ("chunk_attention", "chunk_denominator", "bwd_preprocess", "state_apply", "chunk_state")),
    (state_scan, ("state_scan",)),
):
    for name in names:
        setattr(module, name, Recorder(getattr(module, name), launches))

def record(dim, causal, length, batch=8):
    launches.clear()
    q, k, v, g = (torch.empty(batch, length, 16, dim, dtype=torch.bfloat16, device="meta") for _ in range(4))
    settings = (causal, 0, float(length), 1e-6, False, True)
    out, d, state, kept = run.forward(q, k, v, None, None, None, None, None, *settings)
    kept = state.s if state is not None else kept
    run.backward(g, None, q, k, v, out, d, kept, None, None, None, None, None, causal, 0, float(length), 1e-6)
    return list(launches)
"""
COMPILE = (
    RECORD
    + """
capability, dim = int(sys.argv[1]), int(sys.argv[2])
kernels.has_large_smem = lambda device: capability == 90
launched = [*record(dim, True, 2048), *record(dim, False, 2048), *record(dim, False, 512, 128)]
for launch in {(x.kernel.__name__, x.args.get("OUTPUT"), x.args.get("BT")): x for x in launched}.values():
    usage = report(launch.compile(capability))
    print(launch.kernel.__name__, launch.args.get("OUTPUT"), usage["stack"], usage["shared"])
"""
)


# One chip of each kind in every run: what differs between them is shared memory and the instructions of 90.
LESS = [(80, 128), (90, 64)]
MORE = [pytest.param(*x, marks=pytest.mark.thorough) for x in ((86, 64), (89, 128))]


@pytest.mark.parametrize(
    ("capability", "dim"), [*LESS, *MORE, pytest.param(90, 128, marks=pytest.mark.thorough)]
)
def test_every_chip(capability, dim):
    """86 and 89 have the same limits, a head size each; 80 has more room than they."""
    lines = run(COMPILE, capability, dim)
    assert len(lines) > 10
    for line in lines:
        *_, stack, shared = line.split()
        assert int(shared) <= SHARED[capability] * 1024, line
        assert int(stack) <= SPILLED[dim], line


LENGTHS = (
    RECORD
    + """
def constants(launch):
    given = ((p.name, launch.args[p.name]) for p in launch.kernel.params if p.is_constexpr)
    return launch.kernel.__name__, tuple((name, str(x)) for name, x in given)

for causal in (True, False):
    found = [{constants(x) for x in record(64, causal, n, batch=1)} for n in (999, 4096, 70001)]
    assert found[0] == found[1] == found[2], found
    found = [{constants(x) for x in record(64, causal, 4096, batch=b)} for b in (1, 2, 3)]
    assert found[0] == found[1] == found[2], found
print("the same")
"""
)


def test_no_length_and_no_batch_is_among_what_is_compiled():
    assert run(LENGTHS) == ["the same"]


WINDOWS = """
import sys, torch
from cosformer.ops.gpu.windows import launch as windowed, step
from tests.ops.triton.compiling import Recorder, report

launches = []
for name in ("band_queries", "band_keys", "wide", "document_bounds", "window_bwd_preprocess"):
    setattr(windowed, name, Recorder(getattr(windowed, name), launches))
step.mixed_step = Recorder(step.mixed_step, launches)

def record(dim, windows, causal, length, batch=1, packed=False, dtype=torch.bfloat16):
    launches.clear()
    table = windowed.window_table(windows, torch.device("meta"))
    empty = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")
    q, k, v, g, out, dq, dk, dv = (empty(batch, length, len(windows), dim) for _ in range(8))
    den = empty(batch, len(windows), length, dtype=torch.float32)
    settings = (table, None, empty(9, dtype=torch.int32) if packed else None, causal, 0, 1e-6)
    windowed.forward(q, k, v, out, den, *settings)
    windowed.backward(g, q, k, v, out, den, dq, dk, dv, *settings)
    carried = [empty(batch, sum(w - 1 for w in windows if w), dim) for _ in range(2)]
    carried += [empty(batch, windows.count(0), 2, *n, dtype=torch.float32) for n in ((dim, dim), (dim,))]
    token = [x[:, :1] for x in (q, k, v, out)]
    step.step(*token, *carried, empty(batch, dtype=torch.int64), windows, None, 1e4, 1e-6, True)
    return list(launches)
"""
WINDOWS_SPILLED = {80: 704, 86: 704, 89: 704, 90: 384}  # without Hopper's products operands lie in registers
COMPILE_WINDOWS = (
    WINDOWS
    + """
capability, dim = int(sys.argv[1]), int(sys.argv[2])
windowed.has_large_smem = lambda device: capability == 90
windows = (2, 64, 0, 512)
launched = record(dim, windows, True, 2048)
if capability == 90:
    launched += record(dim, windows, False, 2048, packed=True)
for launch in (x for x in launched if capability == 90 or not x.args.get("MEND")):
    usage = report(launch.compile(capability))
    what = launch.args.get("OUTPUT"), launch.args.get("IS_VARLEN")
    print(launch.kernel.__name__, *what, usage["reg"], usage["stack"], usage["shared"])
"""
)


@pytest.mark.parametrize(("capability", "dim"), [*LESS, *MORE])
def test_windows_on_every_chip(capability, dim):
    """Packed calls on the newest alone: they compile for half a minute."""
    lines = run(COMPILE_WINDOWS, capability, dim)
    assert len(lines) >= 9
    for line in lines:
        *_, stack, shared = line.split()
        assert int(shared) <= SHARED[capability] * 1024, line
        assert int(stack) <= WINDOWS_SPILLED[capability], line


WINDOW_LENGTHS = (
    WINDOWS
    + """
def constants(launch):
    given = ((p.name, launch.args[p.name]) for p in launch.kernel.params if p.is_constexpr)
    return launch.kernel.__name__, tuple((name, str(x)) for name, x in given)

for causal in (True, False):
    calls = [((3, 64, 0, 512), 999, 1), ((1, 0, 320, 1024), 70001, 2), ((256, 512, 0, 7), 4096, 3)]
    found = [{constants(x) for x in record(64, w, causal, n, batch=b)} for w, n, b in calls]
    assert found[0] == found[1] == found[2], found
print("the same")
"""
)


def test_no_window_no_length_and_no_batch_is_among_what_is_compiled():
    assert run(WINDOW_LENGTHS) == ["the same"]
