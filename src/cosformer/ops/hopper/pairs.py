"""ReLU, phases and masks: two bfloat16 an instruction.

**Phases and ReLU in one instruction.** Angles lie in [0, pi/2] (the caller sees to that), where cos and
sin are not negative; so ReLU(x) cos = ReLU(x cos), and two numbers are done at once by one fused
multiply-add that ends in a ReLU. There the hardware's own sine and cosine (`phases` of tiles.py) err by
2^-20: far below a bfloat16.

**Masks are bits.** What is masked is first rounded to pairs of bfloat16, from which bits are then taken away,
NaN or not; left to itself the compiler chooses number by number. A pair lies in one row, from an even column
on: its first number tells where both are. What would be the same in every turn of a loop is not to be kept in
registers over it (`is_pure=False`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK, of_columns


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
    """y where x > 0 or NaN, and zero elsewhere, in bfloat16; two at a time."""
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
    """Zeros in the rows of a tile that are not kept."""
    tile.store(hidden(tile.load(LAYOUT), keep))
