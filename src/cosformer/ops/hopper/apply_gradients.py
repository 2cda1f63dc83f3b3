"""The gradients of bidirectional and cross attention: rows against finished states, which stay in shared
memory.

    apply_dq    q, g, o -> dq = r (cos X + sin Y) where q > 0, X = g Sc^T + e (x) zc, Y likewise with sines;
                and, since q and g are there, the state R = sum phi(r q') g^T of each piece
    apply_dkv   k, v -> dv = phi(k) R, dk = cos X + sin Y where k > 0, X = v Rc^T + 1 (x) zc, Y likewise

with z, beside R, weighted by e. One block takes one head of one piece of a row.

Bytes: 4 tensors each, 8 in all: the floor. Measured as in forward.py: 0.158 and 0.147 ms (floors 0.126);
together 0.80 ms where W = 128 (0.505).
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

from cosformer.ops.hopper.apply import settle
from cosformer.ops.hopper.denominators import PARTS, deal_out, thin, thin_lines, thin_scratch
from cosformer.ops.hopper.documents import part_of
from cosformer.ops.hopper.pairs import blank, hidden, phased, turned, where_positive
from cosformer.ops.hopper.states import store_state
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

RUNTIME = ["origin", "length", "pieces", "size", "theta", "eps", "tokens", "mask_stride", "s_stride",
           "z_stride"]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def apply_dq(
    q, o, g, dq, DQ, DEN, POSITIONS, S, Z, STATES, CU, DOCUMENT, FIRST, SLOT, TILES, origin, length, pieces,
    size, theta, eps, tokens, s_stride, z_stride, HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr,
    DV: gl.constexpr, W: gl.constexpr, PACKED: gl.constexpr, JOINED: gl.constexpr, CARRIED: gl.constexpr,
    STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """STATES [slots, GROUP, key heads, 2 D (Dv + 1)]: R of each piece and head."""
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    STATE: gl.constexpr = product(W, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    BYTES: gl.constexpr = 3 * CHUNK * W * 2
    pid = gl.program_id(0)
    head = pid % HEADS
    row, batch, start, begin, end, slot = part_of(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
    )
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    qs = room(STAGES, CHUNK, W)
    gs = room(STAGES, CHUNK, W)
    os = room(STAGES, CHUNK, W)
    out = room(1, CHUNK, W)
    qcos_room = scratch(CHUNK, W)
    qsin_room = scratch(CHUNK, W)
    deal_room = thin_scratch(CHUNK)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = scratch(PARTS, W)
    zs_room = scratch(PARTS, W)
    bars = barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            token = start + begin + i * CHUNK
            mbarrier.expect(bars.index(i), BYTES)
            fetch(q, qs.index(i), bars.index(i), batch, token, head)
            fetch(g, gs.index(i), bars.index(i), batch, token, head)
            fetch(o, os.index(i), bars.index(i), batch, token, head)
    if chunks > 0:
        if CARRIED:
            origin += gl.load(POSITIONS + row).to(gl.int32)
        settle(S, Z, row * (HEADS // GROUP) + head // GROUP, s_stride, z_stride, sc_room, ss_room, zc_room,
               zs_room, 1, D, DV, W, LINES)  # fmt: skip
    rc = gl.zeros([W, W], gl.float32, STATE)
    rs = gl.zeros([W, W], gl.float32, STATE)
    zc = gl.zeros([W, PARTS], gl.float32, thin(W, WARPS))
    zs = zc
    of_q = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    vectors = (batch * HEADS + head).to(gl.int64) * tokens + start
    d = gl.load(DEN + vectors + begin + of_q, mask=begin + of_q < end, other=1.0)
    for t in range(chunks):
        stage = t % STAGES
        first = begin + t * CHUNK
        token = start + first
        zero = anew(t)
        q_c = qcos_room.index(zero)
        q_s = qsin_room.index(zero)
        dealt = deal_room.index(zero)
        s_c = sc_room.index(zero)
        s_s = ss_room.index(zero)
        z_c = zc_room.index(zero)
        z_s = zs_room.index(zero)
        inside = first + of_q < end
        cos, sin = phases(origin + first + of_q, theta)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_q = flat(qs.index(stage))
        tile_g = flat(gs.index(stage))
        if PACKED and first + CHUNK > end:
            blank(tile_g, inside, LINES)
        grad = tile_g.load(LINES).to(gl.float32)
        used = gl.sum(gl.abs(grad), axis=1) != 0.0
        e = -gl.sum(grad * flat(os.index(stage)).load(LINES).to(gl.float32), axis=1)
        e = gl.where(used & (d >= eps), e, 0.0)
        bound = gl.where(d < eps, eps, d)
        r = gl.where(used, 1.0 / bound, 0.0)
        x = tile_q.load(LINES)
        q_c.store(phased(x, cos * r))
        q_s.store(phased(x, sin * r))
        deal_out(gl.convert_layout(e, of_rows(thin_lines(WARPS))), dealt, WARPS)
        fence_async_shared()
        x = warpgroup_mma(tile_g, s_c.permute((1, 0)), no_result, use_acc=False, is_async=True)
        x = warpgroup_mma(dealt, z_c, x, is_async=True)
        y = warpgroup_mma(tile_g, s_s.permute((1, 0)), no_result, use_acc=False, is_async=True)
        y = warpgroup_mma(dealt, z_s, y, is_async=True)
        rc_next = warpgroup_mma(q_c.permute((1, 0)), tile_g, rc, is_async=True)
        zc_next = warpgroup_mma(q_c.permute((1, 0)), dealt, zc, is_async=True)
        rs_next = warpgroup_mma(q_s.permute((1, 0)), tile_g, rs, is_async=True)
        zs_next = warpgroup_mma(q_s.permute((1, 0)), dealt, zs, is_async=True)
        x, y = warpgroup_mma_wait(num_outstanding=4, deps=[x, y])
        cos_y, sin_y = phases(origin + first + of_y, theta)
        r_y = gl.convert_layout(r, of_rows(RESULT))
        y = x * (cos_y * r_y)[:, None] + y * (sin_y * r_y)[:, None]
        y = where_positive(y, tile_q.load(RESULT))
        d = gl.load(DEN + vectors + first + CHUNK + of_q, mask=first + CHUNK + of_q < end, other=1.0)
        rc, rs, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[rc_next, rs_next, zc_next, zs_next])
        tma.store_wait(0)
        sync()
        flat(out.index(0)).store(y)
        fence_async_shared()
        sync()
        if PACKED and first + CHUNK > end:
            put(DQ + head * D, HEADS * D, token, end - first, flat(out.index(0)), D, LINES)
        else:
            send(dq, out.index(0), batch, token, head)
        if t + STAGES < chunks:
            token_next = token + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), BYTES)
            fetch(q, qs.index(stage), bars.index(stage), batch, token_next, head)
            fetch(g, gs.index(stage), bars.index(stage), batch, token_next, head)
            fetch(o, os.index(stage), bars.index(stage), batch, token_next, head)
    KEY_HEADS: gl.constexpr = HEADS // GROUP
    index = gl.where(slot >= 0, (slot * GROUP + head % GROUP) * KEY_HEADS + head // GROUP, -1)
    store_state(STATES, index, rc, rs, zc, zs, D, DV, W, WARPS)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=RUNTIME)
def apply_dkv(
    k, v, dk, dv, DK, DV_, MASK, POSITIONS, S, Z, CU, DOCUMENT, FIRST, SLOT, TILES, origin, length, pieces,
    size, theta, mask_stride, s_stride, z_stride, HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr,
    W: gl.constexpr, PACKED: gl.constexpr, JOINED: gl.constexpr, MASKED: gl.constexpr,
    CARRIED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """HEADS: key heads."""
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    BYTES: gl.constexpr = 2 * CHUNK * W * 2
    pid = gl.program_id(0)
    head = pid % HEADS
    row, batch, start, begin, end, _ = part_of(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
    )
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    ks = room(STAGES, CHUNK, W)
    vs = room(STAGES, CHUNK, W)
    out = room(2, CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = scratch(PARTS, W)
    zs_room = scratch(PARTS, W)
    bars = barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            mbarrier.expect(bars.index(i), BYTES)
            fetch(k, ks.index(i), bars.index(i), batch, start + begin + i * CHUNK, head)
            fetch(v, vs.index(i), bars.index(i), batch, start + begin + i * CHUNK, head)
    if chunks > 0:
        if CARRIED:
            origin += gl.load(POSITIONS + row).to(gl.int32)
        settle(S, Z, row * HEADS + head, s_stride, z_stride, sc_room, ss_room, zc_room, zs_room, PARTS, D, DV,
               W, LINES)  # fmt: skip
    of_k = gl.arange(0, CHUNK, layout=of_rows(left(RESULT)))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    ones = gl.full([CHUNK, PARTS], 1.0, gl.float32, left(RESULT)).to(gl.bfloat16)
    for t in range(chunks):
        stage = t % STAGES
        first = begin + t * CHUNK
        token = start + first
        zero = anew(t)
        s_c = sc_room.index(zero)
        s_s = ss_room.index(zero)
        z_c = zc_room.index(zero)
        z_s = zs_room.index(zero)
        cos, sin = phases(origin + first + of_k, theta)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_k = flat(ks.index(stage))
        tile_v = flat(vs.index(stage))
        x = warpgroup_mma(tile_v, s_c.permute((1, 0)), no_result, use_acc=False, is_async=True)
        x = warpgroup_mma(ones, z_c, x, is_async=True)
        y = warpgroup_mma(tile_v, s_s.permute((1, 0)), no_result, use_acc=False, is_async=True)
        y = warpgroup_mma(ones, z_s, y, is_async=True)
        k_tile = tile_k.load(left(RESULT))
        k_c = turned(k_tile, cos)
        k_s = turned(k_tile, sin)
        w = warpgroup_mma(k_c, s_c, no_result, use_acc=False, is_async=True)
        w = warpgroup_mma(k_s, s_s, w, is_async=True)
        x, y = warpgroup_mma_wait(num_outstanding=2, deps=[x, y])
        cos_y, sin_y = phases(origin + first + of_y, theta)
        y = x * cos_y[:, None] + y * sin_y[:, None]
        y = where_positive(y, tile_k.load(RESULT))
        if MASKED:
            keep = gl.load(
                MASK + batch.to(gl.int64) * mask_stride + first + of_y, mask=first + of_y < end, other=0
            )
            y = hidden(y, keep != 0)
        tma.store_wait(0)
        sync()
        flat(out.index(0)).store(y)
        w, k_c, k_s = warpgroup_mma_wait(num_outstanding=0, deps=[w, k_c, k_s])
        if MASKED:
            flat(out.index(1)).store(hidden(w.to(gl.bfloat16), keep != 0))
        else:
            flat(out.index(1)).store(w.to(gl.bfloat16))
        fence_async_shared()
        sync()
        if PACKED and first + CHUNK > end:
            put(DK + head * D, HEADS * D, token, end - first, flat(out.index(0)), D, LINES)
            put(DV_ + head * DV, HEADS * DV, token, end - first, flat(out.index(1)), DV, LINES)
        else:
            send(dk, out.index(0), batch, token, head)
            send(dv, out.index(1), batch, token, head)
        if t + STAGES < chunks:
            token_next = token + STAGES * CHUNK
            mbarrier.expect(bars.index(stage), BYTES)
            fetch(k, ks.index(stage), bars.index(stage), batch, token_next, head)
            fetch(v, vs.index(stage), bars.index(stage), batch, token_next, head)
    tma.store_wait(0)
