"""Block sizes: a small fixed table, so that the same call always runs the same code.

The kernels are compiled once for a head size, a type, the number of heads, the distance in memory from one
token to the next and a kind of call; no length is among what a kernel is compiled for, and nothing is tuned
at run time.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl


@dataclass(frozen=True)
class Blocks:
    """Tokens a chunk, columns of the result a program, warps, stages of the pipeline."""

    chunk: int
    columns: int
    warps: int
    stages: int

    def options(self, features: int, columns: int) -> dict[str, Any]:
        return {
            "CHUNK": self.chunk,
            "BF": power_of_two(features),
            "BN": min(self.columns, power_of_two(columns)),
            "PARTS": min(self.chunk, 4 * self.warps),
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def power_of_two(n: int) -> int:
    """The next one from n on, at least 16: what a matrix product needs."""
    return max(16, 1 << (n - 1).bit_length())


# By the bytes of a multiplied number and the padded number of features. Four warps where bfloat16 walks:
# with eight, Triton 3.6 compiles products that are 16 columns wide wrongly.
_EXACT = {
    (4, 16): Blocks(16, 32, 8, 1),
    (4, 32): Blocks(16, 32, 8, 1),
    (4, 64): Blocks(16, 32, 8, 1),
    (4, 128): Blocks(16, 16, 8, 1),
    (4, 256): Blocks(16, 16, 8, 1),
}
_TABLE = {
    "walk": _EXACT
    | {
        (2, 16): Blocks(64, 64, 4, 2),
        (2, 32): Blocks(64, 64, 4, 2),
        (2, 64): Blocks(64, 64, 4, 2),
        (2, 128): Blocks(64, 64, 4, 2),
        (2, 256): Blocks(32, 32, 8, 1),
    },
    "denominators": {
        (2, 128): Blocks(64, 128, 4, 2),
        (2, 256): Blocks(32, 256, 4, 1),
        (4, 128): Blocks(16, 128, 4, 1),
        (4, 256): Blocks(16, 256, 4, 1),
    },
    "wide": _EXACT
    | {
        (2, 16): Blocks(64, 64, 4, 1),
        (2, 32): Blocks(64, 64, 4, 1),
        (2, 64): Blocks(64, 64, 4, 1),
        (2, 128): Blocks(32, 64, 8, 1),
        (2, 256): Blocks(32, 32, 8, 1),
    },
    "absorb": _EXACT
    | {
        (2, 16): Blocks(64, 64, 4, 3),
        (2, 32): Blocks(64, 64, 4, 3),
        (2, 64): Blocks(64, 64, 4, 3),
        (2, 128): Blocks(64, 128, 8, 3),
        (2, 256): Blocks(32, 32, 8, 1),
    },
    "apply": _EXACT
    | {
        (2, 16): Blocks(64, 64, 4, 2),
        (2, 32): Blocks(64, 64, 4, 2),
        (2, 64): Blocks(64, 64, 4, 3),
        (2, 128): Blocks(128, 128, 8, 2),
        (2, 256): Blocks(32, 32, 8, 1),
    },
}
# Where one of the sums wants other blocks than its sisters ("many": where there are so many states of keys
# that programs need not be large to keep the GPU at work).
_APART = {
    ("absorb", "many", 2, 64): Blocks(32, 64, 2, 4),
    ("walk", "dk", 2, 64): Blocks(64, 64, 4, 3),
    ("walk", "dv", 2, 64): Blocks(64, 64, 4, 3),
    ("walk", "dq", 2, 128): Blocks(64, 64, 8, 1),
    ("walk", "dk", 2, 128): Blocks(64, 64, 8, 1),
    ("apply", "dq", 2, 128): Blocks(64, 64, 4, 3),
    ("apply", "dk", 2, 128): Blocks(64, 64, 4, 3),
    ("apply", "dv", 2, 128): Blocks(64, 128, 4, 2),
}


# Where a block has less shared memory than on the H100 and its successors.
_NARROW = {
    ("walk", 2, 64): Blocks(32, 64, 4, 2),
    ("walk", 2, 128): Blocks(64, 32, 4, 1),
    ("wide", 2, 64): Blocks(32, 64, 4, 1),
    ("absorb", 2, 128): Blocks(32, 64, 4, 2),
    ("apply", 2, 128): Blocks(64, 32, 4, 2),
}


def blocks(kernel: str, what: str, bytes_: int, features: int, roomy: bool) -> Blocks:
    size = power_of_two(features)
    apart = _APART.get((kernel, what, bytes_, size)) if roomy else _NARROW.get((kernel, bytes_, size))
    return apart or _TABLE[kernel][bytes_, size]


@dataclass(frozen=True)
class Band:
    """Of a narrow window: a program's own rows, rows of the other side at a time, warps, stages, and the most
    registers a thread may have (None: as the compiler likes), so that enough programs run side by side."""

    own: int
    others: int
    warps: int
    stages: int
    registers: int | None = None

    def options(self, d: int, dv: int) -> dict[str, Any]:
        return {
            "BT": self.own,
            "BS": self.others,
            "BD": power_of_two(d),
            "BV": power_of_two(dv),
            "num_warps": self.warps,
            "num_stages": self.stages,
        } | ({} if self.registers is None else {"maxnreg": self.registers})


# By the bytes of a multiplied number and the padded number of features, the larger of D and Dv.
_BANDS = {
    ("queries", 2, 64): Band(64, 32, 4, 2, 128),
    ("queries", 2, 128): Band(64, 32, 8, 2, 128),
    ("queries", 2, 256): Band(32, 32, 8, 1),
    ("keys", 2, 64): Band(64, 32, 4, 2, 168),
    ("keys", 2, 128): Band(32, 32, 4, 2),
    ("keys", 2, 256): Band(32, 32, 8, 1),
    ("queries", 4, 64): Band(16, 16, 4, 1),
    ("queries", 4, 128): Band(16, 16, 4, 1),
    ("queries", 4, 256): Band(16, 16, 8, 1),
    ("keys", 4, 64): Band(16, 16, 4, 1),
    ("keys", 4, 128): Band(16, 16, 8, 1),
    ("keys", 4, 256): Band(16, 16, 8, 1),
}


def band(kernel: str, bytes_: int, features: int) -> Band:
    return _BANDS[kernel, bytes_, max(64, power_of_two(features))]


@cache
def is_roomy(device: torch.device) -> bool:
    """Whether a block may use 200 KiB of shared memory."""
    if device.type != "cuda":
        return True
    properties: Any = torch.cuda.get_device_properties(device)  # whose types leave this one out
    return bool(properties.shared_memory_per_block_optin >= 200 * 1024)


@dataclass(frozen=True)
class Arithmetic:
    """How matrices are multiplied: in which type, and if that is float32, how exactly."""

    dot: tl.dtype
    precision: str
    bytes: int


def arithmetic(dtype: torch.dtype, interpreted: bool) -> Arithmetic:
    """bfloat16 as it is; float16 as tf32, which holds every float16 exactly and does not overflow where
    scores or states leave its range; float32 in full, never as tf32. The interpreter's bfloat16 is
    wrong without a word: everything is float32 there, in the blocks of bfloat16."""
    if interpreted:
        return Arithmetic(tl.float32, "ieee", 2)
    if dtype == torch.bfloat16:
        return Arithmetic(tl.bfloat16, "tf32", 2)
    return Arithmetic(tl.float32, "tf32" if dtype == torch.float16 else "ieee", 4)
