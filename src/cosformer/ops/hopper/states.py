"""The state of a stretch of rows: what pieces of a causal sequence start from, and all there is to know of
the keys of bidirectional attention.

    S = sum_j phi(b_j) c_j^T [2, D, Dv],     z = sum_j w_j phi(b_j) [2, D]

with b = k', c = v, w = 1 ("o") or b = r q', c = g, w = e ("dv"). One block takes one head of one piece;
S lives in registers, c goes from the copy engine straight into products. Running sums over the pieces are
made by ops/triton/states.py.

Bytes: b and c read, and 8 D (Dv + 1) written for a piece. Measured as in forward.py: 0.076 ms (floor of
these tensors 0.063); where W = 128, with apply.py, 0.386 ms (0.252).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.denominators import PARTS, deal, deal_out, thin, thin_lines, thin_scratch
from cosformer.ops.hopper.documents import end_of, part_of
from cosformer.ops.hopper.pairs import blank, phased, turned
from cosformer.ops.hopper.tiles import (
    CHUNK,
    anew,
    barriers,
    fetch,
    flat,
    lines,
    matrix,
    of_rows,
    phases,
    product,
    room,
    scratch,
    sync,
)

RUNTIME = ["origin", "length", "pieces", "size", "unused", "beginning", "theta", "tokens", "mask_stride"]


@gluon.jit
def store_state(STATES, index, sc, ss, zc, zs, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
                WARPS: gl.constexpr):  # fmt: skip
    """S, then z, one behind the other; index < 0: nowhere."""
    STATES += index.to(gl.int64) * (2 * D * DV + 2 * D)
    at, inside = matrix(STATES, D, DV, W, product(W, W, WARPS))
    inside = inside & (index >= 0)
    gl.store(at, sc, mask=inside)
    gl.store(at + D * DV, ss, mask=inside)
    feature = gl.arange(0, W, layout=of_rows(thin(W, WARPS)))
    at_z = STATES + 2 * D * DV + feature
    inside_z = (feature < D) & (index >= 0)
    gl.store(at_z, gl.sum(zc, axis=1), mask=inside_z)
    gl.store(at_z + D, gl.sum(zs, axis=1), mask=inside_z)


@gluon.jit(do_not_specialize=RUNTIME)
def absorb(
    b, c, INVERSE, E, MASK, POSITIONS, STATES, CU, DOCUMENT, FIRST, SLOT, TILES, origin, length, pieces,
    size, unused, beginning, theta, tokens, mask_stride, HEADS: gl.constexpr, D: gl.constexpr,
    DV: gl.constexpr, W: gl.constexpr, WHAT: gl.constexpr, PACKED: gl.constexpr, JOINED: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, CARRIED: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: those of b and c. STATES [slots, HEADS, 2 D (Dv + 1)]. So many `unused` pieces of each row have
    no block, `beginning` of them at its beginning."""
    STATE: gl.constexpr = product(W, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    BYTES: gl.constexpr = 2 * CHUNK * W * 2
    pid = gl.program_id(0)
    head = pid % HEADS
    piece = pid // HEADS
    if not PACKED:
        piece += piece // (pieces - unused) * unused + beginning
    if JOINED and CAUSAL:
        row, batch, start, begin, end, slot = end_of(piece, TILES, pieces, WHAT == "dv")
    else:
        row, batch, start, begin, end, slot = part_of(
            piece, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
        )
    if CARRIED:
        origin += gl.load(POSITIONS + row, mask=begin < end, other=0)
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    chunks = gl.where(slot >= 0, chunks, 0)  # a document of one piece has no use for its state

    bs = room(STAGES, CHUNK, W)
    cs = room(STAGES, CHUNK, W)
    bcos_room = scratch(CHUNK, W)
    bsin_room = scratch(CHUNK, W)
    if WHAT == "dv":
        deal_room = thin_scratch(CHUNK)
    else:
        deal_room = deal(WARPS)
    bars = barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            mbarrier.expect(bars.index(i), BYTES)
            fetch(b, bs.index(i), bars.index(i), batch, start + begin + i * CHUNK, head)
            fetch(c, cs.index(i), bars.index(i), batch, start + begin + i * CHUNK, head)
    sc = gl.zeros([W, W], gl.float32, STATE)
    ss = gl.zeros([W, W], gl.float32, STATE)
    zc = gl.zeros([W, PARTS], gl.float32, thin(W, WARPS))
    zs = zc
    of_b = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_e = gl.arange(0, CHUNK, layout=of_rows(thin_lines(WARPS)))
    vectors = (batch * HEADS + head).to(gl.int64) * tokens + start
    # What is not the copy engine's is asked for a chunk ahead.
    if WHAT == "dv":
        r = gl.load(INVERSE + vectors + begin + of_b, mask=begin + of_b < end, other=0.0)
        e = gl.load(E + vectors + begin + of_e, mask=begin + of_e < end, other=0.0)
    elif MASKED:
        MASK += batch.to(gl.int64) * mask_stride
        shown = gl.load(MASK + begin + of_b, mask=begin + of_b < end, other=0)
    for t in range(chunks):
        stage = t % STAGES
        first = begin + t * CHUNK
        zero = anew(t)
        b_c = bcos_room.index(zero)
        b_s = bsin_room.index(zero)
        cos, sin = phases(origin + first + of_b, theta)
        keep = first + of_b < end
        if WHAT == "dv":
            cos = cos * r
            sin = sin * r
            deal_out(e, deal_room.index(zero), WARPS)
            ahead = first + CHUNK + of_b
            r = gl.load(INVERSE + vectors + ahead, mask=ahead < end, other=0.0)
            ahead_e = first + CHUNK + of_e
            e = gl.load(E + vectors + ahead_e, mask=ahead_e < end, other=0.0)
        else:
            if MASKED:
                keep = shown != 0
                shown = gl.load(MASK + first + CHUNK + of_b, mask=first + CHUNK + of_b < end, other=0)
            if MASKED or PACKED:
                cos = gl.where(keep, cos, 0.0)
                sin = gl.where(keep, sin, 0.0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_c = flat(cs.index(stage))
        if (MASKED and WHAT == "o") or PACKED:
            if (MASKED and WHAT == "o") or first + CHUNK > end:
                blank(tile_c, keep, LINES)
        x = flat(bs.index(stage)).load(LINES)
        if MASKED or PACKED or WHAT == "dv":
            b_c.store(phased(x, cos))
            b_s.store(phased(x, sin))
        else:
            b_c.store(turned(x, cos))
            b_s.store(turned(x, sin))
        fence_async_shared()
        dealt = deal_room.index(zero)
        sc = warpgroup_mma(b_c.permute((1, 0)), tile_c, sc, is_async=True)
        zc = warpgroup_mma(b_c.permute((1, 0)), dealt, zc, is_async=True)
        ss = warpgroup_mma(b_s.permute((1, 0)), tile_c, ss, is_async=True)
        zs = warpgroup_mma(b_s.permute((1, 0)), dealt, zs, is_async=True)
        sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[sc, ss, zc, zs])
        sync()
        if t + STAGES < chunks:
            token = start + first + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), BYTES)
            fetch(b, bs.index(stage), bars.index(stage), batch, token, head)
            fetch(c, cs.index(stage), bars.index(stage), batch, token, head)
    index = gl.where(slot >= 0, slot * HEADS + head, -1)
    store_state(STATES, index, sc, ss, zc, zs, D, DV, W, WARPS)
