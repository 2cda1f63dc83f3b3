"""What the kernels of windowed heads do with a row: which rows of the other side it sees, with what weight.

A head with a window of W tokens is the sum of rows.py over the pairs that are less than W apart,

    y_i = sum_j w(i - j) (a_i . b_j) c_j        w(d) = cos((pi/2) d / W)  for |d| < W, 0 beyond

over j <= i for "o" and "dq", over j >= i for "dk" and "dv" where attention is causal. The rows a program
computes are its own, those it sums over are the others: for "o" and "dq" queries and keys, for "dk" and "dv"
keys and queries. An own row at index i stands at index i + shift of the other side.

What a row does not see may be anything, NaN included, and zero times NaN is NaN: in bands pairs that are not
seen are chosen away after every product of rows, never multiplied by zero (band.py for the products behind;
wide.py for the edges of wide windows).
"""

import triton
import triton.language as tl

from cosformer.ops.gpu.rows import inv_den_and_delta, load_rows, phases, relu, to_dot_dtype


@triton.jit
def turn(position, window, DOT: tl.constexpr):
    """cos and sin of (pi/2) position / W for any whole number: cosines repeat after 4 W, and numbers of
    that size are exact in float32."""
    x = position.to(tl.float32)
    w = window.to(tl.float32)
    if tl.bfloat16 == DOT:  # the hardware's own; beyond [-pi, pi] the rounding of the angle is added
        return phases(x, w, DOT)
    x -= 4.0 * w * tl.floor(x * (0.25 / w) + 0.5)
    size = tl.abs(x)
    far = size > w
    c, s = phases(tl.where(far, 2.0 * w - size, size), w, DOT)
    return tl.where(far, -c, c), tl.where(x < 0, -s, s)


@triton.jit
def weights(c, s, cj, sj):
    """cos(theta_i - theta_j) of all pairs."""
    return c[:, None] * cj[None, :] + s[:, None] * sj[None, :]


@triton.jit
def rectified(x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """ReLU(x) in the type that is multiplied. NaN stays NaN."""
    if tl.bfloat16 == DOT:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 zero;
            mov.b32 zero, 0;
            max.NaN.bf16x2 $0, $1, zero;
            }""",
            "=r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    return to_dot_dtype(relu(x), DOT, PRECISION)


@triton.jit
def rounded(x, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """float32 in the type that is multiplied, two elements an instruction: left to itself, the compiler
    converts one at a time, before the choice that has made x."""
    if tl.bfloat16 == DOT:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return to_dot_dtype(x, DOT, PRECISION)


@triton.jit
def phased(x, phase, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """ReLU(x) times the cosines, or the sines, of its rows; rounded once. NaN stays NaN."""
    return rounded(relu(x) * phase[:, None], DOT, PRECISION)


@triton.jit
def gated(y, x):
    """y where x > 0 or NaN: the gradient of ReLU, as PyTorch has it."""
    return tl.where(x <= 0, 0.0, y)


@triton.jit
def finite(x):
    return tl.abs(x.to(tl.float32)) <= 3.4028234663852886e38


@triton.jit
def spoilt(x):
    """Whether a tile holds anything that is not finite, which times zero is NaN."""
    return tl.sum(tl.sum(x * 0.0, 1), 0) != 0.0


@triton.jit
def reach(
    own, inside, shift, window, length, BOUNDS, OF_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    IS_VARLEN: tl.constexpr,
):  # fmt: skip
    """[low, high): the others, of `length`, that each own row sees; none where it is not `inside`. OF_KEYS:
    own rows are keys. BOUNDS [2, T]: where the document of each token begins and ends."""
    at = own + shift
    low = at if CAUSAL and OF_KEYS else at - window + 1
    high = at + 1 if CAUSAL and not OF_KEYS else at + window
    low = tl.maximum(low, 0)
    high = tl.minimum(high, length)
    if IS_VARLEN:
        low = tl.maximum(low, tl.load(BOUNDS + own, mask=inside, other=0))
        high = tl.minimum(high, tl.load(BOUNDS + length + own, mask=inside, other=0))
    return low, tl.where(inside, high, 0)


@triton.jit
def within(others, low, high):
    """Which of the others each own row sees: one comparison, where numbers below zero are large ones."""
    size = tl.maximum(high - low, 0).to(tl.uint32)
    return (others[None, :] - low[:, None]).to(tl.uint32, bitcast=True) < size[:, None]


@triton.jit
def span(low, high, length):
    """The others that a tile of own rows sees between them."""
    seen = low < high
    return tl.min(tl.where(seen, low, length), 0), tl.max(tl.where(seen, high, 0), 0)


@triton.jit(do_not_specialize=["documents", "length", "steps"])
def document_bounds(CU, BOUNDS, documents, length, steps, ROWS: tl.constexpr):
    """Of each token, where its document begins and ends, by bisection in `steps` steps; BOUNDS [2, T]. Tokens
    after the last document are one more."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = token < length
    low = tl.zeros((ROWS,), tl.int32)
    high = tl.zeros((ROWS,), tl.int32) + documents
    for _ in range(steps):
        middle = (low + high + 1) // 2
        before = tl.load(CU + middle, mask=inside, other=0).to(tl.int32) <= token
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    end = tl.load(CU + low + 1, mask=inside & (low < documents), other=0).to(tl.int32)
    tl.store(BOUNDS + token, tl.load(CU + low, mask=inside, other=0).to(tl.int32), mask=inside)
    tl.store(BOUNDS + length + token, tl.where(low < documents, end, length), mask=inside)


@triton.jit(do_not_specialize=["size", "whole_b", "begin"])
def copy_heads(PART, WHOLE, size, whole_b, begin, TO_ALL: tl.constexpr, ROWS: tl.constexpr):
    """PART [B, size] into WHOLE[:, begin : begin + size], or from there."""
    tiles = tl.cdiv(size, ROWS)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    at = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    of_part = PART + batch * size + at
    of_whole = WHOLE + batch * whole_b + begin + at
    if TO_ALL:
        tl.store(of_whole, tl.load(of_part, mask=at < size), mask=at < size)
    else:
        tl.store(of_part, tl.load(of_whole, mask=at < size), mask=at < size)


@triton.jit(do_not_specialize=["heads", "length", "row_b", "row_h"])
def window_bwd_preprocess(
    G, O, DEN, INV_DEN, DELTA, TABLE, heads, length, eps, g_b, g_t, g_h, o_b, o_t, o_h, row_b, row_h,
    GROUP: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """inv_den and delta (ops/gpu/rows.py) of the heads in TABLE, a tile of ROWS tokens each."""
    pid = tl.program_id(0)
    entry = pid % (heads * GROUP)
    tile = pid // (heads * GROUP)
    tiles = tl.cdiv(length, ROWS)
    batch = (tile // tiles).to(tl.int64)
    first = (tile % tiles).to(tl.int64) * ROWS
    head = tl.load(TABLE + 3 * (entry // GROUP)).to(tl.int64) * GROUP + entry % GROUP
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BV)
    inside = first + rows < length
    g = load_rows(G + batch * g_b + head * g_h + first * g_t, g_t, rows, inside, columns, DV, DV != BV)
    o = load_rows(O + batch * o_b + head * o_h + first * o_t, o_t, rows, inside, columns, DV, DV != BV)
    vector = batch * row_b + head * row_h + first + rows
    inv_den, delta = inv_den_and_delta(g, o, tl.load(DEN + vector, mask=inside, other=1.0), eps)
    tl.store(INV_DEN + vector, inv_den, mask=inside)
    tl.store(DELTA + vector, delta, mask=inside)
