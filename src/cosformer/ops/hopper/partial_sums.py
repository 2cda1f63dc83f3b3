"""z, the sum beside S that denominators come from, by matrix products.

z = sum_j w_j phi(b_j) is phi(b)^T times a selector [CHUNK, PARTIALS], which assigns each row, with its
weight, to one of PARTIALS partial sums: no thread adds rows. Each partial sum is rounded to bfloat16 by
itself; the product that uses z adds them, or the code after it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK, column_slice, mma_layout, row_slice

PARTIALS = gl.constexpr(16)


@gluon.constexpr_function
def partials_layout(ROWS, WARPS):
    """The layout of partial sums [ROWS, PARTIALS]."""
    return mma_layout(ROWS, PARTIALS, WARPS)


@gluon.constexpr_function
def selector_layout(WARPS):
    """The layout in which a selector [CHUNK, PARTIALS] is computed: half of a row a thread."""
    return gl.BlockedLayout([1, PARTIALS // 2], [16, 2], [WARPS, 1], [1, 0])


@gluon.jit
def alloc_partials(ROWS: gl.constexpr):
    """Shared memory for an operand [ROWS, PARTIALS], to be indexed with `opaque_zero`."""
    return gl.allocate_shared_memory(
        gl.bfloat16, [1, ROWS, PARTIALS], gl.NVMMASharedLayout(PARTIALS * 2, 16, rank=2)
    )


@gluon.jit
def row_selector(WARPS: gl.constexpr):
    """A selector with all weights 1, in shared memory."""
    LAYOUT: gl.constexpr = selector_layout(WARPS)
    i = gl.arange(0, CHUNK, layout=row_slice(LAYOUT))
    j = gl.arange(0, PARTIALS, layout=column_slice(LAYOUT))
    selector = alloc_partials(CHUNK)
    selector.index(0).store(gl.where((i % PARTIALS)[:, None] == j[None, :], 1.0, 0.0).to(gl.bfloat16))
    return selector


@gluon.jit
def alloc_selector(WEIGHTED: gl.constexpr, WARPS: gl.constexpr):
    """Shared memory for the `weighted_selector` of each tile, or `row_selector` if there are no weights."""
    if WEIGHTED:
        selector = alloc_partials(CHUNK)
    else:
        selector = row_selector(WARPS)
    return selector


@gluon.jit
def weighted_selector(weight, selector, WARPS: gl.constexpr):
    """A selector with a weight for each row, in two bfloat16: half of the partial sums take the high bits,
    half the remainder."""
    LAYOUT: gl.constexpr = selector_layout(WARPS)
    HALF: gl.constexpr = PARTIALS // 2
    i = gl.arange(0, CHUNK, layout=row_slice(LAYOUT))
    j = gl.arange(0, PARTIALS, layout=column_slice(LAYOUT))
    high = weight.to(gl.bfloat16).to(gl.float32)
    split_weight = gl.where((j < HALF)[None, :], high[:, None], (weight - high)[:, None])
    selected = (i % HALF)[:, None] == (j % HALF)[None, :]
    selector.store(gl.where(selected, split_weight, 0.0).to(gl.bfloat16))


@gluon.jit
def divide_by_den(acc, den_parts, eps, LAYOUT: gl.constexpr):
    """The output acc / max(den, eps) in bfloat16, and den, the sum of its parts. LAYOUT: that of acc."""
    den = gl.convert_layout(gl.sum(den_parts, axis=1), row_slice(LAYOUT))
    return (acc * (1.0 / gl.maximum(den, eps))[:, None]).to(gl.bfloat16), den


@gluon.jit
def load_z_rows(
    z_ptr, ROWS: gl.constexpr, SHARES: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """z [WIDTH] as [ROWS, W] with equal rows, of which SHARES add up to z."""
    w = gl.arange(0, W, layout=column_slice(LAYOUT))
    z = gl.load(z_ptr + w, mask=w < WIDTH, other=0.0) * (1.0 / SHARES)
    return z[None, :] + gl.zeros([ROWS, W], gl.float32, LAYOUT)


@gluon.jit
def load_z_columns(z_ptr, WIDTH: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr):
    """z [WIDTH] as [W, PARTIALS] with equal columns that add up to z."""
    LAYOUT: gl.constexpr = partials_layout(W, WARPS)
    w = gl.arange(0, W, layout=row_slice(LAYOUT))
    z = gl.load(z_ptr + w, mask=w < WIDTH, other=0.0) * (1.0 / PARTIALS)
    return z[:, None] + gl.zeros([W, PARTIALS], gl.float32, LAYOUT)


@gluon.jit
def load_z_rows_sum(
    z_ptr, count, stride, ROWS: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr, LAYOUT: gl.constexpr
):
    """As `load_z_rows`, for the sum of `count` vectors, `stride` elements apart."""
    x = gl.zeros([ROWS, W], gl.float32, LAYOUT)
    for i in range(count):
        x += load_z_rows(z_ptr + i * stride, ROWS, ROWS, WIDTH, W, LAYOUT)
    return x


@gluon.jit
def load_z_columns_sum(z_ptr, count, stride, WIDTH: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr):
    """As `load_z_columns`, for the sum of `count` vectors, `stride` elements apart."""
    x = gl.zeros([W, PARTIALS], gl.float32, partials_layout(W, WARPS))
    for i in range(count):
        x += load_z_columns(z_ptr + i * stride, WIDTH, W, WARPS)
    return x
