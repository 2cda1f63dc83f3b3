"""Wide windows: which tiles a chunk meets, and the state that a segment starts from.

A head with a window of W tokens, a multiple of CHUNK, sees the chunks that lie less than W / CHUNK away in
full and of the two at the edges a triangle each. A CTA goes through a segment, which divides the window, and
keeps the sum S of the chunks its own sees; for each chunk one tile enters S and one leaves it:

    chunks ascending    causal: the chunk itself enters         both ways: the chunk W tokens ahead enters
                        the chunk W tokens before leaves
    chunks descending   causal: the chunk itself enters         both ways: the chunk W tokens before enters
                        the chunk W tokens ahead leaves

A chunk is applied to S before either: of the tile that enters its row sees a triangle more, of the one that
leaves a triangle less, on the same side of the diagonal. A tile that leaves has the sign of its features
changed, and so the same products add one and subtract the other. What was subtracted ends with the segment,
at most 2 W tokens on, and with it its roundings.

**Phases.** W tokens are a quarter of a turn. Angles are those within the own block of W tokens, [0, pi/2]; of
tiles W tokens away and of states of the neighbouring blocks, cosines and sines change places:

    W ahead:   cos -> -sin, sin -> cos           W before:   cos -> sin, sin -> -cos

so that what enters is bit for bit what leaves.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.bf16x2 import minus_relu_phase, relu_phase
from cosformer.ops.hopper.partial_sums import load_z_columns
from cosformer.ops.hopper.state import zero_state
from cosformer.ops.hopper.tiles import matrix_pointers, mma_layout


@gluon.jit
def locate_segment(pid, table, heads, first, per_row, length, segment, GROUP: gl.constexpr):
    """head, key head, its entry in the table, batch, segment, and its tokens [begin, end). A row has
    `per_row` segments here, from `first` on. table [n, 3]: key heads."""
    entry = pid % heads
    split = pid // heads
    batch = split // per_row
    index = first + split % per_row
    key_entry = entry // GROUP
    key_head = gl.load(table + 3 * key_entry)
    begin = index * segment
    return (
        key_head * GROUP + entry % GROUP, key_head, entry, batch, index, begin,
        gl.minimum(begin + segment, length),
    )  # fmt: skip


@gluon.jit
def sum_states(
    h, batch, entry, heads, segments, low, high, segment, window, block, D: gl.constexpr, DV: gl.constexpr,
    F: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """S and z of the segments [low, high), in the phases of `block`. h [B, segments, heads, 2 D (Dv + 1)]."""
    STATE: gl.constexpr = mma_layout(F, F, WARPS)
    s_cos, s_sin, z_cos, z_sin = zero_state(F, WARPS)
    for i in range(gl.maximum(low, 0), gl.minimum(high, segments)):
        away = i * segment // window - block
        swapped = gl.where(away == 0, 0, 1)
        of_cos = gl.where(away > 0, -1.0, 1.0)
        of_sin = gl.where(away < 0, -1.0, 1.0)
        index = ((batch * segments + i) * heads + entry).to(gl.int64)
        state = h + index * (2 * D * (DV + 1))
        at, inside = matrix_pointers(state, D, DV, F, STATE)
        s_cos += of_cos * gl.load(at + swapped * (D * DV), mask=inside, other=0.0)
        s_sin += of_sin * gl.load(at + (1 - swapped) * (D * DV), mask=inside, other=0.0)
        z = state + 2 * D * DV
        z_cos += of_cos * load_z_columns(z + swapped * D, D, F, WARPS)
        z_sin += of_sin * load_z_columns(z + (1 - swapped) * D, D, F, WARPS)
    return s_cos, s_sin, z_cos, z_sin


@gluon.jit
def write_key_features(k_cos, k_sin, cos, sin, AWAY: gl.constexpr, LAYOUT: gl.constexpr):
    """phi(k), with the cosines over k itself. AWAY: k is W tokens ahead, or W before and leaving."""
    x = k_cos.load(LAYOUT)
    if AWAY:
        k_cos.store(minus_relu_phase(x, sin))
        k_sin.store(relu_phase(x, cos))
    else:
        k_cos.store(relu_phase(x, cos))
        k_sin.store(relu_phase(x, sin))
