"""What every kernel does with a block of rows: where it lies in memory, its phases, how it is loaded.

All of cosFormer, forward and backward, is one sum over pairs of rows,

    y_i = sum_j cos(theta_i - theta_j) (a_i . b_j) c_j          theta_i = (pi/2) i / M

with x' = ReLU(x), g = dL/do, inv_den_i = 1 / max(d_i, eps) and delta_i = -(g_i . o_i), the gradient of d_i
times d_i (zero where d_i < eps):

    OUTPUT  y_i              over    a_i            b_j            c_j
    "o"     n_i, d_i         j <= i  q'_i           k'_j           [v_j, 1]
    "dq"    dq'_i/inv_den_i  j <= i  [g_i, delta_i] [v_j, 1]       k'_j
    "dk"    dk'_i            j >= i  [v_i, 1]       [g_j, delta_j] inv_den_j q'_j
    "dv"    dv_i             j >= i  k'_i           inv_den_j q'_j g_j

so that one set of kernels computes all four. The column of ones, and that of delta, is never stored: its sums
are kept as vectors z beside the state S. Phases multiply q and k, rounded to the type of the matrix products;
every sum is fp32.

A query row whose g is zero takes no part in the backward, whatever it holds: padding may be NaN. It is marked
by inv_den = 0.
"""

import triton
import triton.language as tl


@triton.jit
def phases(position, horizon, DOT: tl.constexpr):
    """cos and sin of (pi/2) x for x = position / M in [-1, 1].

    For bfloat16 products the hardware's approximations, with an error of 1e-6. Otherwise polynomials in x^2
    on [0, 1/2], fitted at Chebyshev nodes, and symmetry for the other half: an error of 2e-7 (tl.sin is as
    accurate, but slow).
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
    magnitude = tl.abs(x)
    upper_half = magnitude > 0.5
    magnitude = tl.where(upper_half, 1.0 - magnitude, magnitude)
    y = magnitude * magnitude
    c = 9.0362987248227e-04 * y - 2.086007036268711e-02
    c = c * y + 2.5366920232772827e-01
    c = c * y - 1.2337005138397217
    c = c * y + 1.0
    s = -4.602163098752499e-03 * y + 7.968021929264069e-02
    s = s * y - 6.459634900093079e-01
    s = s * y + 1.5707963705062866
    s = s * magnitude
    sine = tl.where(upper_half, c, s)
    return tl.where(upper_half, s, c), tl.where(x < 0, -sine, sine)


@triton.jit
def cot_and_sin(c, s):
    """cos / sin and sin of each row. A zero sine is replaced by 1e-12: the quotient is multiplied by it
    again."""
    s = tl.where(tl.abs(s) < 1e-12, 1e-12, s)
    return c / s, s


@triton.jit
def locate_split(
    split,
    cu_seqlens,
    split_doc,
    doc_first_split,
    split_slot,
    length,
    splits_per_row,
    split_size,
    IS_VARLEN: tl.constexpr,
):
    """The row of the batch that a split belongs to, that row's first token in memory, the tokens [begin, end)
    of the row that the split covers, and the slot of its state (-1: none). IS_VARLEN: rows are packed
    documents, and tables say which split belongs to which (gpu/partition.py)."""
    if IS_VARLEN:
        row = tl.load(split_doc + split)
        row_start = tl.load(cu_seqlens + row).to(tl.int32)
        length = tl.load(cu_seqlens + row + 1).to(tl.int32) - row_start
        split_in_row = split - tl.load(doc_first_split + row)
        slot = tl.load(split_slot + split)
    else:
        row = split // splits_per_row
        row_start = 0
        split_in_row = split % splits_per_row
        slot = split
    begin = split_in_row * split_size
    return row, row_start, begin, tl.minimum(begin + split_size, length), slot


@triton.jit
def row_pointer(x_ptr, row, token, head, stride_b, stride_t, stride_h, IS_VARLEN: tl.constexpr):
    """Address of a token of one head. Packed documents all lie in one row."""
    offset = token.to(tl.int64) * stride_t + head.to(tl.int64) * stride_h
    if not IS_VARLEN:
        offset += row.to(tl.int64) * stride_b
    return x_ptr + offset


@triton.jit
def load_rows(x_ptr, stride_t, rows, in_split, columns, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """x[rows, columns] in its own type; zero outside."""
    mask = in_split[:, None]
    if PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(x_ptr + rows[:, None] * stride_t + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(x_ptr, stride_t, rows, in_split, columns, value, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    mask = in_split[:, None]
    if PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    tl.store(x_ptr + rows[:, None] * stride_t + columns[None, :], value.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def relu(x):
    """In fp32; NaN stays NaN."""
    return tl.maximum(x.to(tl.float32), 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def relu_phase(x, phase, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """ReLU(x) times the cosine, or sine, of each row, in the type of the matrix products. NaN stays NaN.

    bfloat16 is processed two elements an instruction, one for the ReLU and one for the product, with the
    phases in bfloat16 too (a fused multiply-add of -0: chips before Hopper have no packed product alone).
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
    return to_dot_dtype(relu(x) * phase[:, None], DOT, PRECISION)


