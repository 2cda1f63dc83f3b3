"""Windows of two to four tiles: 128 own rows, and the tiles of the other side that they meet in a ring.

A CTA of two warpgroups goes through a strip of own tiles of 128 rows of one head; 64 rows are a warpgroup's.
They meet R = BEHIND + 2 + AHEAD tiles of 64 rows, all of which lie in shared memory: each is read once and
rectified once, in place. After the first two rounds nobody needs the first two tiles any more, and the two
that come next are loaded in their place.

    place in the ring       0 ... R - 1, the own rows' at BEHIND and BEHIND + 1
    distance own - other    i - j - 64 (place - BEHIND)     of row i of the own tile and row j of the other

BEHIND and AHEAD are as in band_tiles.py. The weight of a pair is made of the phases of both rows, two
multiply-adds an element. Beyond the window the cosine is negative as far as the ring reaches, if 3 W >= 64 n
+ 127 for n tiles, the larger of BEHIND and AHEAD: a maximum with zero is all the mask that is needed there.
MARGIN, taken from every weight, makes that certain at the distance W, where the weight is zero but for
rounding; the smallest that counts is 0.006.

Within a warpgroup the products of one tile run while the scores of the next are weighed: at the beginning of
a round its scores are on their way, and behind them the sums of the round before.

**What is not finite** is mended as in band_tiles.py, with one stage of own tiles, which leaves room for a
scratch tile. Scores that no row sees are not masked with AND: where one is NaN, its tile is mended too.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.band_tiles import HALF_PI
from cosformer.ops.hopper.tiles import CHUNK, column_slice, row_slice

OWN = gl.constexpr(128)
MARGIN = gl.constexpr(1e-5)


@gluon.jit
def kept_phases(window, LAYOUT: gl.constexpr):
    """cos and sin of the other side's rows j, the columns of LAYOUT; and the angle of a step."""
    step = HALF_PI / window.to(gl.float32)
    angle = gl.arange(0, CHUNK, layout=column_slice(LAYOUT)).to(gl.float32) * step
    # Not pure: the compiler would compute them again in every round.
    c = gl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=False, pack=1
    )
    s = gl.inline_asm_elementwise(
        "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=False, pack=1
    )
    return c, s, step


@gluon.jit
def place_weights(
    cos_j, sin_j, step, place, BEHIND: gl.constexpr, MASKED: gl.constexpr, OWN_KEYS: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Weights [OWN, CHUNK] of the tile at a place, not positive where a pair is not seen. MASKED: what lies
    ahead of a query is not seen either."""
    i = gl.arange(0, OWN, layout=row_slice(LAYOUT)) - CHUNK * (place - BEHIND)
    angle = i.to(gl.float32) * step
    c = gl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    s = gl.inline_asm_elementwise(
        "sin.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    w = c[:, None] * cos_j[None, :] + (s[:, None] * sin_j[None, :] - MARGIN)
    if MASKED:
        j = gl.arange(0, CHUNK, layout=column_slice(LAYOUT))
        if OWN_KEYS:
            w = gl.where(i[:, None] > j[None, :], -1.0, w)
        else:
            w = gl.where(i[:, None] < j[None, :], -1.0, w)
    return w


@gluon.jit
def weighed_positive(x, w, MEND: gl.constexpr):
    """x w in bfloat16, zero where w is not positive; x is not negative. NaN stays NaN; with MEND it
    does where w is positive, and is zero elsewhere."""
    y = gl.inline_asm_elementwise(
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x * w], dtype=gl.bfloat16, is_pure=True, pack=2
    )
    if MEND:
        y = gl.where(w > 0.0, y.to(gl.float32), 0.0).to(gl.bfloat16)
    return y


@gluon.jit
def packed_weights(w):
    """max(w, 0) in bfloat16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [w], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def weighed_packed(x, weight, MEND: gl.constexpr):
    """x in bfloat16 times `packed_weights`, of any sign; otherwise as `weighed_positive`."""
    y = gl.inline_asm_elementwise(
        """{
        .reg .b32 minus, pair;
        mov.b32 minus, 0x80008000;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        fma.rn.bf16x2 $0, pair, $3, minus;
        }""",
        "=r,r,r,r", [x, weight], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip
    if MEND:
        y = gl.where(weight.to(gl.float32) > 0.0, y.to(gl.float32), 0.0).to(gl.bfloat16)
    return y
