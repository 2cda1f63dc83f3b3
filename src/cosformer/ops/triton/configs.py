"""Block sizes: a small fixed table, so that the same call always runs the same code.

A kernel is compiled once for a head size, a dtype, the number of heads, the stride between tokens and the
options of the call. No length is among these, and nothing is tuned at run time.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl


@dataclass(frozen=True)
class BlockConfig:
    """`bt` tokens a chunk, `bv` columns of the result a program, warps, pipeline stages."""

    bt: int
    bv: int
    warps: int
    stages: int

    def options(self, features: int, columns: int) -> dict[str, Any]:
        """As keyword arguments of a kernel."""
        return {
            "BT": self.bt,
            "BK": power_of_two(features),
            "BV": min(self.bv, power_of_two(columns)),
            "PARTIALS": min(self.bt, 4 * self.warps),
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def power_of_two(n: int) -> int:
    """The smallest power of two >= n, at least 16: what a matrix product needs."""
    return max(16, 1 << (n - 1).bit_length())


# Keys: bytes of an operand of the matrix products, and features padded to a power of two. Four warps in
# chunk_attention with bfloat16: with eight, Triton 3.6 miscompiles products that are 16 columns wide.
_FLOAT32 = {
    (4, 16): BlockConfig(16, 32, 8, 1),
    (4, 32): BlockConfig(16, 32, 8, 1),
    (4, 64): BlockConfig(16, 32, 8, 1),
    (4, 128): BlockConfig(16, 16, 8, 1),
    (4, 256): BlockConfig(16, 16, 8, 1),
}
_TABLE = {
    "chunk_attention": _FLOAT32
    | {
        (2, 16): BlockConfig(64, 64, 4, 2),
        (2, 32): BlockConfig(64, 64, 4, 2),
        (2, 64): BlockConfig(64, 64, 4, 2),
        (2, 128): BlockConfig(64, 64, 4, 2),
        (2, 256): BlockConfig(32, 32, 8, 1),
    },
    "chunk_denominator": {
        (2, 128): BlockConfig(64, 128, 4, 2),
        (2, 256): BlockConfig(32, 256, 4, 1),
        (4, 128): BlockConfig(16, 128, 4, 1),
        (4, 256): BlockConfig(16, 256, 4, 1),
    },
    "chunk_state": _FLOAT32
    | {
        (2, 16): BlockConfig(64, 64, 4, 3),
        (2, 32): BlockConfig(64, 64, 4, 3),
        (2, 64): BlockConfig(64, 64, 4, 3),
        (2, 128): BlockConfig(64, 128, 8, 3),
        (2, 256): BlockConfig(32, 32, 8, 1),
    },
    "state_apply": _FLOAT32
    | {
        (2, 16): BlockConfig(64, 64, 4, 2),
        (2, 32): BlockConfig(64, 64, 4, 2),
        (2, 64): BlockConfig(64, 64, 4, 3),
        (2, 128): BlockConfig(128, 128, 8, 2),
        (2, 256): BlockConfig(32, 32, 8, 1),
    },
    # With chunks of 16 tokens, Triton 3.6 miscompiles the products of tf32 (float16).
    "wide": {
        (4, 16): BlockConfig(32, 32, 4, 1),
        (4, 32): BlockConfig(32, 32, 4, 1),
        (4, 64): BlockConfig(32, 32, 4, 1),
        (4, 128): BlockConfig(32, 16, 4, 1),
        (4, 256): BlockConfig(32, 16, 8, 1),
        (2, 16): BlockConfig(64, 64, 4, 1),
        (2, 32): BlockConfig(64, 64, 4, 1),
        (2, 64): BlockConfig(64, 64, 4, 1),
        (2, 128): BlockConfig(32, 64, 8, 1),
        (2, 256): BlockConfig(32, 32, 8, 1),
    },
}
# Exceptions for one output ("many states": there are enough of them to fill the GPU with small programs).
_BY_OUTPUT = {
    ("chunk_state", "many states", 2, 64): BlockConfig(32, 64, 2, 4),
    ("chunk_attention", "dk", 2, 64): BlockConfig(64, 64, 4, 3),
    ("chunk_attention", "dv", 2, 64): BlockConfig(64, 64, 4, 3),
    ("chunk_attention", "dq", 2, 128): BlockConfig(64, 64, 8, 1),
    ("chunk_attention", "dk", 2, 128): BlockConfig(64, 64, 8, 1),
    ("state_apply", "dq", 2, 128): BlockConfig(64, 64, 4, 3),
    ("state_apply", "dk", 2, 128): BlockConfig(64, 64, 4, 3),
    ("state_apply", "dv", 2, 128): BlockConfig(64, 128, 4, 2),
}


# Exceptions for GPUs with less shared memory per CTA than an H100.
_SMALL_SMEM = {
    ("chunk_attention", 2, 64): BlockConfig(32, 64, 4, 2),
    ("chunk_attention", 2, 128): BlockConfig(64, 32, 4, 1),
    ("chunk_state", 2, 128): BlockConfig(32, 64, 4, 2),
    ("state_apply", 2, 128): BlockConfig(64, 32, 4, 2),
    ("wide", 2, 64): BlockConfig(32, 64, 4, 1),
}


def block_config(kernel: str, variant: str, bytes_: int, features: int, large_smem: bool) -> BlockConfig:
    """`variant`: the output, or "many states"."""
    size = power_of_two(features)
    if large_smem:
        exception = _BY_OUTPUT.get((kernel, variant, bytes_, size))
    else:
        exception = _SMALL_SMEM.get((kernel, bytes_, size))
    return exception or _TABLE[kernel][bytes_, size]


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


# Keys: bytes of an operand, and the larger of D and Dv padded to a power of two.
_BANDS = {
    ("o", 2, 64): Band(64, 64, 4, 2, 128),
    ("dq", 2, 64): Band(64, 32, 4, 2, 96),
    ("o", 2, 128): Band(64, 32, 4, 2, 168),
    ("dq", 2, 128): Band(64, 32, 4, 2, 168),
    ("o", 2, 256): Band(32, 32, 8, 1),
    ("dq", 2, 256): Band(32, 32, 8, 1),
    ("keys", 2, 64): Band(64, 32, 4, 2, 168),
    ("keys", 2, 128): Band(32, 32, 4, 2, 168),
    ("keys", 2, 256): Band(32, 32, 8, 1),
    ("o", 4, 64): Band(16, 16, 4, 1),
    ("o", 4, 128): Band(16, 16, 4, 1),
    ("o", 4, 256): Band(16, 16, 8, 1),
    ("dq", 4, 64): Band(16, 16, 4, 1),
    ("dq", 4, 128): Band(16, 16, 4, 1),
    ("dq", 4, 256): Band(16, 16, 8, 1),
    ("keys", 4, 64): Band(16, 16, 4, 1),
    ("keys", 4, 128): Band(16, 16, 8, 1),
    ("keys", 4, 256): Band(16, 16, 8, 1),
}


def band(output: str, bytes_: int, features: int) -> Band:
    """`output`: "o", "dq", or "keys" for dk and dv."""
    return _BANDS[output, bytes_, max(64, power_of_two(features))]


@cache
def has_large_smem(device: torch.device) -> bool:
    """Whether a CTA may use 200 KiB of shared memory."""
    if device.type != "cuda":
        return True
    properties: Any = torch.cuda.get_device_properties(device)  # the type stubs lack this property
    return bool(properties.shared_memory_per_block_optin >= 200 * 1024)


@dataclass(frozen=True)
class DotPrecision:
    """The type of the operands of matrix products, how float32 is multiplied, and bytes an operand."""

    dtype: tl.dtype
    precision: str
    bytes: int


def dot_precision(dtype: torch.dtype, interpreted: bool) -> DotPrecision:
    """bfloat16 as it is. float16 as tf32, which holds every float16 exactly and does not overflow where
    scores or states exceed the range of float16. float32 in full, never as tf32. Triton's interpreter
    computes bfloat16 wrongly: there everything is float32, in the block sizes of bfloat16."""
    if interpreted:
        return DotPrecision(tl.float32, "ieee", 2)
    if dtype == torch.bfloat16:
        return DotPrecision(tl.bfloat16, "tf32", 2)
    return DotPrecision(tl.float32, "tf32" if dtype == torch.float16 else "ieee", 4)
