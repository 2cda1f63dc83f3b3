"""Sums over the query heads that share a key head: of the parts of dk and dv, and of states."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def fold(PARTS, SUMS, count, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """PARTS [rows, GROUP, WIDTH] -> SUMS [rows, WIDTH], `count` numbers, in fp32 whatever their type.
    `count` is a multiple of 8, which the compiler has to see: else it reads one number at a time."""
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < count // 8 * 8
    first = n // WIDTH * (GROUP * WIDTH) + n % WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for g in tl.static_range(GROUP):
        total += tl.load(PARTS + first + g * WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(SUMS + n, total.to(SUMS.dtype.element_ty), mask=inside)
