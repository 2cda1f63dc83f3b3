"""The gradient of q in causal attention: the walk of forward.py once more, with the roles changed.

    dq'_i / r_i = sum_{j <= i} cos(theta_i - theta_j) (g_i . v_j + e_i) k'_j

The factors 1/d and e stay off the large tiles: g and v go from the copy engine straight into products,
and only k passes through registers. For each chunk, with S and z as in the forward:

    e = -(g . o), r = 1 / max(d, eps); both are written for keys.py
    A = g v^T + e below the diagonal; S += phi(k)^T v runs on meanwhile
    X = g Sc^T + A kc + e (x) zc, and on top of X cos / sin, in the same registers, Y, its like with sines
    dq = r sin (X cos / sin + Y) where q > 0

phi(k) is written over k. o, read first, and q, read last, have one stage each; k, v and g two where
W = 64 (102 KiB), one where W = 128 (190 KiB). d of the next chunk is asked for before this one is done.

Bytes: q, k, v, o, g read and dq written: 6 tensors. Measured as in forward.py: 0.205 ms (floor of these
tensors 0.189); where W = 128, with keys.py, 1.37 ms (0.757). Documents, as there: 0.268 ms; a document's last
tile adds nothing to S.
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

from cosformer.ops.hopper.denominators import PARTS, deal, in_parts, thin, thin_scratch
from cosformer.ops.hopper.documents import tile_at, way
from cosformer.ops.hopper.pairs import below, blank, phased, turned, where_positive
from cosformer.ops.hopper.tiles import (
    CHUNK,
    anew,
    barriers,
    fetch,
    flat,
    left,
    lines,
    matrix,
    of_columns,
    of_rows,
    phases,
    product,
    put,
    room,
    scratch,
    send,
    sync,
)

RUNTIME = ["origin", "length", "pieces", "size", "theta", "eps", "tokens", "mask_stride", "s_stride",
           "z_stride"]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def walk_dq(
    q, k, v, o, g, dq, DQ, DEN, INVERSE, E, MASK, POSITIONS, S, Z, CU, DOCUMENT, FIRST, SLOT, TILES,
    origin, length, pieces, size, theta, eps, tokens, mask_stride, s_stride, z_stride,
    HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    PACKED: gl.constexpr, JOINED: gl.constexpr, MASKED: gl.constexpr, CARRIED: gl.constexpr,
    STARTED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    SQUARE: gl.constexpr = product(CHUNK, CHUNK, WARPS)
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    STATE: gl.constexpr = product(W, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    SUMS: gl.constexpr = thin(W, WARPS)
    TILE: gl.constexpr = CHUNK * W * 2

    pid = gl.program_id(0)
    head = pid % HEADS
    key_head = head // GROUP
    row, batch, start, begin, end, slot, chunks = way(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
    )
    if CARRIED:
        origin += gl.load(POSITIONS + row, mask=chunks > 0, other=0).to(gl.int32)
    token, first, rest = tile_at(0, TILES, start, begin, end, JOINED)

    ks = room(STAGES, CHUNK, W)
    vs = room(STAGES, CHUNK, W)
    gs = room(STAGES, CHUNK, W)
    qs = room(1, CHUNK, W)
    os = room(1, CHUNK, W)
    out = room(1, CHUNK, W)
    ks_room = scratch(CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = thin_scratch(W)
    zs_room = thin_scratch(W)
    deal_room = deal(WARPS)
    bars = barriers(STAGES)
    bar_q = barriers(1)
    bar_o = barriers(1)
    if chunks > 0:
        mbarrier.expect(bar_o.index(0), TILE)
        fetch(o, os.index(0), bar_o.index(0), batch, token, head)
        mbarrier.expect(bar_q.index(0), TILE)
        fetch(q, qs.index(0), bar_q.index(0), batch, token, head)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at, _, _ = tile_at(i, TILES, start, begin, end, JOINED)
            mbarrier.expect(bars.index(i), 3 * TILE)
            fetch(k, ks.index(i), bars.index(i), batch, at, key_head)
            fetch(v, vs.index(i), bars.index(i), batch, at, key_head)
            fetch(g, gs.index(i), bars.index(i), batch, at, head)

    zc = gl.zeros([W, PARTS], gl.float32, SUMS)
    zs = zc
    if STARTED:
        if JOINED:
            slot = gl.where((chunks > 0) & (first > 0), slot, -1)
        index = (slot * (HEADS // GROUP) + key_head).to(gl.int64)
        at, inside = matrix(S + index * s_stride, D, DV, W, STATE)
        inside = inside & (slot >= 0)
        sc = gl.load(at, mask=inside, other=0.0)
        ss = gl.load(at + D * DV, mask=inside, other=0.0)
        if slot >= 0:
            zc = in_parts(Z + index * z_stride, D, W, WARPS)
            zs = in_parts(Z + index * z_stride + D, D, W, WARPS)
    else:
        sc = gl.zeros([W, W], gl.float32, STATE)
        ss = gl.zeros([W, W], gl.float32, STATE)

    of_g = gl.arange(0, CHUNK, layout=of_rows(left(SQUARE)))
    of_k = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    i = gl.arange(0, CHUNK, layout=of_rows(SQUARE))
    j = gl.arange(0, CHUNK, layout=of_columns(SQUARE))
    steps = 16 * (i[:, None] - j[None, :] + 1)
    no_square = gl.zeros([CHUNK, CHUNK], gl.float32, SQUARE)
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    vectors = (batch * HEADS + head).to(gl.int64) * tokens
    d = gl.load(DEN + vectors + token + of_g, mask=of_g < gl.where(chunks > 0, rest, 0), other=1.0)
    for t in range(chunks):
        stage = t % STAGES
        ahead, first_ahead, rest_ahead = tile_at(
            gl.minimum(t + 1, chunks - 1), TILES, start, begin, end, JOINED
        )
        token_next, _, _ = tile_at(gl.minimum(t + STAGES, chunks - 1), TILES, start, begin, end, JOINED)
        if not JOINED:
            token, first, rest = tile_at(t, TILES, start, begin, end, JOINED)
            follows: gl.constexpr = True
            goes_on: gl.constexpr = True
        else:
            follows = first > 0
            goes_on = rest > CHUNK
        zero = anew(t)
        k_c = flat(ks.index(stage))
        k_s = ks_room.index(zero)
        s_c = sc_room.index(zero)
        s_s = ss_room.index(zero)
        z_c = zc_room.index(zero)
        z_s = zs_room.index(zero)
        if follows:
            s_c.store(sc.to(gl.bfloat16))
            s_s.store(ss.to(gl.bfloat16))
            z_c.store(zc.to(gl.bfloat16))
            z_s.store(zs.to(gl.bfloat16))
        cos, sin = phases(origin + first + of_k, theta)
        keep = of_k < rest
        if MASKED:
            keep = gl.load(MASK + batch.to(gl.int64) * mask_stride + first + of_k, mask=keep, other=0) != 0
        if MASKED or PACKED:
            cos = gl.where(keep, cos, 0.0)
            sin = gl.where(keep, sin, 0.0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        mbarrier.wait(bar_o.index(0), t & 1)
        tile_g = flat(gs.index(stage))
        tile_v = flat(vs.index(stage))
        grad = tile_g.load(left(SQUARE)).to(gl.float32)
        used = gl.sum(gl.abs(grad), axis=1) != 0.0
        e = -gl.sum(grad * flat(os.index(0)).load(left(SQUARE)).to(gl.float32), axis=1)
        e = gl.where(used & (d >= eps), e, 0.0)
        bound = gl.where(d < eps, eps, d)
        r = gl.where(used, 1.0 / bound, 0.0)
        x = k_c.load(LINES)
        if MASKED or PACKED:
            k_c.store(phased(x, cos))
            k_s.store(phased(x, sin))
            if MASKED or rest < CHUNK:
                blank(tile_v, keep, LINES)
        else:
            k_c.store(turned(x, cos))
            k_s.store(turned(x, sin))
        fence_async_shared()
        a = warpgroup_mma(tile_g, tile_v.permute((1, 0)), no_square, use_acc=False, is_async=True)
        if not JOINED:
            dealt = deal_room.index(zero)
            sc_next = warpgroup_mma(k_c.permute((1, 0)), tile_v, sc, is_async=True)
            zc_next = warpgroup_mma(k_c.permute((1, 0)), dealt, zc, is_async=True)
            ss_next = warpgroup_mma(k_s.permute((1, 0)), tile_v, ss, is_async=True)
            zs_next = warpgroup_mma(k_s.permute((1, 0)), dealt, zs, is_async=True)
        if t + 1 < chunks:
            mbarrier.expect(bar_o.index(0), TILE)
            fetch(o, os.index(0), bar_o.index(0), batch, ahead, head)
        a = warpgroup_mma_wait(num_outstanding=0 if JOINED else 4, deps=[a])
        a = below(a + gl.convert_layout(e, of_rows(SQUARE))[:, None], steps)
        a = gl.convert_layout(a, left(RESULT))
        no_e = gl.zeros([CHUNK, PARTS], gl.float32, left(RESULT))
        columns = (gl.convert_layout(e, of_rows(left(RESULT)))[:, None] + no_e).to(gl.bfloat16)
        cos_y, sin_y = phases(origin + first + of_y, theta)
        r_y = gl.convert_layout(r, of_rows(RESULT))
        if JOINED:
            x = warpgroup_mma(a, k_c, no_result, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            if goes_on:
                # Described for themselves: what is made in a branch must not be used behind it.
                again = anew(rest)
                b_c = flat(ks.index(stage + again)).permute((1, 0))
                b_s = ks_room.index(again).permute((1, 0))
                c = flat(vs.index(stage + again))
                dealt = deal_room.index(again)
                sc = warpgroup_mma(b_c, c, sc, use_acc=follows, is_async=True)
                zc = warpgroup_mma(b_c, dealt, zc, use_acc=follows, is_async=True)
                ss = warpgroup_mma(b_s, c, ss, use_acc=follows, is_async=True)
                zs = warpgroup_mma(b_s, dealt, zs, use_acc=follows, is_async=True)
                sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[sc, ss, zc, zs])
            if follows:
                x = warpgroup_mma(tile_g, s_c.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(columns, z_c.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            x = x * (cos_y / sin_y)[:, None]
            x = warpgroup_mma(a, k_s, x, is_async=True)
            x, a = warpgroup_mma_wait(num_outstanding=0, deps=[x, a])
            if follows:
                x = warpgroup_mma(tile_g, s_s.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(columns, z_s.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
        else:
            x = warpgroup_mma(tile_g, s_c.permute((1, 0)), no_result, use_acc=False, is_async=True)
            x = warpgroup_mma(columns, z_c.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(a, k_c, x, is_async=True)
            x, sc, ss, zc, zs = warpgroup_mma_wait(
                num_outstanding=0, deps=[x, sc_next, ss_next, zc_next, zs_next]
            )
            x = x * (cos_y / sin_y)[:, None]
            x = warpgroup_mma(tile_g, s_s.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(columns, z_s.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(a, k_s, x, is_async=True)
            x, a, columns = warpgroup_mma_wait(num_outstanding=0, deps=[x, a, columns])
        y = x * (sin_y * r_y)[:, None]
        mbarrier.wait(bar_q.index(0), t & 1)
        y = where_positive(y, flat(qs.index(0)).load(RESULT))
        tma.store_wait(0)
        sync()
        flat(out.index(0)).store(y)
        fence_async_shared()
        sync()
        if PACKED and rest < CHUNK:
            put(DQ + head * D, HEADS * D, token, rest, flat(out.index(0)), D, LINES)
        else:
            send(dq, out.index(0), batch, token, head)
        if t + 1 < chunks:
            mbarrier.expect(bar_q.index(0), TILE)
            fetch(q, qs.index(0), bar_q.index(0), batch, ahead, head)
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), 3 * TILE)
            fetch(k, ks.index(stage), bars.index(stage), batch, token_next, key_head)
            fetch(v, vs.index(stage), bars.index(stage), batch, token_next, key_head)
            fetch(g, gs.index(stage), bars.index(stage), batch, token_next, head)
        d = gl.load(DEN + vectors + ahead + of_g, mask=of_g < rest_ahead, other=1.0)
        gl.store(E + vectors + token + of_g, e, mask=of_g < rest)
        gl.store(INVERSE + vectors + token + of_g, r, mask=of_g < rest)
        if JOINED:
            token, first, rest = ahead, first_ahead, rest_ahead
    tma.store_wait(0)
