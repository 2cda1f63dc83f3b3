"""Block sizes of the kernels for windows: a small fixed table, as ops/triton/configs.py."""

from dataclasses import dataclass
from typing import Any

from cosformer.ops.gpu.blocks import BlockConfig, power_of_two


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


# Keys: bytes of an operand, and features padded to a power of two. With chunks of 16 tokens, Triton 3.6
# miscompiles the products of tf32 (float16).
_WIDE = {
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
}


def wide(bytes_: int, features: int, large_smem: bool) -> BlockConfig:
    """`bt` is the tokens of a chunk."""
    size = power_of_two(features)
    if (bytes_, size) == (2, 64) and not large_smem:
        return BlockConfig(32, 64, 4, 1)
    return _WIDE[bytes_, size]
