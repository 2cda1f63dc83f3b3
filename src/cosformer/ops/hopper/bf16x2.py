"""ReLU, phases and masks on two bfloat16 an instruction.

**Phase and ReLU in one instruction.** Angles lie in [0, pi/2] (the caller ensures that), where cos and sin
are not negative; so ReLU(x) cos = ReLU(x cos), and one fused multiply-add with ReLU does two elements. On
that interval the hardware's sine and cosine (`phases` of tiles.py) have an error of 2^-20, far below
bfloat16.

**Masks are bits.** Elements are rounded to pairs of bfloat16 first, and masked with AND, NaN or not; the
compiler would select element by element. A pair lies in one row, at an even column: the position of its first
element is enough. `is_pure=False` keeps the compiler from computing masks before the loop and holding them in
registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK, column_slice


@gluon.jit
def relu_phase_or_zero(x, factor):
    """ReLU(x) * factor. A row whose factor is zero becomes zero, whatever it holds; otherwise NaN stays NaN.
    `factor`: one for each row, >= 0."""
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
def relu_phase(x, factor):
    """As `relu_phase_or_zero`, where no factor is zero."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 minus;
        mov.b32 minus, 0x80008000;
        fma.rn.relu.bf16x2 $0, $1, $2, minus;
        }""",
        "=r,r,r", [x, factor.to(gl.bfloat16)[:, None]], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def minus_relu_phase_or_zero(x, factor):
    """-ReLU(x) * factor, as `relu_phase_or_zero`."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 minus, y;
        .reg .pred none;
        mov.b32 minus, 0x80008000;
        fma.rn.relu.bf16x2 y, $1, $2, minus;
        xor.b32 y, y, minus;
        setp.eq.b32 none, $2, 0;
        selp.b32 $0, 0, y, none;
        }""",
        "=r,r,r", [x, factor.to(gl.bfloat16)[:, None]], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def minus_relu_phase(x, factor):
    """-ReLU(x) * factor, where no factor is zero."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 minus, y;
        mov.b32 minus, 0x80008000;
        fma.rn.relu.bf16x2 y, $1, $2, minus;
        xor.b32 $0, y, minus;
        }""",
        "=r,r,r", [x, factor.to(gl.bfloat16)[:, None]], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def mask_rows(x, keep):
    """x with zeros in the rows that are not kept, whatever they hold."""
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [x, gl.where(keep, -1, 0).to(gl.int16)[:, None]], dtype=gl.bfloat16,
        is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def where_positive(y, x):
    """y in bfloat16 where x > 0 or NaN, zero elsewhere."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 none, there, pair;
        mov.b32 none, 0;
        set.gtu.u32.bf16x2 there, $3, none;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        and.b32 $0, pair, there;
        }""",
        "=r,r,r,r", [y, x], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def tril(x, shift):
    """x in bfloat16 on and below the diagonal, zero above. `shift`: 16 bits for each column up to the
    diagonal, the diagonal included."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 bits, pair;
        max.s32 bits, $3, 0;
        shl.b32 bits, -1, bits;
        not.b32 bits, bits;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        and.b32 $0, pair, bits;
        }""",
        "=r,r,r,r,r", [x, shift], dtype=gl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def triu(x, shift):
    """x in bfloat16 on and above the diagonal. `shift`: 16 bits for each column before the diagonal."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 bits, pair;
        max.s32 bits, $3, 0;
        shl.b32 bits, -1, bits;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        and.b32 $0, pair, bits;
        }""",
        "=r,r,r,r,r", [x, shift], dtype=gl.bfloat16, is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def column_range_bits(begin, end, LAYOUT: gl.constexpr):
    """A bit mask of the columns [begin, end) of each row."""
    j = 16 * gl.arange(0, CHUNK, layout=column_slice(LAYOUT))
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
def keep_bits(x, bits):
    """x in bfloat16 AND `bits`."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 pair; cvt.rn.bf16x2.f32 pair, $2, $1; and.b32 $0, pair, $3; }", "=r,r,r,r", [x, bits],
        dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def zero_rows(tile, keep, LAYOUT: gl.constexpr):
    """Writes zeros to the rows of a tile in shared memory that are not kept."""
    tile.store(mask_rows(tile.load(LAYOUT), keep))
