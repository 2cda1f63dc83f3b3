"""Block sizes: a small fixed table, so that the same call always runs the same code.

A kernel is compiled once for a head size, a dtype, the number of heads, the stride between tokens and the
options of the call. No length is among these, and nothing is tuned at run time.
"""

from cosformer.ops.gpu.blocks import BlockConfig, power_of_two

# Keys: bytes of an operand of the matrix products, and features padded to a power of two. Four warps in
# chunk_attention with bfloat16: with eight, Triton 3.6 miscompiles products that are 16 columns wide.
_FLOAT32 = dict.fromkeys([(4, 16), (4, 32), (4, 64)], BlockConfig(16, 32, 8, 1)) | dict.fromkeys(
    [(4, 128), (4, 256)], BlockConfig(16, 16, 8, 1)
)
_LARGE = {(2, 256): BlockConfig(32, 32, 8, 1)}
_TABLE = {
    "chunk_attention": _FLOAT32
    | _LARGE
    | dict.fromkeys([(2, 16), (2, 32), (2, 64), (2, 128)], BlockConfig(64, 64, 4, 2)),
    "chunk_denominator": {
        (2, 128): BlockConfig(64, 128, 4, 2),
        (2, 256): BlockConfig(32, 256, 4, 1),
        (4, 128): BlockConfig(16, 128, 4, 1),
        (4, 256): BlockConfig(16, 256, 4, 1),
    },
    "chunk_state": _FLOAT32
    | _LARGE
    | dict.fromkeys([(2, 16), (2, 32), (2, 64)], BlockConfig(64, 64, 4, 3))
    | {(2, 128): BlockConfig(64, 128, 8, 3)},
    "state_apply": _FLOAT32
    | _LARGE
    | dict.fromkeys([(2, 16), (2, 32)], BlockConfig(64, 64, 4, 2))
    | {(2, 64): BlockConfig(64, 64, 4, 3), (2, 128): BlockConfig(128, 128, 8, 2)},
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
}


def block_config(kernel: str, variant: str, bytes_: int, features: int, large_smem: bool) -> BlockConfig:
    """`variant`: the output, or "many states"."""
    size = power_of_two(features)
    if large_smem:
        exception = _BY_OUTPUT.get((kernel, variant, bytes_, size))
    else:
        exception = _SMALL_SMEM.get((kernel, bytes_, size))
    return exception or _TABLE[kernel][bytes_, size]
