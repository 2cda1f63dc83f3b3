"""The Hopper kernels compile, without a GPU, within their budgets: no large spills, asynchronous matrix
products, registers and shared memory for as many resident CTAs as planned, one kernel for every length."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support
from tests.ops.triton.process import run

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")

SHARED = 228 * 1024  # bytes an SM has; each CTA takes 1 KiB more than it asks for
REGISTERS = 64 * 1024  # of an SM; a thread takes a multiple of 8
# Resident CTAs per SM, by width; two, or one of wide heads, if not listed.
CTAS = {
    64: {"chunk_state": 3, "state_apply_o": 4, "varlen_bidir_fwd": 3, "varlen_single_tile_fwd": 4},
    128: {"varlen_single_tile_fwd": 2},
}
SPILLED = {64: 16, 128: 128}  # bytes a thread may spill, beside its 255 registers

COMPILE = """
import sys
from tests.ops.hopper.compiling import Report, record

dim, options = int(sys.argv[1]), eval(sys.argv[2])
launches = [x for causal in (True, False) for x in record(dim, causal, **options)]
for launch in {(x.name, x.constants): x for x in launches}.values():
    x = Report.of(launch.compile())
    print(launch.name, x.registers, launch.constants[-1], x.stack, x.shared, x.products, x.waits)
"""
ALL = {
    "chunk_fwd", "chunk_bwd_dq", "chunk_bwd_dkv", "chunk_state", "state_apply_o", "state_apply_dq",
    "state_apply_dkv",
}  # fmt: skip
VARLEN = {"varlen_bidir_fwd", "varlen_bidir_bwd"}  # packed documents without states
SINGLE_TILE = {"varlen_single_tile_fwd", "varlen_single_tile_bwd"}  # one query head for each key head


@pytest.mark.parametrize(
    ("dim", "options"),
    [
        (64, {}),
        *(
            pytest.param(*more, marks=pytest.mark.thorough)
            for more in (
                (128, {}),
                (64, {"packed": True, "batch": 1}),
                (64, {"masked": True, "state": True, "kv_heads": 4}),
                (96, {"packed": True, "state": True, "batch": 1}),
                (64, {"packed": True, "batch": 1, "kv_heads": 4, "length": 300}),
                (128, {"packed": True, "batch": 1}),
            )
        ),
    ],
    ids=str,
)
def test_every_kernel(dim, options):
    width = 64 if dim <= 64 else 128
    lines = [line.split() for line in run(COMPILE, dim, options)]
    expected = set(ALL)
    if "packed" in options and "state" not in options:
        expected |= VARLEN if "kv_heads" in options else VARLEN | SINGLE_TILE
    assert {name for name, *_ in lines} == expected
    for name, *numbers in lines:
        registers, warps, stack, shared, products, waits = map(int, numbers)
        ctas = CTAS[width].get(name, 128 // width)
        assert stack <= SPILLED[width], name
        assert ctas * warps * 32 * (-(-registers // 8) * 8) <= REGISTERS, name
        assert ctas * (shared + 1024) <= SHARED, name
        # Where the assembler serialises products, it waits for each.
        assert products >= 3 * waits > 0, name


WINDOWS = """
import sys
from tests.ops.hopper.compiling import Report, record_windows

causal = eval(sys.argv[1])
# Rows longer than the window and shorter ones, in which no tile leaves it.
launches = [x for length in (2048, 200) for x in record_windows((1024,) * 4, causal, length=length)]
for launch in {(x.name, x.constants): x for x in launches}.values():
    x = Report.of(launch.compile())
    print(launch.name, x.registers, launch.constants[-1], x.stack, x.shared, x.products, x.waits)
"""
RING_SPILLED, BAND_SPILLED = 64, {"band_bwd": 48}
WIDE_SPILLED = {True: 32, False: 80}  # bytes a thread spills at most; measured beside 255 registers


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [True, False])
def test_wide_windows(causal):
    lines = [line.split() for line in run(WINDOWS, causal)]
    kernels = {"window_state", "window_fwd", "window_bwd_dq", "window_bwd_dkv"}
    assert {name for name, *_ in lines} == kernels
    for name, *numbers in lines:
        registers, warps, stack, shared, products, waits = map(int, numbers)
        assert stack <= WIDE_SPILLED[causal], name
        assert 2 * warps * 32 * (-(-registers // 8) * 8) <= REGISTERS, name
        assert 2 * (shared + 1024) <= SHARED, name
        assert products >= 3 * waits > 0, name


BANDS = """
import sys
from cosformer.ops.hopper import band_run
from tests.ops.hopper.compiling import Report, record_windows

band_run.MIN_ROWS = {True: 0, False: 0}
for launch in record_windows((2, 64, 128, 130, 256), eval(sys.argv[1])):
    x = Report.of(launch.compile())
    mends = launch.constants[-2] is True
    print(launch.name, mends, x.registers, launch.constants[-1], x.stack, x.shared, x.products, x.waits)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("causal", [True, False])
def test_narrow_windows(causal):
    """Two CTAs of four warps per SM and no spills (gradients at once: few), or one of eight and few, but for
    the launch that mends what is not finite."""
    lines = [line.split() for line in run(BANDS, causal)]
    # 2 and 64 (gradients at once: 5 launches), 128, 130, 256; in both directions 64 is apart.
    assert len(lines) == (23 if causal else 29)
    for name, mends, *numbers in lines:
        registers, warps, stack, shared, products, waits = map(int, numbers)
        assert shared + 1024 <= SHARED, name
        if mends == "False":
            ctas = 8 // warps
            assert ctas * (shared + 1024) <= SHARED, name
            assert products >= 3 * waits > 0, name
            assert stack <= (RING_SPILLED if warps == 8 else BAND_SPILLED.get(name, 0)), name
            assert ctas * warps * 32 * (-(-registers // 8) * 8) <= REGISTERS, name


LENGTHS = """
from tests.ops.hopper.compiling import record

for causal, packed in ((True, False), (False, False), (True, True), (False, True)):
    for lengths in ((600, 999, 2048), (4160, 9999, 70001)):  # short rows sum their states inline
        found = [
            {(x.name, x.constants) for x in record(64, causal, batch=1, length=n, packed=packed)}
            for n in lengths
        ]
        assert found[0] == found[1] == found[2], found
print("the same")
"""


def test_no_length_is_among_what_is_compiled():
    assert run(LENGTHS) == ["the same"]


HEAD_GROUP_SUM = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cosformer.ops.hopper.head_group_sum import BLOCK, sum_head_groups

types = {"parts_ptr": "*bf16", "sums_ptr": "*bf16", "count": "i32", "GROUP": "constexpr", "WIDTH":
"constexpr",
         "BLOCK": "constexpr"}
constants = dict(zip([(3,), (4,), (5,)], (4, 64, BLOCK)))
aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
source = ASTSource(sum_head_groups, types, constants, aligned)
code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
print(*sorted(set(re.findall("(?:ld|st)[.]global[.0-9a-z]*", code))))
"""


def test_head_group_sums_load_and_store_16_bytes_at_a_time():
    assert run(HEAD_GROUP_SUM) == ["ld.global.v4.b32 st.global.v4.b32"]
