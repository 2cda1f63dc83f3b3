"""Bidirectional attention of packed documents that lie in one piece: state and rows by the same block.

A block takes one key head of one piece of the list of documents.py and goes from document to document. For
each it goes through the document's tiles once for each phase:

    k, v -> S;  then, for each query head, q -> o = phi(q) S / d

A state is summed up in registers, 64 (128) a thread, and when its phase ends it goes into shared memory in
bfloat16, where the next phase uses it: none goes through memory. Copies run ahead across documents and
phases: a stage holds whatever its step reads. Documents that are cut are apply.py's.

Bytes: 4 tensors, the floor, though of each tile all rows are read. 70 KiB of shared memory and three blocks
a multiprocessor (171 KiB and one where W = 128). Measured on an H200 with 16 heads and 1,000 documents of
65,536 tokens: 0.125 ms for those of more than one tile, which hold three quarters of all tokens.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.denominators import PARTS, deal, thin, thin_scratch
from cosformer.ops.hopper.documents import tile_at, whole_documents
from cosformer.ops.hopper.pairs import blank, phased, turned
from cosformer.ops.hopper.tiles import (
    CHUNK,
    anew,
    barriers,
    fetch,
    flat,
    left,
    lines,
    of_rows,
    phases,
    product,
    put,
    room,
    scratch,
    send,
    sync,
)

RUNTIME = ["pieces", "theta", "eps", "tokens"]


@gluon.jit
def bring(x, y, z, xs, ys, zs, bar, token, head, N: gl.constexpr):
    """The first N of three tiles."""
    mbarrier.expect(bar, N * CHUNK * xs.shape[3] * 2)
    fetch(x, xs, bar, 0, token, head)
    if N > 1:
        fetch(y, ys, bar, 0, token, head)
    if N > 2:
        fetch(z, zs, bar, 0, token, head)


@gluon.jit
def bring_next(i, phase, token, before, rest, end, TILES, q, k, v, g, o, xs, ys, zs, bar, key_head,
               GROUP: gl.constexpr, BACKWARD: gl.constexpr):  # fmt: skip
    """What the step at tile i in this phase reads, if i < end; gives the tile and the phase of the step after
    it, and what the list says of that tile: each document is gone through once for each phase."""
    LAST: gl.constexpr = GROUP + 1 if BACKWARD else GROUP
    if i < end:
        if (phase == 0) | (phase > GROUP):
            bring(k, v, v, xs, ys, ys, bar, token, key_head, 2)
        elif BACKWARD:
            bring(q, g, o, xs, ys, zs, bar, token, key_head * GROUP + phase - 1, 3)
        else:
            bring(q, q, q, xs, ys, ys, bar, token, key_head * GROUP + phase - 1, 1)
        ends = rest <= CHUNK
        i = gl.where(ends & (phase < LAST), i - before // CHUNK, i + 1)
        phase = gl.where(ends, gl.where(phase < LAST, phase + 1, 0), phase)
        token, before, rest = tile_at(gl.minimum(i, end - 1), TILES, 0, 0, 0, True)
    return i, phase, token, before, rest


@gluon.jit
def absorbed(tile_k, tile_v, k_c, k_s, dealt, sc, ss, zc, zs, before, rest, theta, W: gl.constexpr,
             WARPS: gl.constexpr):  # fmt: skip
    """The state with one more tile of keys."""
    LINES: gl.constexpr = lines(W, WARPS)
    of_k = gl.arange(0, CHUNK, layout=of_rows(LINES))
    keep = of_k < rest
    cos, sin = phases(before + of_k, theta)
    if rest < CHUNK:
        blank(tile_v, keep, LINES)
    x = tile_k.load(LINES)
    k_c.store(phased(x, gl.where(keep, cos, 0.0)))
    k_s.store(phased(x, gl.where(keep, sin, 0.0)))
    fence_async_shared()
    sc = warpgroup_mma(k_c.permute((1, 0)), tile_v, sc, is_async=True)
    zc = warpgroup_mma(k_c.permute((1, 0)), dealt, zc, is_async=True)
    ss = warpgroup_mma(k_s.permute((1, 0)), tile_v, ss, is_async=True)
    zs = warpgroup_mma(k_s.permute((1, 0)), dealt, zs, is_async=True)
    sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[sc, ss, zc, zs])
    return sc, ss, zc, zs


@gluon.jit
def settle(sc, ss, zc, zs, s_c, s_s, z_c, z_s):
    """A finished state into shared memory."""
    s_c.store(sc.to(gl.bfloat16))
    s_s.store(ss.to(gl.bfloat16))
    z_c.store(zc.to(gl.bfloat16))
    z_s.store(zs.to(gl.bfloat16))
    fence_async_shared()


@gluon.jit
def hand_out(tensor, pointer, tile, token, rest, head, HEADS: gl.constexpr, WIDTH: gl.constexpr,
             LAYOUT: gl.constexpr):  # fmt: skip
    """A tile in shared memory to where it belongs."""
    if rest < CHUNK:
        put(pointer + head * WIDTH, HEADS * WIDTH, token, rest, flat(tile), WIDTH, LAYOUT)
    else:
        send(tensor, tile, 0, token, head)


@gluon.jit
def give_o(
    o, O, DEN, tile, out, s_c, s_s, z_c, z_s, token, before, rest, head, theta, eps, HEADS: gl.constexpr,
    DV: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    NARROW: gl.constexpr = thin(CHUNK, WARPS)
    of_q = gl.arange(0, CHUNK, layout=of_rows(left(RESULT)))
    of_o = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    no_parts = gl.zeros([CHUNK, PARTS], gl.float32, NARROW)
    cos, sin = phases(before + of_q, theta)
    x = tile.load(left(RESULT))
    q_c = turned(x, cos)
    q_s = turned(x, sin)
    acc = warpgroup_mma(q_c, s_c, no_result, use_acc=False, is_async=True)
    acc = warpgroup_mma(q_s, s_s, acc, is_async=True)
    n_c = gl.convert_layout(q_c, left(NARROW))
    n_s = gl.convert_layout(q_s, left(NARROW))
    parts = warpgroup_mma(n_c, z_c, no_parts, use_acc=False, is_async=True)
    parts = warpgroup_mma(n_s, z_s, parts, is_async=True)
    acc, parts, q_c, q_s = warpgroup_mma_wait(num_outstanding=0, deps=[acc, parts, q_c, q_s])
    d = gl.convert_layout(gl.sum(parts, axis=1), of_rows(RESULT))
    result = (acc * (1.0 / gl.maximum(d, eps))[:, None]).to(gl.bfloat16)
    tma.store_wait(0)
    sync()
    flat(out).store(result)
    fence_async_shared()
    sync()
    hand_out(o, O, out, token, rest, head, HEADS, DV, lines(W, WARPS))
    gl.store(DEN + token + of_o, d, mask=of_o < rest)


@gluon.jit(do_not_specialize=RUNTIME)
def whole_o(
    q, k, v, o, O, DEN, TILES, pieces, theta, eps, tokens, HEADS: gl.constexpr, GROUP: gl.constexpr,
    DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: query heads."""
    STATE: gl.constexpr = product(W, W, WARPS)
    KEY_HEADS: gl.constexpr = HEADS // GROUP
    pid = gl.program_id(0)
    key_head = pid % KEY_HEADS
    i, end = whole_documents(TILES, pid // KEY_HEADS, pieces)

    xs = room(STAGES, CHUNK, W)
    ys = room(STAGES, CHUNK, W)
    out = room(1, CHUNK, W)
    ksin_room = scratch(CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = thin_scratch(W)
    zs_room = thin_scratch(W)
    deal_room = deal(WARPS)
    bars = barriers(STAGES)
    coming = i
    phase = i * 0
    token, before, length = tile_at(gl.where(i < end, i, 0), TILES, 0, 0, 0, True)
    at, rest = token, length
    for n in gl.static_range(STAGES):
        coming, phase, at, before, rest = bring_next(
            coming, phase, at, before, rest, end, TILES, q, k, v, q, q, xs.index(n), ys.index(n), ys.index(n),
            bars.index(n), key_head, GROUP, False,
        )  # fmt: skip
    step = 0
    while i < end:
        tiles = (length + CHUNK - 1) // CHUNK
        i += tiles
        token_ahead, _, length_ahead = tile_at(gl.minimum(i, end - 1), TILES, 0, 0, 0, True)
        sc = gl.zeros([W, W], gl.float32, STATE)
        ss = gl.zeros([W, W], gl.float32, STATE)
        zc = gl.zeros([W, PARTS], gl.float32, thin(W, WARPS))
        zs = zc
        for t in range(tiles):
            stage = step % STAGES
            tile = flat(xs.index(stage))
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            zero = anew(t)
            sc, ss, zc, zs = absorbed(tile, flat(ys.index(stage)), tile, ksin_room.index(zero),
                                      deal_room.index(zero), sc, ss, zc, zs, t * CHUNK, length - t * CHUNK,
                                      theta, W, WARPS)  # fmt: skip
            sync()
            coming, phase, at, before, rest = bring_next(
                coming, phase, at, before, rest, end, TILES, q, k, v, q, q, xs.index(stage), ys.index(stage),
                ys.index(stage), bars.index(stage), key_head, GROUP, False,
            )  # fmt: skip
            step += 1
        settle(sc, ss, zc, zs, sc_room.index(0), ss_room.index(0), zc_room.index(0), zs_room.index(0))
        for t in range(tiles * GROUP):
            stage = step % STAGES
            zero = anew(t)
            head = key_head * GROUP + t // tiles
            first = t % tiles * CHUNK
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            give_o(o, O, DEN + head.to(gl.int64) * tokens, flat(xs.index(stage)), out.index(0),
                   sc_room.index(zero), ss_room.index(zero), zc_room.index(zero), zs_room.index(zero),
                   token + first, first, length - first, head, theta, eps, HEADS, DV, W, WARPS)  # fmt: skip
            coming, phase, at, before, rest = bring_next(
                coming, phase, at, before, rest, end, TILES, q, k, v, q, q, xs.index(stage), ys.index(stage),
                ys.index(stage), bars.index(stage), key_head, GROUP, False,
            )  # fmt: skip
            step += 1
        token, length = token_ahead, length_ahead
    tma.store_wait(0)
