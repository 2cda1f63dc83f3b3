"""What every kernel does with its tiles: where they lie, how they come and go, which phase they have.

All kernels compute the four sums of ops/triton/rows.py, with the same names: y, a, b, c, r, e, S, z.
A tile is CHUNK = 64 tokens of one head, W = 64 or 128 features wide (heads that are narrower are padded:
the copy engine fills with zeros what lies outside of a tensor, and leaves it out when it writes).
Tensors [B, T, H, D] are described to the copy engine as they are, so any strides that are multiples of 8 do.

**Phases and ReLU in one instruction.** Angles lie in [0, pi/2] (the caller sees to that), where cos and
sin are not negative; so ReLU(x) cos = ReLU(x cos), and two bfloat16 are done at once by one fused
multiply-add that ends in a ReLU. There the hardware's own sine and cosine err by 2^-20: far below a
bfloat16.

**z by a product.** z = sum_j w_j phi(b_j) is phi(b)^T times a matrix [CHUNK, PARTS] that deals the rows out
to PARTS sums, each row with its weight (`deal`, `deal_out`): no thread adds anything up. The product that
uses z sums up the parts, each rounded to bfloat16 for itself.

**Two numbers an instruction.** What is masked is first rounded to pairs of bfloat16, from which bits are then
taken (`below`, `where_positive`); left to itself the compiler chooses number by number.

**No hoisting.** Left to itself the compiler computes the descriptors of all shared operands before the
loop, and spills 50 to 120 registers over it. `anew` is a zero it cannot see through: operands taken at
that index are described inside the loop.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

CHUNK = gl.constexpr(64)
PARTS = gl.constexpr(16)
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
def thin(ROWS, WARPS):
    """The layout of partial sums [ROWS, PARTS]."""
    return product(ROWS, PARTS, WARPS)


@gluon.constexpr_function
def thin_lines(WARPS):
    """The layout of [CHUNK, PARTS] as it is made: half of a row a thread."""
    return gl.BlockedLayout([1, PARTS // 2], [16, 2], [WARPS, 1], [1, 0])


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
def thin_scratch(ROWS: gl.constexpr):
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
def phased(x, factor):
    """ReLU(x) * factor, two at a time; a row with the factor zero is zero whatever it holds, else NaN
    stays NaN. `factor`: one for each row, >= 0."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 minus, y;
        .reg .pred none;
        mov.b32 minus, 0x80008000;
        fma.rn.relu.bf16x2 y, $1, $2, minus;
        setp.eq.b32 none, $2, 0;
        selp.b32 $0, 0, y, none;
        }""",
        "=r,r,r", [x, factor.to(gl.bfloat16)[:, None]], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def turned(x, factor):
    """As `phased`, where no factor is zero."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 minus;
        mov.b32 minus, 0x80008000;
        fma.rn.relu.bf16x2 $0, $1, $2, minus;
        }""",
        "=r,r,r", [x, factor.to(gl.bfloat16)[:, None]], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def hidden(x, keep):
    """Zeros in the rows that are not kept, whatever they hold; two at a time."""
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [x, gl.where(keep, -1, 0).to(gl.int16)[:, None]], dtype=gl.bfloat16,
        is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def where_positive(y, x):
    """y where x > 0 and zero elsewhere, in bfloat16; two at a time."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 none, there, pair;
        mov.b32 none, 0;
        set.gt.u32.bf16x2 there, $3, none;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        and.b32 $0, pair, there;
        }""",
        "=r,r,r,r", [y, x], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def below(x, steps):
    """x on and below the diagonal and zero above it, in bfloat16; two at a time. `steps`: 16 bits for each
    column a row is ahead of, itself included."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 bits, pair;
        max.s32 bits, $3, 0;
        shl.b32 bits, -1, bits;
        not.b32 bits, bits;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        and.b32 $0, pair, bits;
        }""",
        "=r,r,r,r,r", [x, steps], dtype=gl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def above(x, steps):
    """x on and above the diagonal. `steps`: 16 bits for each column a row is behind."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 bits, pair;
        max.s32 bits, $3, 0;
        shl.b32 bits, -1, bits;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        and.b32 $0, pair, bits;
        }""",
        "=r,r,r,r,r", [x, steps], dtype=gl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def between(begin, end, LAYOUT: gl.constexpr):
    """The bits of numbers in the columns [begin, end) of each row, two at a time."""
    j = 16 * gl.arange(0, CHUNK, layout=of_columns(LAYOUT))
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 before, behind;
        max.s32 before, $1, 0;
        shl.b32 before, -1, before;
        max.s32 behind, $3, 0;
        shl.b32 behind, -1, behind;
        not.b32 behind, behind;
        and.b32 $0, before, behind;
        }""",
        "=r,r,r,r,r", [(16 * begin)[:, None] - j[None, :], (16 * end)[:, None] - j[None, :]], dtype=gl.int16,
        is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def masked(x, bits):
    """x in bfloat16, of each number the bits that are set; two at a time."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 pair; cvt.rn.bf16x2.f32 pair, $2, $1; and.b32 $0, pair, $3; }", "=r,r,r,r", [x, bits],
        dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def blank(tile, keep, LAYOUT: gl.constexpr):
    tile.store(hidden(tile.load(LAYOUT), keep))


@gluon.jit
def spread(Z, ROWS: gl.constexpr, SHARES: gl.constexpr, WIDTH: gl.constexpr, W: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """z [WIDTH] as [ROWS, W] with equal rows, so many of which add up to it."""
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
