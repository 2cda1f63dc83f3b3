"""The gradients of bidirectional attention of packed documents that lie in one piece: whole.py's way, in
three phases, with the equations of apply_gradients.py.

    k, v -> S;  for each query head q, g, o -> dq, R;  k, v -> dk, dv

S is summed up in registers and used in shared memory, then R in the same places. k and v come from the L2
cache the second time, where documents are short.

phi goes over k and q; its sines go over o, which is done with then, or into its place in the steps that do
not read it. So there is room for three stages (112 KiB and two blocks a multiprocessor), two where W = 128
(204 KiB and one).

Bytes: 8 tensors, the floor. Measured as in whole.py: 0.351 ms.
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

from cosformer.ops.hopper.denominators import PARTS, deal, deal_out, thin, thin_lines, thin_scratch
from cosformer.ops.hopper.documents import tile_at, whole_documents
from cosformer.ops.hopper.pairs import blank, phased, turned, where_positive
from cosformer.ops.hopper.tiles import (
    CHUNK,
    anew,
    barriers,
    flat,
    left,
    lines,
    of_rows,
    phases,
    product,
    room,
    scratch,
    sync,
)
from cosformer.ops.hopper.whole import RUNTIME, absorbed, bring_next, hand_out, settle


@gluon.jit
def give_dq(
    dq, DQ, tile_q, tile_g, tile_o, out, dealt, s_c, s_s, z_c, z_s, sc, ss, zc, zs, d, token, before, rest,
    head, theta, eps, HEADS: gl.constexpr, D: gl.constexpr, W: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Also the state R with one more tile."""
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    of_q = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    cos, sin = phases(before + of_q, theta)
    if rest < CHUNK:
        blank(tile_g, of_q < rest, LINES)
    grad = tile_g.load(LINES).to(gl.float32)
    used = gl.sum(gl.abs(grad), axis=1) != 0.0
    e = -gl.sum(grad * tile_o.load(LINES).to(gl.float32), axis=1)
    e = gl.where(used & (d >= eps), e, 0.0)
    r = gl.where(used, 1.0 / gl.where(d < eps, eps, d), 0.0)
    x = tile_q.load(LINES)
    tile_q.store(phased(x, cos * r))
    tile_o.store(phased(x, sin * r))
    deal_out(gl.convert_layout(e, of_rows(thin_lines(WARPS))), dealt, WARPS)
    no_e = gl.zeros([CHUNK, PARTS], gl.float32, left(RESULT))
    columns = (gl.convert_layout(e, of_rows(left(RESULT)))[:, None] + no_e).to(gl.bfloat16)
    fence_async_shared()
    x = warpgroup_mma(tile_g, s_c.permute((1, 0)), no_result, use_acc=False, is_async=True)
    x = warpgroup_mma(columns, z_c.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(tile_g, s_s.permute((1, 0)), no_result, use_acc=False, is_async=True)
    y = warpgroup_mma(columns, z_s.permute((1, 0)), y, is_async=True)
    rc = warpgroup_mma(tile_q.permute((1, 0)), tile_g, sc, is_async=True)
    zc = warpgroup_mma(tile_q.permute((1, 0)), dealt, zc, is_async=True)
    rs = warpgroup_mma(tile_o.permute((1, 0)), tile_g, ss, is_async=True)
    zs = warpgroup_mma(tile_o.permute((1, 0)), dealt, zs, is_async=True)
    x, y, columns = warpgroup_mma_wait(num_outstanding=4, deps=[x, y, columns])
    cos_y, sin_y = phases(before + of_y, theta)
    r_y = gl.convert_layout(r, of_rows(RESULT))
    y = x * (cos_y * r_y)[:, None] + y * (sin_y * r_y)[:, None]
    y = where_positive(y, tile_q.load(RESULT))
    sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[rc, rs, zc, zs])
    tma.store_wait(0)
    sync()
    flat(out).store(y)
    fence_async_shared()
    sync()
    hand_out(dq, DQ, out, token, rest, head, HEADS, D, LINES)
    return sc, ss, zc, zs


