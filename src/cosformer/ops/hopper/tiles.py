"""What every kernel does with its tiles: where they lie, how they come and go, which phase they have.

All kernels compute the four sums of ops/triton/rows.py, with the same names: y, a, b, c, r, e, S, z.
A tile is CHUNK = 64 tokens of one head, W = 64 or 128 features wide (heads that are narrower are padded:
the copy engine fills with zeros what lies outside of a tensor, and leaves it out when it writes).
Tensors [B, T, H, D] are described to the copy engine as they are, so any strides that are multiples of 8 do.

**No hoisting.** Left to itself the compiler computes the descriptors of all shared operands before the
loop, and spills 50 to 120 registers over it. `anew` is a zero it cannot see through: operands taken at
that index are described inside the loop.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

CHUNK = gl.constexpr(64)
# No cosine or sine is smaller: one may be divided by them, and a product with them keeps its sign. A
# bfloat16 does not see the difference.
LEAST = gl.constexpr(1e-6)
# A barrier for all threads of a block, under its name in Triton 3.7 or in 3.6.
sync = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.constexpr_function
def product(ROWS, COLUMNS, WARPS):
    """The layout of a product [ROWS, COLUMNS]: 64 rows a warpgroup, columns shared out if there are
    more warpgroups than rows for them."""
    down = min(WARPS, ROWS // 16)
    across = WARPS // down
    return gl.NVMMADistributedLayout([3, 0], [down, across], [16, COLUMNS // across, 16])


@gluon.constexpr_function
def left(PRODUCT):
    """The layout of the first operand of a product, in registers."""
    return gl.DotOperandLayout(0, PRODUCT, 2)


@gluon.constexpr_function
def lines(W, WARPS):
    """The layout of a tile as it is read from memory: 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [32 // (W // 8), W // 8], [WARPS, 1], [1, 0])


@gluon.constexpr_function
def runs(W, WARPS):
    """How many rows a round of `lines` covers."""
    return WARPS * (32 // (W // 8))


@gluon.constexpr_function
def of_rows(LAYOUT):
    return gl.SliceLayout(1, LAYOUT)


@gluon.constexpr_function
def of_columns(LAYOUT):
    return gl.SliceLayout(0, LAYOUT)


@gluon.jit
def room(N: gl.constexpr, ROWS: gl.constexpr, W: gl.constexpr):
    """N tiles that the copy engine fills or empties."""
    return gl.allocate_shared_memory(gl.bfloat16, [N, 1, ROWS, 1, W], gl.NVMMASharedLayout(128, 16, rank=4))


@gluon.jit
def scratch(ROWS: gl.constexpr, W: gl.constexpr):
    """One tile that only products read; taken at the index `anew`."""
    return gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, W], gl.NVMMASharedLayout(128, 16, rank=2))


@gluon.jit
def barriers(N: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    return bars


@gluon.jit
def flat(tile):
    """A tile [1, ROWS, 1, W] as a matrix."""
    return tile.reshape([tile.shape[1], tile.shape[3]])


@gluon.jit
def fetch(tensor, tile, bar, batch, token, head):
    tma.async_copy_global_to_shared(tensor, [batch, token, head, 0], bar, tile)


@gluon.jit
def send(tensor, tile, batch, token, head):
    tma.async_copy_shared_to_global(tensor, [batch, token, head, 0], tile)


@gluon.jit
def anew(t):
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [t], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def phases(position, theta):
    """cos and sin of theta * position, in [0, pi/2]."""
    angle = position.to(gl.float32) * theta
    c = gl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    s = gl.inline_asm_elementwise(
        "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    return gl.maximum(c, LEAST), gl.maximum(s, LEAST)


@gluon.jit
def matrix(S, HEIGHT: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr, LAYOUT: gl.constexpr):
    """Pointers to a matrix [HEIGHT, WIDTH], and which of [W, W] lie inside."""
    i = gl.arange(0, W, layout=of_rows(LAYOUT))
    j = gl.arange(0, W, layout=of_columns(LAYOUT))
    return S + i[:, None] * WIDTH + j[None, :], (i < HEIGHT)[:, None] & (j < WIDTH)[None, :]


@gluon.jit
def summed(at, inside, count, step):
    """The sum of `count` matrices, `step` numbers apart, one after the other."""
    x = gl.load(at, mask=inside & (count > 0), other=0.0)
    for i in range(1, count):
        x += gl.load(at + i * step, mask=inside, other=0.0)
    return x


@gluon.jit
def put(tensor_pointer, stride, first, count, tile, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """The first `count` rows of a tile, without the copy engine: a document may end inside of a tile."""
    i = gl.arange(0, tile.shape[0], layout=of_rows(LAYOUT))
    j = gl.arange(0, tile.shape[1], layout=of_columns(LAYOUT))
    where = tensor_pointer + (first + i).to(gl.int64)[:, None] * stride + j[None, :]
    gl.store(where, tile.load(LAYOUT), mask=(i < count)[:, None] & (j < WIDTH)[None, :])


@gluon.jit
def locate(piece, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED: gl.constexpr):
    """Of a piece: its row, the batch and the token there where the row begins, the part [begin, end) it
    covers, and the slot of its state (-1: it has none)."""
    if PACKED:
        row = gl.load(DOCUMENT + piece)
        start = gl.load(CU + row).to(gl.int32)
        length = gl.load(CU + row + 1).to(gl.int32) - start
        part = piece - gl.load(FIRST + row)
        slot = gl.load(SLOT + piece)
        batch = 0
    else:
        row = piece // pieces
        start = 0
        part = piece % pieces
        slot = piece
        batch = row
    begin = part * size
    return row, batch, start, begin, gl.minimum(begin + size, length), slot
