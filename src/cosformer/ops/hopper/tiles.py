"""Tiles in shared memory: layouts, TMA loads and stores, phases.

All kernels compute the four sums of ops/gpu/rows.py, with the same names: y, a, b, c, inv_den, delta, S,
z. A tile is CHUNK = 64 tokens of one head, W = 64 or 128 features wide. Narrower heads are padded: TMA fills
what lies outside of a tensor with zeros when it loads, and leaves it out when it stores. TMA sees tensors as
[B, T, H, D], so any strides that are multiples of 8 elements will do.

**No hoisting.** The compiler would compute the descriptors of all operands in shared memory before the loop,
and spill 50 to 120 registers over it. `opaque_zero` is a zero that it cannot see through: operands indexed
with it are described inside the loop.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

CHUNK = gl.constexpr(64)
# Cosines and sines are at least this: they can be divided by, and products with them keep their sign. The
# difference is below the precision of bfloat16.
MIN_PHASE = gl.constexpr(1e-6)
# __syncthreads, under its name in Triton 3.7 or in 3.6.
sync = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.constexpr_function
def mma_layout(ROWS, COLUMNS, WARPS):
    """The layout of a matrix product [ROWS, COLUMNS]: 64 rows a warpgroup; warpgroups beyond these share the
    columns."""
    warps_down = min(WARPS, ROWS // 16)
    warps_across = WARPS // warps_down
    return gl.NVMMADistributedLayout([3, 0], [warps_down, warps_across], [16, COLUMNS // warps_across, 16])


@gluon.constexpr_function
def dot_operand(PRODUCT):
    """The layout of the first operand of a matrix product, in registers."""
    return gl.DotOperandLayout(0, PRODUCT, 2)


@gluon.constexpr_function
def coalesced(W, WARPS):
    """The layout of a tile [CHUNK, W] with 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [32 // (W // 8), W // 8], [WARPS, 1], [1, 0])


@gluon.constexpr_function
def rows_per_pass(W, WARPS):
    """How many rows of a tile all threads cover at a time in the layout `coalesced`."""
    return WARPS * (32 // (W // 8))


@gluon.constexpr_function
def row_slice(LAYOUT):
    return gl.SliceLayout(1, LAYOUT)


@gluon.constexpr_function
def column_slice(LAYOUT):
    return gl.SliceLayout(0, LAYOUT)


@gluon.jit
def alloc_tiles(N: gl.constexpr, ROWS: gl.constexpr, W: gl.constexpr):
    """Shared memory for N tiles that TMA loads or stores."""
    return gl.allocate_shared_memory(gl.bfloat16, [N, 1, ROWS, 1, W], gl.NVMMASharedLayout(128, 16, rank=4))


@gluon.jit
def alloc_smem(ROWS: gl.constexpr, W: gl.constexpr):
    """Shared memory for one operand of matrix products, to be indexed with `opaque_zero`."""
    return gl.allocate_shared_memory(gl.bfloat16, [1, ROWS, W], gl.NVMMASharedLayout(128, 16, rank=2))


@gluon.jit
def alloc_barriers(N: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(bars.index(i), count=1)
    fence_async_shared()
    return bars


@gluon.jit
def as_matrix(tile):
    """A tile [1, ROWS, 1, W] as a matrix [ROWS, W]."""
    return tile.reshape([tile.shape[1], tile.shape[3]])


@gluon.jit
def tma_load(tensor, tile, bar, batch, token, head):
    tma.async_copy_global_to_shared(tensor, [batch, token, head, 0], bar, tile)


@gluon.jit
def tma_load_pair(x, y, x_tile, y_tile, bar, batch, token, head):
    """Starts the loads of the same tile of two tensors."""
    mbarrier.expect(bar, 2 * CHUNK * x_tile.shape[3] * 2)
    tma_load(x, x_tile, bar, batch, token, head)
    tma_load(y, y_tile, bar, batch, token, head)


@gluon.jit
def tma_store(tensor, tile, batch, token, head):
    tma.async_copy_shared_to_global(tensor, [batch, token, head, 0], tile)


@gluon.jit
def write_out_tile(tile, x):
    """x into a tile for TMA to store, once what was there is stored. A fence has to follow."""
    tma.store_wait(0)
    sync()
    as_matrix(tile).store(x)


@gluon.jit
def opaque_zero(t):
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [t], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def phases(position, angle_step):
    """cos and sin of angle_step * position, which is in [0, pi/2]."""
    angle = position.to(gl.float32) * angle_step
    c = gl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    s = gl.inline_asm_elementwise(
        "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    return gl.maximum(c, MIN_PHASE), gl.maximum(s, MIN_PHASE)


@gluon.jit
def matrix_pointers(base, HEIGHT: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr, LAYOUT: gl.constexpr):
    """Pointers to a matrix [HEIGHT, WIDTH] padded to [W, W], and which of them are in bounds."""
    i = gl.arange(0, W, layout=row_slice(LAYOUT))
    j = gl.arange(0, W, layout=column_slice(LAYOUT))
    return base + i[:, None] * WIDTH + j[None, :], (i < HEIGHT)[:, None] & (j < WIDTH)[None, :]


@gluon.jit
def load_sum(pointers, in_bounds, count, stride):
    """The sum of `count` matrices, `stride` elements apart."""
    x = gl.load(pointers, mask=in_bounds & (count > 0), other=0.0)
    for i in range(1, count):
        x += gl.load(pointers + i * stride, mask=in_bounds, other=0.0)
    return x


@gluon.jit
def store_rows(tensor_pointer, stride, first, count, tile, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Stores the first `count` rows of a tile without TMA: a document may end within a tile."""
    i = gl.arange(0, tile.shape[0], layout=row_slice(LAYOUT))
    j = gl.arange(0, tile.shape[1], layout=column_slice(LAYOUT))
    pointers = tensor_pointer + (first + i).to(gl.int64)[:, None] * stride + j[None, :]
    gl.store(pointers, tile.load(LAYOUT), mask=(i < count)[:, None] & (j < WIDTH)[None, :])


@gluon.jit
def inv_den_and_delta(tile_g, tile_o, den, eps, LAYOUT: gl.constexpr):
    """inv_den and delta (ops/gpu/rows.py) of each row of a tile. Both are zero where g is, so that a row
    without a gradient adds nothing, whatever it holds."""
    grad = tile_g.load(LAYOUT).to(gl.float32)
    has_grad = gl.sum(gl.abs(grad), axis=1) != 0.0
    delta = -gl.sum(grad * tile_o.load(LAYOUT).to(gl.float32), axis=1)
    delta = gl.where(has_grad & (den >= eps), delta, 0.0)
    inv_den = gl.where(has_grad, 1.0 / gl.where(den < eps, eps, den), 0.0)
    return inv_den, delta


@gluon.jit
def store_tile(
    tensor, pointer, tile, batch, token, rest, head, HEADS: gl.constexpr, WIDTH: gl.constexpr,
    LAYOUT: gl.constexpr, IS_VARLEN: gl.constexpr,
):  # fmt: skip
    """Stores a tile that all threads have written; with TMA, unless a document ends within it. `pointer`: the
    tensor's first element."""
    fence_async_shared()
    sync()
    if IS_VARLEN and rest < CHUNK:
        store_rows(pointer + head * WIDTH, HEADS * WIDTH, token, rest, as_matrix(tile), WIDTH, LAYOUT)
    else:
        tma_store(tensor, tile, batch, token, head)


@gluon.jit
def locate_split(
    split, cu_seqlens, split_doc, doc_first_split, split_slot, length, splits_per_row, split_size,
    IS_VARLEN: gl.constexpr,
):  # fmt: skip
    """The row that a split belongs to, the row's batch index and first token, the tokens [begin, end) of the
    row that the split covers, and the slot of its state (-1: none)."""
    if IS_VARLEN:
        row = gl.load(split_doc + split)
        row_start = gl.load(cu_seqlens + row).to(gl.int32)
        length = gl.load(cu_seqlens + row + 1).to(gl.int32) - row_start
        split_in_row = split - gl.load(doc_first_split + row)
        slot = gl.load(split_slot + split)
        batch = 0
    else:
        row = split // splits_per_row
        row_start = 0
        split_in_row = split % splits_per_row
        slot = split
        batch = row
    begin = split_in_row * split_size
    return row, batch, row_start, begin, gl.minimum(begin + split_size, length), slot
