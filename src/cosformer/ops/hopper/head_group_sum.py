"""Sums over the query heads that share a key head: of their parts of dk and dv, and of states."""

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def sum_head_groups(
    parts_ptr, sums_ptr, count, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """parts [rows, GROUP, WIDTH] -> sums [rows, WIDTH], `count` numbers, added in fp32. `count` is a multiple
    of 8, which the compiler has to see: otherwise it loads one number at a time."""
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_bounds = n < count // 8 * 8
    first = n // WIDTH * (GROUP * WIDTH) + n % WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for g in tl.static_range(GROUP):
        total += tl.load(parts_ptr + first + g * WIDTH, mask=in_bounds, other=0.0).to(tl.float32)
    tl.store(sums_ptr + n, total.to(sums_ptr.dtype.element_ty), mask=in_bounds)
