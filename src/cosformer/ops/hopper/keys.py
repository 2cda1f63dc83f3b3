"""The gradients of k and v in causal attention: a walk from the end of the sequence to its beginning.

    dk'_j = sum_{i >= j} cos(theta_i - theta_j) (g_i . v_j + e_i) r_i q'_i
    dv_j  = sum_{i >= j} cos(theta_i - theta_j) (k'_j . r_i q'_i) g_i

The state is R = sum_i phi(r_i q'_i) g_i^T with its own z, weighted by e: the matrix that deals e out to the
parts of z (`deal_out`) also adds e to A. r goes onto q together with the
phase, so that v and g go from the copy engine straight into products; phi(k) and phi(r q) are written
over k and q. Strictly in turn, because both results together would not leave room for R in 255 registers:

    P = phi(k) phi(r q)^T above the diagonal -> dv = phi(k) R + P g -> out
    A = v g^T + e above the diagonal -> X = v Rc^T + A (r q)_c + 1 (x) zc, and on top of X cos / sin, in the
    same registers, Y, its like with sines -> dk = sin (X cos / sin + Y) where k > 0 -> out
    R += phi(r q)^T g

r and e of the next chunk are asked for before this one is done. Two stages (110 KiB); where W = 128 there
is room for one of v and g, which are needed later than q and k (222 KiB: R alone takes 64).
With grouped heads each query head writes its own part of dk and dv.

Bytes: q, k, v, g read, dk and dv written: 6 tensors. Measured as in forward.py: 0.235 ms (floor of these
tensors 0.189); W = 128 as in queries.py. Documents, as there: 0.321 ms; here it is a document's last
tile that finds no state, and its first that adds nothing to R.
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

from cosformer.ops.hopper.denominators import PARTS, deal_out, in_parts, thin, thin_lines, thin_scratch
from cosformer.ops.hopper.documents import tile_at, way
from cosformer.ops.hopper.pairs import above, blank, hidden, phased, turned, where_positive
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

RUNTIME = ["origin", "length", "pieces", "size", "theta", "tokens", "mask_stride", "s_stride", "z_stride",
           "s_out_stride", "z_out_stride"]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def walk_dkv(
    q, k, v, g, dk, dv, DK, DV_, INVERSE, E, MASK, POSITIONS, S, Z, S_OUT, Z_OUT, CU, DOCUMENT, FIRST,
    SLOT, TILES, origin, length, pieces, size, theta, tokens, mask_stride, s_stride, z_stride, s_out_stride,
    z_out_stride, HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr,
    W: gl.constexpr, PACKED: gl.constexpr, JOINED: gl.constexpr, MASKED: gl.constexpr, CARRIED: gl.constexpr,
    STARTED: gl.constexpr, STORED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """S, Z: the gradient of the state after each piece; S_OUT, Z_OUT: of the one before the first."""
    SQUARE: gl.constexpr = product(CHUNK, CHUNK, WARPS)
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    STATE: gl.constexpr = product(W, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    SUMS: gl.constexpr = thin(W, WARPS)
    TILE: gl.constexpr = CHUNK * W * 2
    LATE: gl.constexpr = STAGES if W == 64 else 1  # stages of v and g

    pid = gl.program_id(0)
    head = pid % HEADS
    key_head = head // GROUP
    row, batch, start, begin, end, slot, chunks = way(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
    )
    if CARRIED:
        origin += gl.load(POSITIONS + row, mask=chunks > 0, other=0).to(gl.int32)
    token, first, rest = tile_at(gl.maximum(chunks - 1, 0), TILES, start, begin, end, JOINED)

    qs = room(STAGES, CHUNK, W)
    ks = room(STAGES, CHUNK, W)
    vs = room(LATE, CHUNK, W)
    gs = room(LATE, CHUNK, W)
    out = room(1, CHUNK, W)
    ksin_room = scratch(CHUNK, W)
    qsin_room = scratch(CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = thin_scratch(W)
    zs_room = thin_scratch(W)
    deal_room = thin_scratch(CHUNK)
    bars = barriers(STAGES)
    late_bars = barriers(LATE)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at, _, _ = tile_at(chunks - 1 - i, TILES, start, begin, end, JOINED)
            mbarrier.expect(bars.index(i), 2 * TILE)
            fetch(q, qs.index(i), bars.index(i), batch, at, head)
            fetch(k, ks.index(i), bars.index(i), batch, at, key_head)
    for i in gl.static_range(LATE):
        if i < chunks:
            at, _, _ = tile_at(chunks - 1 - i, TILES, start, begin, end, JOINED)
            mbarrier.expect(late_bars.index(i), 2 * TILE)
            fetch(v, vs.index(i), late_bars.index(i), batch, at, key_head)
            fetch(g, gs.index(i), late_bars.index(i), batch, at, head)

    zc = gl.zeros([W, PARTS], gl.float32, SUMS)
    zs = zc
    if STARTED:
        if JOINED:
            slot = gl.where((chunks > 0) & (rest > CHUNK), slot, -1)
        index = (slot * HEADS + head).to(gl.int64)
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

    of_q = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_e = gl.arange(0, CHUNK, layout=of_rows(thin_lines(WARPS)))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    i = gl.arange(0, CHUNK, layout=of_columns(SQUARE))
    j = gl.arange(0, CHUNK, layout=of_rows(SQUARE))
    steps = 16 * (j[:, None] - i[None, :])
    no_square = gl.zeros([CHUNK, CHUNK], gl.float32, SQUARE)
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    ones = gl.full([CHUNK, PARTS], 1.0, gl.float32, left(RESULT)).to(gl.bfloat16)
    ones_a = gl.convert_layout(ones, left(SQUARE))
    vectors = (batch * HEADS + head).to(gl.int64) * tokens
    r = gl.load(INVERSE + vectors + token + of_q, mask=(of_q < rest) & (chunks > 0), other=0.0)
    e = gl.load(E + vectors + token + of_e, mask=(of_e < rest) & (chunks > 0), other=0.0)
    for t in range(chunks):
        stage = t % STAGES
        late = t % LATE
        n = chunks - 1 - t
        ahead, first_ahead, rest_ahead = tile_at(gl.maximum(n - 1, 0), TILES, start, begin, end, JOINED)
        token_next, _, _ = tile_at(gl.maximum(n - STAGES, 0), TILES, start, begin, end, JOINED)
        if not JOINED:
            token, first, rest = tile_at(n, TILES, start, begin, end, JOINED)
            follows: gl.constexpr = True
            goes_on: gl.constexpr = True
        else:
            follows = rest > CHUNK
            goes_on = first > 0
        zero = anew(t)
        k_s = ksin_room.index(zero)
        q_s = qsin_room.index(zero)
        s_c = sc_room.index(zero)
        s_s = ss_room.index(zero)
        z_c = zc_room.index(zero)
        z_s = zs_room.index(zero)
        dealt = deal_room.index(zero)
        if follows:
            s_c.store(sc.to(gl.bfloat16))
            s_s.store(ss.to(gl.bfloat16))
            z_c.store(zc.to(gl.bfloat16))
            z_s.store(zs.to(gl.bfloat16))
        cos, sin = phases(origin + first + of_q, theta)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        q_c = flat(qs.index(stage))
        k_c = flat(ks.index(stage))
        tile_v = flat(vs.index(late))
        tile_g = flat(gs.index(late))
        x = q_c.load(LINES)
        q_c.store(phased(x, cos * r))
        q_s.store(phased(x, sin * r))
        deal_out(e, dealt, WARPS)
        x = k_c.load(LINES)
        k_c.store(turned(x, cos))
        k_s.store(turned(x, sin))
        fence_async_shared()
        p = warpgroup_mma(k_c, q_c.permute((1, 0)), no_square, use_acc=False, is_async=True)
        p = warpgroup_mma(k_s, q_s.permute((1, 0)), p, is_async=True)
        mbarrier.wait(late_bars.index(late), (t // LATE) & 1)
        if PACKED and rest < CHUNK:
            blank(tile_g, of_q < rest, LINES)
            fence_async_shared()
        p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
        p = gl.convert_layout(above(p, steps), left(RESULT))
        y = no_result
        if follows:
            y = warpgroup_mma(k_c, s_c, no_result, use_acc=False, is_async=True)
            y = warpgroup_mma(k_s, s_s, y, is_async=True)
            if JOINED:
                y = warpgroup_mma_wait(num_outstanding=0, deps=[y])
        y = warpgroup_mma(p, tile_g, y, is_async=True)
        y, p = warpgroup_mma_wait(num_outstanding=0, deps=[y, p])
        if MASKED:
            keep = gl.load(MASK + batch.to(gl.int64) * mask_stride + first + of_y, mask=of_y < rest, other=0)
            y = hidden(y.to(gl.bfloat16), keep != 0)
        y = y.to(gl.bfloat16)
        tma.store_wait(0)
        sync()
        flat(out.index(0)).store(y)
        a = warpgroup_mma(tile_v, tile_g.permute((1, 0)), no_square, use_acc=False, is_async=True)
        a = warpgroup_mma(ones_a, dealt.permute((1, 0)), a, is_async=True)
        fence_async_shared()
        sync()
        if PACKED and rest < CHUNK:
            put(DV_ + head * DV, HEADS * DV, token, rest, flat(out.index(0)), DV, LINES)
        else:
            send(dv, out.index(0), batch, token, head)
        a = warpgroup_mma_wait(num_outstanding=0, deps=[a])
        a = gl.convert_layout(above(a, steps), left(RESULT))
        cos_y, sin_y = phases(origin + first + of_y, theta)
        if JOINED:
            x = warpgroup_mma(a, q_c, no_result, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            if follows:
                x = warpgroup_mma(tile_v, s_c.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(ones, z_c.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            x = x * (cos_y / sin_y)[:, None]
            if follows:
                x = warpgroup_mma(tile_v, s_s.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma(ones, z_s.permute((1, 0)), x, is_async=True)
                x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
        else:
            x = warpgroup_mma(tile_v, s_c.permute((1, 0)), no_result, use_acc=False, is_async=True)
            x = warpgroup_mma(ones, z_c.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(a, q_c, x, is_async=True)
            x = warpgroup_mma_wait(num_outstanding=0, deps=[x])
            x = x * (cos_y / sin_y)[:, None]
            x = warpgroup_mma(tile_v, s_s.permute((1, 0)), x, is_async=True)
            x = warpgroup_mma(ones, z_s.permute((1, 0)), x, is_async=True)
        x = warpgroup_mma(a, q_s, x, is_async=True)
        if JOINED:
            x, a = warpgroup_mma_wait(num_outstanding=0, deps=[x, a])
            if goes_on:
                # Described for themselves: what is made in a branch must not be used behind it.
                again = anew(rest)
                b_c = flat(qs.index(stage + again)).permute((1, 0))
                b_s = qsin_room.index(again).permute((1, 0))
                c = flat(gs.index(late + again))
                b_e = deal_room.index(again)
                sc = warpgroup_mma(b_c, c, sc, use_acc=follows, is_async=True)
                zc = warpgroup_mma(b_c, b_e, zc, use_acc=follows, is_async=True)
                ss = warpgroup_mma(b_s, c, ss, use_acc=follows, is_async=True)
                zs = warpgroup_mma(b_s, b_e, zs, use_acc=follows, is_async=True)
                sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[sc, ss, zc, zs])
        else:
            sc_next = warpgroup_mma(q_c.permute((1, 0)), tile_g, sc, is_async=True)
            zc_next = warpgroup_mma(q_c.permute((1, 0)), dealt, zc, is_async=True)
            ss_next = warpgroup_mma(q_s.permute((1, 0)), tile_g, ss, is_async=True)
            zs_next = warpgroup_mma(q_s.permute((1, 0)), dealt, zs, is_async=True)
            x, a = warpgroup_mma_wait(num_outstanding=4, deps=[x, a])
        y = where_positive(x * sin_y[:, None], k_c.load(RESULT))
        if MASKED:
            y = hidden(y, keep != 0)
        r = gl.load(INVERSE + vectors + ahead + of_q, mask=of_q < rest_ahead, other=0.0)
        e = gl.load(E + vectors + ahead + of_e, mask=of_e < rest_ahead, other=0.0)
        if not JOINED:
            sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[sc_next, ss_next, zc_next, zs_next])
        tma.store_wait(0)
        sync()
        flat(out.index(0)).store(y)
        fence_async_shared()
        sync()
        if PACKED and rest < CHUNK:
            put(DK + head * D, HEADS * D, token, rest, flat(out.index(0)), D, LINES)
        else:
            send(dk, out.index(0), batch, token, head)
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), 2 * TILE)
            fetch(q, qs.index(stage), bars.index(stage), batch, token_next, head)
            fetch(k, ks.index(stage), bars.index(stage), batch, token_next, key_head)
        if t + LATE < chunks:
            late_next, _, _ = tile_at(n - LATE, TILES, start, begin, end, JOINED)
            mbarrier.expect(late_bars.index(late), 2 * TILE)
            fetch(v, vs.index(late), late_bars.index(late), batch, late_next, key_head)
            fetch(g, gs.index(late), late_bars.index(late), batch, late_next, head)
        if JOINED:
            token, first, rest = ahead, first_ahead, rest_ahead
    tma.store_wait(0)
    if STORED:
        index = (slot * HEADS + head).to(gl.int64)
        at, inside = matrix(S_OUT + index * s_out_stride, D, DV, W, STATE)
        gl.store(at, sc, mask=inside)
        gl.store(at + D * DV, ss, mask=inside)
        feature = gl.arange(0, W, layout=of_rows(SUMS))
        at_z = Z_OUT + index * z_out_stride + feature
        gl.store(at_z, gl.sum(zc, axis=1), mask=feature < D)
        gl.store(at_z + D, gl.sum(zs, axis=1), mask=feature < D)
