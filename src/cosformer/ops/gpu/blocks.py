"""What kernels are compiled with: sizes of blocks, and the type of the operands of matrix products."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


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