@triton.jit
def load_key_mask(key_mask_ptr, stride_b, row, token, in_split, HAS_MASK: tl.constexpr):
    """Which keys of the block may be attended to."""
    if HAS_MASK:
        return tl.load(key_mask_ptr + row.to(tl.int64) * stride_b + token, mask=in_split, other=0) != 0
    return in_split


@triton.jit
def to_dot_dtype(x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """x in the type of the matrix products, rounded to nearest. The hardware truncates to tf32, which would
    bias numerators against the denominators."""
    if PRECISION == "tf32" and tl.float32 == DOT:
        x = x.to(tl.float32)
        rounded = (x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000
        return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
    return x.to(DOT)


@triton.jit
def plus(product, x, PRECISION: tl.constexpr):
    """product + x, for a product that `tl.dot` has made. Triton takes x for the number that the sum over the
    terms of the product begins with; in float32 the rounding of every term is then that of x, which may be
    much larger. A difference it leaves alone."""
    return product - (-x) if PRECISION == "ieee" else product + x


@triton.jit
def dot_add(x, y, total, PRECISION: tl.constexpr):
    """total + x y; in float32 the product is summed by itself (`plus`)."""
    if PRECISION == "ieee":
        return plus(tl.dot(x, y, input_precision=PRECISION), total, PRECISION)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def dot_over_features(x, y, PRECISION: tl.constexpr):
    """x y, a sum over features. Rounding errors of float32 grow with the number of terms: it is summed in
    blocks of 64."""
    if (PRECISION == "ieee") and (x.shape[1] > 64):
        HALF: tl.constexpr = x.shape[1] // 2
        x0, x1 = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1)))
        y0, y1 = tl.split(tl.permute(tl.reshape(y, (2, HALF, y.shape[1])), (1, 2, 0)))
        return plus(dot_over_features(x0, y0, PRECISION), dot_over_features(x1, y1, PRECISION), PRECISION)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def dot_over_features_add(x, y, total, PRECISION: tl.constexpr):
    """total + x y, summed as in `dot_over_features`."""
    if PRECISION == "ieee":
        return plus(dot_over_features(x, y, PRECISION), total, PRECISION)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def partial_sums(x, PARTIALS: tl.constexpr):
    """A partial sum over rows, [C, W] -> [PARTIALS, W]: only rows that lie in one thread are added. The next
    matrix product completes it."""
    return tl.sum(tl.reshape(x, (x.shape[0] // PARTIALS, PARTIALS, x.shape[1])), 0)


@triton.jit
def as_columns(x, PARTIALS: tl.constexpr):
    """A vector [C] as PARTIALS equal columns [C, PARTIALS]."""
    return x[:, None] + tl.zeros((x.shape[0], PARTIALS), tl.float32)


@triton.jit
def inv_den_and_delta(g, o, den, eps):
    """delta is zero where den < eps; both are zero for a row whose g is zero."""
    g = g.to(tl.float32)
    has_grad = tl.sum(tl.abs(g), 1) != 0.0
    inv_den = tl.where(has_grad, 1.0 / tl.maximum(den, eps, propagate_nan=tl.PropagateNan.ALL), 0.0)
    delta = tl.where(has_grad & (den >= eps), -tl.sum(g * o.to(tl.float32), 1), 0.0)
    return inv_den, delta
