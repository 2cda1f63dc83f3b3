"""Narrow windows: the tiles of the other side that a tile meets, and their weights.

A CTA goes through a strip of tiles of 64 rows of one head. An own tile meets OTHERS tiles of the other side,
the first of which begins BEFORE tokens before it. Of queries these are 64 tokens and 2 tiles for causal
windows of up to 65, 128 and 3 up to 129; in both directions 64 and 3, but 32 and 2 up to 33: tiles of the
other side begin in the middle of own ones. Of causal keys BEFORE is 0. The tiles of the other side lie in a
ring of OTHERS + 1 slots in shared memory: those that the own tile meets, and the next, which is on its way.
Each is read once, and rectified once, in place.

    place in the ring       0 ... OTHERS - 1
    distance own - other    i - j + BEFORE - 64 place     of row i of the own tile and row j of the other

The weight of a pair depends on its distance alone: cos((pi/2) d / W) for each place is computed before the
loop, and held as pairs of bfloat16, 16 registers a tile. Pairs that are not seen have the weight zero, and
no others: scores are masked by it with AND, NaN or not.

**What is not finite.** The rows that these are multiplied with may hold NaN that no row sees, and zero times
NaN is NaN. A tile of results that is not finite is marked, and its strip computed once more by a launch of
its own (MEND), which finds nothing to do otherwise: with zeros in the place of what is not finite, which move
no bit of the rows that do not see it, and NaN for those that do.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.tiles import CHUNK, column_slice, dot_operand, row_slice, sync

HALF_PI = gl.constexpr(1.5707963267948966)


@gluon.jit
def locate_strip(pid, table, heads, tiles, strips, strip, GROUP: gl.constexpr):
    """head, key head, window, its entry, batch, the first tile and how many. table [n, 3]: key heads and
    windows; `heads`: GROUP for each of them."""
    entry = pid % heads
    rest = pid // heads
    batch = rest // strips
    first = rest % strips * strip
    key_head = gl.load(table + 3 * (entry // GROUP))
    window = gl.load(table + 3 * (entry // GROUP) + 1)
    count = gl.minimum(strip, tiles - first)
    return key_head * GROUP + entry % GROUP, key_head, window, entry, batch, first, count


@gluon.jit
def band_weights(shift, window, OWN_KEYS: gl.constexpr, CAUSAL: gl.constexpr, LAYOUT: gl.constexpr):
    """Of own rows i and others j, at the distance i - j + shift, in bfloat16. OWN_KEYS: own rows are keys."""
    i = gl.arange(0, CHUNK, layout=row_slice(LAYOUT))
    j = gl.arange(0, CHUNK, layout=column_slice(LAYOUT))
    d = i[:, None] - j[None, :] + shift
    if OWN_KEYS:
        d = -d
    if CAUSAL:
        seen = (d >= 0) & (d < window)
    else:
        seen = (d > -window) & (d < window)
    angle = d.to(gl.float32) * (HALF_PI / window.to(gl.float32))
    c = gl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $1;", "=f,f", [angle], dtype=gl.float32, is_pure=True, pack=1
    )
    # Not pure: the compiler would hold the numbers one by one, or compute them again in the loop.
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [gl.where(seen, c, 0.0)], dtype=gl.bfloat16,
        is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def weighed(x, weight):
    """x in bfloat16 times its weight; zero where that is zero, whatever x is."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 minus, none, there, pair;
        mov.b32 minus, 0x80008000;
        mov.b32 none, 0;
        cvt.rn.bf16x2.f32 pair, $2, $1;
        fma.rn.bf16x2 pair, pair, $3, minus;
        set.gtu.u32.bf16x2 there, $3, none;
        and.b32 $0, pair, there;
        }""",
        "=r,r,r,r", [x, weight], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def rectified(x):
    """ReLU(x); NaN stays NaN."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 zero; mov.b32 zero, 0; max.NaN.bf16x2 $0, $1, zero; }",
        "=r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def not_finite(x):
    """Whether a tile holds anything that is not finite, as 0 or 1."""
    return gl.where(gl.sum(gl.sum(x * 0.0, axis=1), axis=0) != 0.0, 1, 0)


@gluon.jit
def any_marked(spoilt_ptr, tile, count, heads, entry, WARPS: gl.constexpr):
    """Whether one of `count` tiles, at most 32 WARPS, is marked."""
    i = gl.arange(0, 32 * WARPS, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    return gl.max(gl.load(spoilt_ptr + (tile + i) * heads + entry, mask=i < count, other=0), axis=0) != 0


@gluon.jit
def mended(a, tile, weight, acc, scratch, COALESCED: gl.constexpr, OUT: gl.constexpr):
    """acc + a times the tile, with zeros for what is not finite in it; infinite in the rows that see that, by
    a product that no float32 can hold. The tile stays as it is: the next ones meet it too."""
    x = tile.load(COALESCED).to(gl.float32)
    finite = gl.abs(x) <= 3.4028234663852886e38
    scratch.store(gl.where(finite, 0.0, 16.0).to(gl.bfloat16))
    seen = gl.where(weight.to(gl.float32) > 0.0, 1e38, 0.0).to(gl.bfloat16)
    seen = gl.convert_layout(seen, dot_operand(OUT))
    fence_async_shared()
    sync()
    acc = warpgroup_mma(seen, scratch, acc, is_async=True)
    acc, seen = warpgroup_mma_wait(num_outstanding=0, deps=[acc, seen])
    sync()
    scratch.store(gl.where(finite, x, 0.0).to(gl.bfloat16))
    fence_async_shared()
    sync()
    acc = warpgroup_mma(a, scratch, acc, is_async=True)
    acc, a = warpgroup_mma_wait(num_outstanding=0, deps=[acc, a])
    sync()
    return acc


@gluon.jit
def or_nan(acc):
    """acc, NaN where it is not finite."""
    return gl.where(gl.abs(acc) <= 3.4028234663852886e38, acc, float("nan"))
