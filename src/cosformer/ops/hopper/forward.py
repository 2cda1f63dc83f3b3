"""Causal attention: one walk along the sequence.

One block of 4 warps (8 where heads are wider than 64) takes one head of one piece of a row and goes
through it in chunks of 64 tokens. What lives where, for W = 64 (128 in brackets):

    registers       Sc, Ss [W, W] fp32: 64 a thread (128); the partial sums of z: 16
    shared memory   two stages of q, k, v as the copy engine left them; phi(k); S and z in bfloat16; o; with a
                    mask, v without what it hides (over v itself)
                    94 KiB, or 102, and two blocks a multiprocessor (222 KiB and one)

and for each chunk:

    1. S and z of the chunks before -> bfloat16 -> shared memory
    2. k -> phi(k) -> shared memory; q -> phi(q) -> registers, as first operands of products (with W = 128
       both are written over their own tiles: the registers are full)
    3. P = phi(q) phi(k)^T; rounded and masked, while S += phi(k)^T v runs
    4. o = (phi(q) S + P v) / d, d = phi(q) z + P 1
    5. o -> shared memory -> copy engine, while z is summed up (with W = 128, S too); the next q, k, v are
       asked for

Packed documents without states (JOINED) are one list of tiles (documents.py), and a walk goes from one
to the next: a document's first tile leaves out what S and z give (1, and half of 4).

Bytes: q, k, v read and o written once (the floor), and d, 3 % of a tensor. Measured on an H200 with 16
heads and 32 rows of 2,048 tokens: 0.142 ms, the kernel alone in a profile (floor 0.126); where W = 128, from
the record, 0.556 ms (floor 0.252). 1,000
documents of 65,536 tokens, 1.56 times as many tiles: 0.219 ms.
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

from cosformer.ops.hopper.denominators import PARTS, deal, in_parts, summed_in_parts, thin, thin_scratch
from cosformer.ops.hopper.documents import tile_at, way
from cosformer.ops.hopper.pairs import below, blank, hidden, phased, turned
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
    summed,
    sync,
)

RUNTIME = ["origin", "length", "pieces", "size", "theta", "eps", "tokens", "mask_stride", "s_stride",
           "z_stride", "s_out_stride", "z_out_stride", "states"]  # fmt: skip


@gluon.jit(do_not_specialize=RUNTIME)
def walk_o(
    q, k, v, o, O, DEN, MASK, POSITIONS, S, Z, S_OUT, Z_OUT, CU, DOCUMENT, FIRST, SLOT, TILES, origin,
    length, pieces, size, theta, eps, tokens, mask_stride, s_stride, z_stride, s_out_stride, z_out_stride,
    states, HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr,
    PACKED: gl.constexpr, JOINED: gl.constexpr, MASKED: gl.constexpr, CARRIED: gl.constexpr,
    STARTED: gl.constexpr, SUMMED: gl.constexpr, STORED: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """q, k, v, o as the copy engine sees them; O: o as memory. S, Z: what each piece starts from, or with
    SUMMED what so many `states` of each piece add to that; S_OUT, Z_OUT: the state after the last chunk."""
    SQUARE: gl.constexpr = product(CHUNK, CHUNK, WARPS)
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    STATE: gl.constexpr = product(W, W, WARPS)
    THIN: gl.constexpr = thin(CHUNK, WARPS)
    SUMS: gl.constexpr = thin(W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    IN_PLACE: gl.constexpr = W == 128
    BYTES: gl.constexpr = 3 * CHUNK * W * 2

    pid = gl.program_id(0)
    head = pid % HEADS
    key_head = head // GROUP
    row, batch, start, begin, end, slot, chunks = way(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
    )
    if CARRIED:
        origin += gl.load(POSITIONS + row, mask=chunks > 0, other=0)
    token, first, rest = tile_at(0, TILES, start, begin, end, JOINED)
    if MASKED:
        MASK += batch.to(gl.int64) * mask_stride

    qs = room(STAGES, CHUNK, W)
    ks = room(STAGES, CHUNK, W)
    vs = room(STAGES, CHUNK, W)
    out = room(1, CHUNK, W)
    if not IN_PLACE:
        kc_room = scratch(CHUNK, W)
        if MASKED:
            v_room = scratch(CHUNK, W)
    else:
        qsin_room = scratch(CHUNK, W)
    ksin_room = scratch(CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = thin_scratch(W)
    zs_room = thin_scratch(W)
    deal_room = deal(WARPS)
    bars = barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            at, _, _ = tile_at(i, TILES, start, begin, end, JOINED)
            mbarrier.expect(bars.index(i), BYTES)
            fetch(q, qs.index(i), bars.index(i), batch, at, head)
            fetch(k, ks.index(i), bars.index(i), batch, at, key_head)
            fetch(v, vs.index(i), bars.index(i), batch, at, key_head)

    zc = gl.zeros([W, PARTS], gl.float32, SUMS)
    zs = zc
    if STARTED:
        if JOINED:
            slot = gl.where((chunks > 0) & (first > 0), slot, -1)
        before = 0
        if SUMMED:
            before = begin // size
            slot = (slot - before) * states
            before *= states
        index = (slot * (HEADS // GROUP) + key_head).to(gl.int64)
        at, inside = matrix(S + index * s_stride, D, DV, W, STATE)
        inside = inside & (slot >= 0)
        if SUMMED:
            apart = (HEADS // GROUP) * s_stride.to(gl.int64)
            at_z = Z + index * z_stride
            sc = summed(at, inside, before, apart)
            ss = summed(at + D * DV, inside, before, apart)
            zc = summed_in_parts(at_z, before, apart, D, W, WARPS)
            zs = summed_in_parts(at_z + D, before, apart, D, W, WARPS)
        else:
            sc = gl.load(at, mask=inside, other=0.0)
            ss = gl.load(at + D * DV, mask=inside, other=0.0)
            if slot >= 0:
                zc = in_parts(Z + index * z_stride, D, W, WARPS)
                zs = in_parts(Z + index * z_stride + D, D, W, WARPS)
    else:
        sc = gl.zeros([W, W], gl.float32, STATE)
        ss = gl.zeros([W, W], gl.float32, STATE)

    of_q = gl.arange(0, CHUNK, layout=of_rows(left(SQUARE)))
    of_k = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_o = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    i = gl.arange(0, CHUNK, layout=of_rows(SQUARE))
    j = gl.arange(0, CHUNK, layout=of_columns(SQUARE))
    steps = 16 * (i[:, None] - j[None, :] + 1)
    no_square = gl.zeros([CHUNK, CHUNK], gl.float32, SQUARE)
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    no_parts = gl.zeros([CHUNK, PARTS], gl.float32, THIN)
    if MASKED:
        shown = gl.load(MASK + first + of_k, mask=of_k < rest, other=0)
    for t in range(chunks):
        stage = t % STAGES
        token_next, _, _ = tile_at(gl.minimum(t + STAGES, chunks - 1), TILES, start, begin, end, JOINED)
        if not JOINED:
            token, first, rest = tile_at(t, TILES, start, begin, end, JOINED)
            follows: gl.constexpr = True
        else:
            ahead, first_ahead, rest_ahead = tile_at(gl.minimum(t + 1, chunks - 1), TILES, 0, begin, 0, True)
            follows = first > 0
        zero = anew(t)
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
        cos, sin = phases(origin + first + of_k, theta)
        keep = of_k < rest
        if MASKED:
            keep = shown != 0
            shown = gl.load(MASK + first + CHUNK + of_k, mask=of_k < rest - CHUNK, other=0)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        tile_k = flat(ks.index(stage))
        tile_q = flat(qs.index(stage))
        tile_v = flat(vs.index(stage))
        x = tile_k.load(LINES)
        if MASKED or PACKED:
            phi_c = phased(x, gl.where(keep, cos, 0.0))
            phi_s = phased(x, gl.where(keep, sin, 0.0))
            if MASKED and not IN_PLACE:  # in place, all would have to wait for each other once more
                x = hidden(tile_v.load(LINES), keep)
                tile_v = v_room.index(zero)
                tile_v.store(x)
            elif MASKED or rest < CHUNK:
                blank(tile_v, keep, LINES)
        else:
            phi_c = turned(x, cos)
            phi_s = turned(x, sin)
        if IN_PLACE:
            k_c = tile_k
        else:
            k_c = kc_room.index(zero)
        k_s = ksin_room.index(zero)
        k_c.store(phi_c)
        k_s.store(phi_s)
        if IN_PLACE:
            y = tile_q.load(LINES)
            q_c = tile_q
            q_s = qsin_room.index(zero)
            q_c.store(turned(y, cos))
            q_s.store(turned(y, sin))
        else:
            y = tile_q.load(left(SQUARE))
            cos_q, sin_q = phases(origin + first + of_q, theta)
            q_c = turned(y, cos_q)
            q_s = turned(y, sin_q)
        fence_async_shared()
        p = warpgroup_mma(q_c, k_c.permute((1, 0)), no_square, use_acc=False, is_async=True)
        p = warpgroup_mma(q_s, k_s.permute((1, 0)), p, is_async=True)
        if IN_PLACE:
            p = warpgroup_mma_wait(num_outstanding=0, deps=[p])
        else:
            sc_next = warpgroup_mma(k_c.permute((1, 0)), tile_v, sc, use_acc=follows, is_async=True)
            ss_next = warpgroup_mma(k_s.permute((1, 0)), tile_v, ss, use_acc=follows, is_async=True)
            p = warpgroup_mma_wait(num_outstanding=2, deps=[p])
        p = below(p, steps)
        weights = gl.convert_layout(p, left(RESULT))
        shares = gl.convert_layout(p, left(THIN))
        acc = no_result
        parts = no_parts
        if follows:
            if IN_PLACE:
                acc = warpgroup_mma(q_c, s_c, no_result, use_acc=False, is_async=True)
                acc = warpgroup_mma(q_s, s_s, acc, is_async=True)
                parts = warpgroup_mma(q_c, z_c, no_parts, use_acc=False, is_async=True)
                parts = warpgroup_mma(q_s, z_s, parts, is_async=True)
            else:
                acc_c = gl.convert_layout(q_c, left(RESULT))
                acc_s = gl.convert_layout(q_s, left(RESULT))
                acc = warpgroup_mma(acc_c, s_c, no_result, use_acc=False, is_async=True)
                acc = warpgroup_mma(acc_s, s_s, acc, is_async=True)
                z_q = gl.convert_layout(q_c, left(THIN))
                z_r = gl.convert_layout(q_s, left(THIN))
                parts = warpgroup_mma(z_q, z_c, no_parts, use_acc=False, is_async=True)
                parts = warpgroup_mma(z_r, z_s, parts, is_async=True)
            if JOINED:
                acc, parts = warpgroup_mma_wait(num_outstanding=0, deps=[acc, parts])
        acc = warpgroup_mma(weights, tile_v, acc, is_async=True)
        parts = warpgroup_mma(shares, dealt, parts, is_async=True)
        if IN_PLACE:
            sc_next = warpgroup_mma(k_c.permute((1, 0)), tile_v, sc, use_acc=follows, is_async=True)
            ss_next = warpgroup_mma(k_s.permute((1, 0)), tile_v, ss, use_acc=follows, is_async=True)
        zc_next = warpgroup_mma(k_c.permute((1, 0)), dealt, zc, use_acc=follows, is_async=True)
        zs_next = warpgroup_mma(k_s.permute((1, 0)), dealt, zs, use_acc=follows, is_async=True)
        if IN_PLACE:
            acc, parts, weights, shares = warpgroup_mma_wait(
                num_outstanding=4, deps=[acc, parts, weights, shares]
            )
        else:
            acc, parts, weights, shares, q_c, q_s = warpgroup_mma_wait(
                num_outstanding=2, deps=[acc, parts, weights, shares, q_c, q_s]
            )
        d = gl.convert_layout(gl.sum(parts, axis=1), of_rows(RESULT))
        result = (acc * (1.0 / gl.maximum(d, eps))[:, None]).to(gl.bfloat16)
        tma.store_wait(0)
        sync()
        flat(out.index(0)).store(result)
        sc, ss, zc, zs = warpgroup_mma_wait(num_outstanding=0, deps=[sc_next, ss_next, zc_next, zs_next])
        fence_async_shared()
        sync()
        if PACKED and rest < CHUNK:
            put(O + head * DV, HEADS * DV, token, rest, flat(out.index(0)), DV, LINES)
        else:
            send(o, out.index(0), batch, token, head)
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), BYTES)
            fetch(q, qs.index(stage), bars.index(stage), batch, token_next, head)
            fetch(k, ks.index(stage), bars.index(stage), batch, token_next, key_head)
            fetch(v, vs.index(stage), bars.index(stage), batch, token_next, key_head)
        at_d = DEN + (batch * HEADS + head).to(gl.int64) * tokens + token + of_o
        gl.store(at_d, d, mask=of_o < rest)
        if JOINED:
            token, first, rest = ahead, first_ahead, rest_ahead
    tma.store_wait(0)
    if STORED:
        index = (slot * (HEADS // GROUP) + key_head).to(gl.int64)
        at, inside = matrix(S_OUT + index * s_out_stride, D, DV, W, STATE)
        gl.store(at, sc, mask=inside)
        gl.store(at + D * DV, ss, mask=inside)
        feature = gl.arange(0, W, layout=of_rows(SUMS))
        at_z = Z_OUT + index * z_out_stride + feature
        gl.store(at_z, gl.sum(zc, axis=1), mask=feature < D)
        gl.store(at_z + D, gl.sum(zs, axis=1), mask=feature < D)