@gluon.jit
def give_dkv(
    dk, dv, DK, DV_, tile_k, tile_v, out, s_c, s_s, z_c, z_s, token, before, rest, head, theta,
    HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    of_k = gl.arange(0, CHUNK, layout=of_rows(left(RESULT)))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    ones = gl.full([CHUNK, PARTS], 1.0, gl.float32, left(RESULT)).to(gl.bfloat16)
    x = warpgroup_mma(tile_v, s_c.permute((1, 0)), no_result, use_acc=False, is_async=True)
    x = warpgroup_mma(ones, z_c.permute((1, 0)), x, is_async=True)
    y = warpgroup_mma(tile_v, s_s.permute((1, 0)), no_result, use_acc=False, is_async=True)
    y = warpgroup_mma(ones, z_s.permute((1, 0)), y, is_async=True)
    cos, sin = phases(before + of_k, theta)
    k_tile = tile_k.load(left(RESULT))
    k_c = turned(k_tile, cos)
    k_s = turned(k_tile, sin)
    x, y = warpgroup_mma_wait(num_outstanding=0, deps=[x, y])
    cos_y, sin_y = phases(before + of_y, theta)
    y = x * cos_y[:, None] + y * sin_y[:, None]
    y = where_positive(y, tile_k.load(RESULT))
    w = warpgroup_mma(k_c, s_c, no_result, use_acc=False, is_async=True)
    w = warpgroup_mma(k_s, s_s, w, is_async=True)
    tma.store_wait(0)
    sync()
    flat(out.index(0)).store(y)
    fence_async_shared()
    sync()
    hand_out(dk, DK, out.index(0), token, rest, head, HEADS, D, LINES)
    w, k_c, k_s = warpgroup_mma_wait(num_outstanding=0, deps=[w, k_c, k_s])
    flat(out.index(1)).store(w.to(gl.bfloat16))
    fence_async_shared()
    sync()
    hand_out(dv, DV_, out.index(1), token, rest, head, HEADS, DV, LINES)


@gluon.jit(do_not_specialize=RUNTIME)
def whole_gradients(
    q, k, v, o, g, dq, dk, dv, DQ, DK, DV_, DEN, TILES, pieces, theta, eps, tokens, HEADS: gl.constexpr,
    GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: query heads."""
    STATE: gl.constexpr = product(W, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    KEY_HEADS: gl.constexpr = HEADS // GROUP
    pid = gl.program_id(0)
    key_head = pid % KEY_HEADS
    i, end = whole_documents(TILES, pid // KEY_HEADS, pieces)

    xs = room(STAGES, CHUNK, W)
    ys = room(STAGES, CHUNK, W)
    os = room(STAGES, CHUNK, W)
    out = room(2, CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = thin_scratch(W)
    zs_room = thin_scratch(W)
    deal_room = deal(WARPS)
    weight_room = thin_scratch(CHUNK)
    bars = barriers(STAGES)
    coming = i
    phase = i * 0
    token, before, length = tile_at(gl.where(i < end, i, 0), TILES, 0, 0, 0, True)
    at, rest = token, length
    for n in gl.static_range(STAGES):
        coming, phase, at, before, rest = bring_next(
            coming, phase, at, before, rest, end, TILES, q, k, v, g, o, xs.index(n), ys.index(n), os.index(n),
            bars.index(n), key_head, GROUP, True,
        )  # fmt: skip
    of_q = gl.arange(0, CHUNK, layout=of_rows(LINES))
    step = 0
    while i < end:
        tiles = (length + CHUNK - 1) // CHUNK
        i += tiles
        token_ahead, _, length_ahead = tile_at(gl.minimum(i, end - 1), TILES, 0, 0, 0, True)
        at_d = DEN + (key_head * GROUP).to(gl.int64) * tokens + token + of_q
        d = gl.load(at_d, mask=of_q < length, other=1.0)
        sc = gl.zeros([W, W], gl.float32, STATE)
        ss = gl.zeros([W, W], gl.float32, STATE)
        zc = gl.zeros([W, PARTS], gl.float32, thin(W, WARPS))
        zs = zc
        for t in range(tiles):
            stage = step % STAGES
            zero = anew(t)
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            tile = flat(xs.index(stage + zero))
            sc, ss, zc, zs = absorbed(tile, flat(ys.index(stage)), tile, flat(os.index(stage + zero)),
                                      deal_room.index(zero), sc, ss, zc, zs, t * CHUNK, length - t * CHUNK,
                                      theta, W, WARPS)  # fmt: skip
            sync()
            coming, phase, at, before, rest = bring_next(
                coming, phase, at, before, rest, end, TILES, q, k, v, g, o, xs.index(stage), ys.index(stage),
                os.index(stage), bars.index(stage), key_head, GROUP, True,
            )  # fmt: skip
            step += 1
        settle(sc, ss, zc, zs, sc_room.index(0), ss_room.index(0), zc_room.index(0), zs_room.index(0))
        sc = gl.zeros([W, W], gl.float32, STATE)
        ss = gl.zeros([W, W], gl.float32, STATE)
        zc = gl.zeros([W, PARTS], gl.float32, thin(W, WARPS))
        zs = zc
        for t in range(tiles * GROUP):
            stage = step % STAGES
            zero = anew(t)
            head = key_head * GROUP + t // tiles
            first = t % tiles * CHUNK
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            sc, ss, zc, zs = give_dq(
                dq, DQ, flat(xs.index(stage + zero)), flat(ys.index(stage)), flat(os.index(stage + zero)),
                out.index(0), weight_room.index(zero), sc_room.index(zero), ss_room.index(zero),
                zc_room.index(zero), zs_room.index(zero), sc, ss, zc, zs, d, token + first, first,
                length - first, head, theta, eps, HEADS, D, W, WARPS,
            )  # fmt: skip
            coming, phase, at, before, rest = bring_next(
                coming, phase, at, before, rest, end, TILES, q, k, v, g, o, xs.index(stage), ys.index(stage),
                os.index(stage), bars.index(stage), key_head, GROUP, True,
            )  # fmt: skip
            step += 1
            first = (t + 1) % tiles * CHUNK
            at_d = DEN + (key_head * GROUP + (t + 1) // tiles).to(gl.int64) * tokens + token + first + of_q
            d = gl.load(at_d, mask=(of_q < length - first) & (t + 1 < tiles * GROUP), other=1.0)
        settle(sc, ss, zc, zs, sc_room.index(0), ss_room.index(0), zc_room.index(0), zs_room.index(0))
        for t in range(tiles):
            stage = step % STAGES
            zero = anew(t)
            first = t * CHUNK
            mbarrier.wait(bars.index(stage), (step // STAGES) & 1)
            give_dkv(dk, dv, DK, DV_, flat(xs.index(stage)), flat(ys.index(stage)), out, sc_room.index(zero),
                     ss_room.index(zero), zc_room.index(zero), zs_room.index(zero), token + first, first,
                     length - first, key_head, theta, KEY_HEADS, D, DV, W, WARPS)  # fmt: skip
            coming, phase, at, before, rest = bring_next(
                coming, phase, at, before, rest, end, TILES, q, k, v, g, o, xs.index(stage), ys.index(stage),
                os.index(stage), bars.index(stage), key_head, GROUP, True,
            )  # fmt: skip
            step += 1
        token, length = token_ahead, length_ahead
    tma.store_wait(0)
