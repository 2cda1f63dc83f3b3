"""What every kernel does with a row: where it lies, which phase it has, how it is read.

All of cosFormer, forward and backward, is one sum over pairs of rows,

    y_i = sum_j cos(theta_i - theta_j) (a_i . b_j) c_j          theta_i = (pi/2) i / M

with x' = ReLU(x), g = dL/do, r_i = 1 / max(d_i, eps) and e_i = -(g_i . o_i), the gradient of d_i
times d_i (zero where eps holds d_i):

    what   y_i        over    a_i        b_j            c_j
    "o"    n_i, d_i   j <= i  q'_i       k'_j           [v_j, 1]
    "dq"   dq'_i/r_i  j <= i  [g_i, e_i] [v_j, 1]       k'_j
    "dk"   dk'_i      j >= i  [v_i, 1]   [g_j, e_j]     r_j q'_j
    "dv"   dv_i       j >= i  k'_i       r_j q'_j       g_j

so that one set of kernels serves all four. The column of ones, and of e, never exists in memory: its
sums are kept as vectors beside the state. Phases go where q and k are, rounded to the type in which
matrices are multiplied; every sum is fp32.

A row of queries whose g is zero takes no part in the backward, whatever it holds: padding may be
NaN. It is marked by r = 0.
"""

import triton
import triton.language as tl


@triton.jit
def phases(position, horizon, DOT: tl.constexpr):
    """cos and sin of (pi/2) x for x = position / M in [-1, 1].

    Where bfloat16 is multiplied, the hardware's own, right to 1e-6. Otherwise to 2e-7: polynomials in
    x^2 on [0, 1/2], fitted at Chebyshev's nodes, the other half by symmetry (tl.sin is as exact, but slow).
    """
    if tl.bfloat16 == DOT:
        angle = position.to(tl.float32) * (1.5707963267948966 / horizon)
        c = tl.inline_asm_elementwise(
            "cos.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
        s = tl.inline_asm_elementwise(
            "sin.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
        return c, s
    x = tl.div_rn(position.to(tl.float32), horizon + tl.zeros_like(position).to(tl.float32))
    size = tl.abs(x)
    beyond = size > 0.5
    size = tl.where(beyond, 1.0 - size, size)
    y = size * size
    c = 9.0362987248227e-04 * y - 2.086007036268711e-02
    c = c * y + 2.5366920232772827e-01
    c = c * y - 1.2337005138397217
    c = c * y + 1.0
    s = -4.602163098752499e-03 * y + 7.968021929264069e-02
    s = s * y - 6.459634900093079e-01
    s = s * y + 1.5707963705062866
    s = s * size
    sine = tl.where(beyond, c, s)
    return tl.where(beyond, s, c), tl.where(x < 0, -sine, sine)


@triton.jit
def quotient(c, s):
    """cos / sin and sin of rows. Where the sine is zero, what belongs to it does not count."""
    s = tl.where(tl.abs(s) < 1e-12, 1e-12, s)
    return c / s, s


@triton.jit
def locate(piece, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED: tl.constexpr):
    """Of a piece: its row of the batch, the first token of that row in memory, the part [begin, end)
    it covers, and the slot of its state (-1: it starts from nothing). Without packing the pieces of a
    row follow one another; with it, a table says which document a piece belongs to."""
    if PACKED:
        row = tl.load(DOCUMENT + piece)
        start = tl.load(CU + row).to(tl.int32)
        length = tl.load(CU + row + 1).to(tl.int32) - start
        part = piece - tl.load(FIRST + row)
        slot = tl.load(SLOT + piece)
    else:
        row = piece // pieces
        start = 0
        part = piece % pieces
        slot = piece
    begin = part * size
    return row, start, begin, tl.minimum(begin + size, length), slot


@triton.jit
def at(X, row, token, head, batch_stride, stride, head_stride, PACKED: tl.constexpr):
    """Where token `token` of a row begins; packed documents all lie in the one row there is."""
    offset = token.to(tl.int64) * stride + head.to(tl.int64) * head_stride
    if not PACKED:
        offset += row.to(tl.int64) * batch_stride
    return X + offset


@triton.jit
def read(X, stride, rows, inside, columns, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """X[rows, columns] as it is stored; zero outside."""
    mask = inside[:, None]
    if PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(X + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def write(X, stride, rows, inside, columns, value, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    mask = inside[:, None]
    if PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    tl.store(X + rows[:, None] * stride + columns[None, :], value.to(X.dtype.element_ty), mask=mask)


@triton.jit
def relu(x):
    """In fp32; NaN stays NaN."""
    return tl.maximum(x.to(tl.float32), 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def feature(x, phase, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """ReLU(x) times the cosines, or the sines, of its rows, in the type that is multiplied. NaN stays NaN.

    Of two bfloat16 at a time, with the phases in bfloat16 too: one instruction for the ReLU and one for
    the product (a fused multiply-add of -0: chips before Hopper have no packed product alone).
    """
    if tl.bfloat16 == DOT:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 x, zero;
            mov.b32 zero, 0;
            max.NaN.bf16x2 x, $1, zero;
            mov.b32 zero, 0x80008000;
            fma.rn.bf16x2 $0, x, $2, zero;
            }""",
            "=r,r,r", [x, phase.to(tl.bfloat16)[:, None]], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    return narrow(relu(x) * phase[:, None], DOT, PRECISION)


@triton.jit
def visible(MASK, stride, row, token, inside, MASKED: tl.constexpr):
    """Which keys may be attended to."""
    if MASKED:
        return tl.load(MASK + row.to(tl.int64) * stride + token, mask=inside, other=0) != 0
    return inside


@triton.jit
def narrow(x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """x in the type that is multiplied, rounded to nearest: left alone, tf32 would cut bits off, always
    downwards, and numerators would lose what denominators keep."""
    if PRECISION == "tf32" and tl.float32 == DOT:
        x = x.to(tl.float32)
        near = (x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000
        return tl.where(x == x, near.to(tl.float32, bitcast=True), x)
    return x.to(DOT)


@triton.jit
def inner(x, y, total, PRECISION: tl.constexpr):
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def along(x, y, PRECISION: tl.constexpr):
    """x y, a sum over features. float32 adds up one product after the other, and so do its errors: there
    the sum is made in parts of 64."""
    if (PRECISION == "ieee") and (x.shape[1] > 64):
        HALF: tl.constexpr = x.shape[1] // 2
        x0, x1 = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1)))
        y0, y1 = tl.split(tl.permute(tl.reshape(y, (2, HALF, y.shape[1])), (1, 2, 0)))
        return along(x0, y0, PRECISION) + along(x1, y1, PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def further(x, y, total, PRECISION: tl.constexpr):
    """total + x y, as `along`."""
    if PRECISION == "ieee":
        return total + along(x, y, PRECISION)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def partial(x, PARTS: tl.constexpr):
    """The sum over rows [C, W] -> [PARTS, W], left incomplete: what is summed here lies in one thread,
    and the rest is done by the next matrix product."""
    return tl.sum(tl.reshape(x, (x.shape[0] // PARTS, PARTS, x.shape[1])), 0)


@triton.jit
def repeated(x, PARTS: tl.constexpr):
    """A vector as so many equal columns."""
    return x[:, None] + tl.zeros((x.shape[0], PARTS), tl.float32)
