"""Which calls with windows the Hopper kernels compute, and which are left to the portable ones; asked on
any machine."""

import pytest

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support
from tests.ops.triton.process import run

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")

ASK = """
import torch
from tests.ops.hopper.compiling import record_windows

def names(windows=(1024,) * 4, **options):
    return {(x.name, causal) for causal in options.pop("modes", (True, False))
            for x in record_windows(windows, causal, **options)}

KERNELS = ("window_state", "window_fwd", "window_bwd_dq", "window_bwd_dkv")
ALL = {(n, c) for n in KERNELS for c in (True, False)}
SERVED = [
    {}, {"windows": (320,) * 2}, {"windows": (4096,) * 3}, {"length": 1000}, {"length": 65537},
]
SERVED_IN_PART = [
    {"dim": 32}, {"value_dim": 40}, {"windows": (1024, 512)}, {"windows": (1024, 64)}, {"windows": (1024, 0)},
    {"length": 1}, {"length": 191},
]
OTHERS = [
    {"dtype": torch.float16}, {"dtype": torch.float32}, {"dim": 72}, {"dim": 128}, {"value_dim": 128},
    {"dim": 20}, {"masked": True}, {"packed": True}, {"offset": 64}, {"windows": (256,) * 4},
    {"keys": 2112, "offset": 64}, {"keys": 1000, "modes": (False,)}, {"length": 0},
]
for call in SERVED:
    assert names(**call) == ALL, call
# No tile leaves the window, and there is no state to start from.
assert names(windows=(4096,) * 2, length=200) == ALL - {("window_state", True)}
for call in SERVED_IN_PART:
    assert {n for n, _ in names(**call)} == set(KERNELS), call
assert {n for n, _ in names(group=2)} == {"window_state", "window_fwd"}  # the backward is portable
for call in OTHERS:
    assert names(**call) == set(), call

NAMES = ("fwd", "bwd_dq", "bwd_dkv", "bwd")
def bands(windows, causal, **options):
    # how many launches of each kernel, those that mend included: of bands, and of rings
    found = [x.name for x in record_windows(windows, causal, **options)]
    assert set(found) <= {f"{kind}_{name}" for kind in ("band", "ring") for name in NAMES}, found
    return [[found.count(f"{kind}_{name}") for name in NAMES] for kind in ("band", "ring")]

# `AT_ONCE`: gradients at once, and what mends them.
NONE, ONE, TWO, THREE, AT_ONCE = [0] * 4, [2, 2, 2, 0], [4, 4, 4, 0], [6, 6, 6, 0], [2, 1, 1, 1]
AND_ONE = [4, 3, 3, 1]
long, longer = 2**16, 2**18  # rows of heads: 4 and 16 times as many
assert bands((2, 64), True, length=long) == [AT_ONCE, NONE]
assert bands((2, 65), True, length=long) == [ONE, NONE]  # a pair of 65 tokens is seen in two tiles
assert bands((2, 65, 66, 129), True, length=long) == [TWO, NONE]
assert bands((2, 64, 66, 129), True, length=long) == [AND_ONE, NONE]
assert bands((2, 64, 130, 256), True, length=long) == [AT_ONCE, TWO]  # three tiles behind, and four
assert bands((1, 32, 66, 84), False, length=longer) == [AT_ONCE, NONE]  # the last two are portable
assert bands((1, 33, 66, 84), False, length=longer) == [ONE, NONE]
assert bands((32, 34, 65, 84), False, length=longer) == [AND_ONE, NONE]
assert bands((2, 66, 85, 129), False, length=longer) == [AT_ONCE, ONE]
assert bands((1, 128, 192, 256), False, length=longer) == [AT_ONCE, THREE]
assert bands((2, 256), True, length=long, group=2) == [[2, 2, 0, 0]] * 2
assert bands((2, 65), True, length=long // 2) == [NONE, NONE]  # too few rows
assert bands((2, 256), False, length=long) == [NONE, NONE]
for call in ({"dtype": torch.float16}, {"dim": 128}, {"dim": 20}, {"masked": True}, {"packed": True},
             {"offset": 64}, {"keys": 1000}):
    assert bands((2, 256), True, length=longer, **call) == [NONE, NONE], call
print("right")
"""


def test_dispatch():
    assert run(ASK) == ["right"]
