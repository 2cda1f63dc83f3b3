"""z, the sum beside S that denominators come from, by products.

z = sum_j w_j phi(b_j) is phi(b)^T times a matrix [CHUNK, PARTS] that deals the rows out to PARTS sums, each
row with its weight: no thread adds rows up. The parts, each rounded to bfloat16 for itself, are added up by
the product that uses z, or behind it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK, of_columns, of_rows, product

PARTS = gl.constexpr(16)


@gluon.constexpr_function
def thin(ROWS, WARPS):
    """The layout of partial sums [ROWS, PARTS]."""
    return product(ROWS, PARTS, WARPS)


@gluon.constexpr_function
def thin_lines(WARPS):
    """The layout of [CHUNK, PARTS] as it is made: half of a row a thread."""
    return gl.BlockedLayout([1, PARTS // 2], [16, 2], [WARPS, 1], [1, 0])


@gluon.jit
def thin_scratch(ROWS: gl.constexpr):
    """One matrix [ROWS, PARTS] that only products read; taken at the index `anew`."""
    return gl.allocate_shared_memory(
        gl.bfloat16, [1, ROWS, PARTS], gl.NVMMASharedLayout(PARTS * 2, 16, rank=2)
    )


@gluon.jit
def deal(WARPS: gl.constexpr):
    """A matrix [CHUNK, PARTS] that deals out rows: a product with it sums them up, in PARTS parts."""
    LAYOUT: gl.constexpr = thin_lines(WARPS)
    i = gl.arange(0, CHUNK, layout=of_rows(LAYOUT))
    j = gl.arange(0, PARTS, layout=of_columns(LAYOUT))
    dealt = thin_scratch(CHUNK)
    dealt.index(0).store(gl.where((i % PARTS)[:, None] == j[None, :], 1.0, 0.0).to(gl.bfloat16))
    return dealt


@gluon.jit
def deal_out(weight, dealt, WARPS: gl.constexpr):
    """The same with a weight for each row: half of the parts for its first bits, half for the next ones."""
    LAYOUT: gl.constexpr = thin_lines(WARPS)
    HALF: gl.constexpr = PARTS // 2
    i = gl.arange(0, CHUNK, layout=of_rows(LAYOUT))
    j = gl.arange(0, PARTS, layout=of_columns(LAYOUT))
    first = weight.to(gl.bfloat16).to(gl.float32)
    both = gl.where((j < HALF)[None, :], first[:, None], (weight - first)[:, None])
    own = (i % HALF)[:, None] == (j % HALF)[None, :]
    dealt.store(gl.where(own, both, 0.0).to(gl.bfloat16))


@gluon.jit
def spread(Z, ROWS: gl.constexpr, SHARES: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """z [WIDTH] as [ROWS, W] with equal rows, of which SHARES add up to it."""
    w = gl.arange(0, W, layout=of_columns(LAYOUT))
    z = gl.load(Z + w, mask=w < WIDTH, other=0.0) * (1.0 / SHARES)
    return z[None, :] + gl.zeros([ROWS, W], gl.float32, LAYOUT)


@gluon.jit
def in_parts(Z, WIDTH: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr):
    """z [WIDTH] as [W, PARTS] with equal columns that add up to it."""
    LAYOUT: gl.constexpr = thin(W, WARPS)
    w = gl.arange(0, W, layout=of_rows(LAYOUT))
    z = gl.load(Z + w, mask=w < WIDTH, other=0.0) * (1.0 / PARTS)
    return z[:, None] + gl.zeros([W, PARTS], gl.float32, LAYOUT)


@gluon.jit
def summed_and_spread(Z, count, step, ROWS: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr,
                      LAYOUT: gl.constexpr):  # fmt: skip
    """As `spread`, of the sum of `count` vectors."""
    x = gl.zeros([ROWS, W], gl.float32, LAYOUT)
    for i in range(count):
        x += spread(Z + i * step, ROWS, ROWS, WIDTH, W, LAYOUT)
    return x


@gluon.jit
def summed_in_parts(Z, count, step, WIDTH: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr):
    """As `in_parts`, of the sum of `count` vectors."""
    x = gl.zeros([W, PARTS], gl.float32, thin(W, WARPS))
    for i in range(count):
        x += in_parts(Z + i * step, WIDTH, W, WARPS)
    return x
