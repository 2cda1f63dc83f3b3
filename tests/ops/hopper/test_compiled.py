"""The kernels for Hopper compile, without one, as they were meant: no large spills, products that run while
something else is done, registers and shared memory for as many blocks as are to work at a time, one kernel
for every length."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support
from tests.ops.triton.test_compiled import run

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")

SHARED = 228 * 1024  # bytes a multiprocessor has; each block takes 1 KiB more than it asks for
REGISTERS = 64 * 1024  # of a multiprocessor; a thread takes a multiple of 8
# Blocks that are to work at a time on a multiprocessor, by width; two, or one of wide heads, if not said.
BLOCKS = {64: {"absorb": 3, "apply_o": 4, "whole_o": 3, "square_o": 4}, 128: {"square_o": 2}}
SPILLED = {64: 16, 128: 128}  # bytes of stack a thread may need beside the 1,020 of its registers

# In a process of its own: here the kernels may have been made for the interpreter.
COMPILE = """
import sys
from tests.ops.hopper.compiling import Report, record

dim, options = int(sys.argv[1]), eval(sys.argv[2])
starts = [s for causal in (True, False) for s in record(dim, causal, **options)]
for start in {(s.name, s.constants): s for s in starts}.values():
    x = Report.of(start.compile())
    print(start.name, x.registers, start.constants[-1], x.stack, x.shared, x.products, x.waits)
"""
ALL = {"walk_o", "walk_dq", "walk_dkv", "absorb", "apply_o", "apply_dq", "apply_dkv"}
WHOLE = {"whole_o", "whole_gradients"}  # documents without states
SQUARES = {"square_o", "square_gradients"}  # of one tile, with a key head for every head


@pytest.mark.parametrize(
    ("dim", "options"),
    [
        (64, {}),
        (128, {}),
        (64, {"masked": True, "state": True, "kv_heads": 4}),
        (96, {"packed": True, "state": True, "batch": 1}),
        (64, {"packed": True, "batch": 1}),
        (64, {"packed": True, "batch": 1, "kv_heads": 4, "length": 300}),
        (128, {"packed": True, "batch": 1}),
    ],
    ids=str,
)
def test_every_kernel(dim, options):
    width = 64 if dim <= 64 else 128
    lines = [line.split() for line in run(COMPILE, dim, options)]
    expected = set(ALL)
    if "packed" in options and "state" not in options:
        expected |= WHOLE if "kv_heads" in options else WHOLE | SQUARES
    assert {name for name, *_ in lines} == expected
    for name, *numbers in lines:
        registers, warps, stack, shared, products, waits = map(int, numbers)
        blocks = BLOCKS[width].get(name, 128 // width)
        assert stack <= SPILLED[width], name
        assert blocks * warps * 32 * (-(-registers // 8) * 8) <= REGISTERS, name
        assert blocks * (shared + 1024) <= SHARED, name
        # Where the assembler runs products one after the other, it waits for each.
        assert products >= 3 * waits > 0, name


LENGTHS = """
from tests.ops.hopper.compiling import record

for causal, packed in ((True, False), (False, False), (True, True), (False, True)):
    for lengths in ((600, 999, 2048), (4160, 9999, 70001)):  # short rows sum up their states themselves
        found = [
            {(s.name, s.constants) for s in record(64, causal, batch=1, length=n, packed=packed)}
            for n in lengths
        ]
        assert found[0] == found[1] == found[2], found
print("the same")
"""


def test_no_length_is_among_what_is_compiled():
    assert run(LENGTHS) == ["the same"]


FOLD = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cosformer.ops.hopper.fold import BLOCK, fold

types = {"PARTS": "*bf16", "SUMS": "*bf16", "count": "i32", "GROUP": "constexpr", "WIDTH": "constexpr",
         "BLOCK": "constexpr"}
constants = dict(zip([(3,), (4,), (5,)], (4, 64, BLOCK)))
aligned = {(i,): [["tt.divisibility", 16]] for i in range(2)}
source = ASTSource(fold, types, constants, aligned)
code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
print(*sorted(set(re.findall("(?:ld|st)[.]global[.0-9a-z]*", code))))
"""


def test_sums_over_heads_are_read_and_written_16_bytes_at_a_time():
    assert run(FOLD) == ["ld.global.v4.b32 st.global.v4.b32"]
