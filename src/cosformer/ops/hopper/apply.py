"""Bidirectional and cross attention: queries against a finished state, which stays in shared memory.

    [o d, d] = phi(q) [S, z]

One block takes one head of one piece of a row.

Bytes: q read, o written; with the pass that sums up S (states.py, 2 tensors) 4 tensors, the floor. Measured
as in forward.py: 0.078 ms (floor of these tensors 0.063); W = 128 as in states.py.
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

from cosformer.ops.hopper.denominators import PARTS, spread, summed_and_spread
from cosformer.ops.hopper.documents import part_of
from cosformer.ops.hopper.pairs import turned
from cosformer.ops.hopper.tiles import (
    CHUNK,
    anew,
    barriers,
    fetch,
    flat,
    left,
    lines,
    matrix,
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

RUNTIME = ["origin", "length", "pieces", "size", "theta", "eps", "tokens", "s_stride", "z_stride",
           "states"]  # fmt: skip


@gluon.jit
def settle_sum(S, Z, count, apart, sc_room, ss_room, zc_room, zs_room, D: gl.constexpr, DV: gl.constexpr,
               W: gl.constexpr, LINES: gl.constexpr):  # fmt: skip
    """As `settle`, of the sum of `count` states that lie so many numbers apart."""
    at, inside = matrix(S, D, DV, W, LINES)
    sc_room.index(0).store(summed(at, inside, count, apart).to(gl.bfloat16))
    ss_room.index(0).store(summed(at + D * DV, inside, count, apart).to(gl.bfloat16))
    zc_room.index(0).store(summed_and_spread(Z, count, apart, PARTS, D, W, LINES).to(gl.bfloat16))
    zs_room.index(0).store(summed_and_spread(Z + D, count, apart, PARTS, D, W, LINES).to(gl.bfloat16))
    fence_async_shared()


@gluon.jit
def settle(S, Z, index, s_stride, z_stride, sc_room, ss_room, zc_room, zs_room, SHARES: gl.constexpr,
           D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, LINES: gl.constexpr):  # fmt: skip
    """A state from memory into shared memory, in bfloat16; z as PARTS equal rows, of which SHARES
    add up to z."""
    index = index.to(gl.int64)
    at, inside = matrix(S + index * s_stride, D, DV, W, LINES)
    sc_room.index(0).store(gl.load(at, mask=inside, other=0.0).to(gl.bfloat16))
    ss_room.index(0).store(gl.load(at + D * DV, mask=inside, other=0.0).to(gl.bfloat16))
    zc_room.index(0).store(spread(Z + index * z_stride, PARTS, SHARES, D, W, LINES).to(gl.bfloat16))
    zs_room.index(0).store(spread(Z + index * z_stride + D, PARTS, SHARES, D, W, LINES).to(gl.bfloat16))
    fence_async_shared()


@gluon.jit(do_not_specialize=RUNTIME)
def apply_o(
    q, o, O, DEN, POSITIONS, S, Z, CU, DOCUMENT, FIRST, SLOT, TILES, origin, length, pieces, size, theta,
    eps, tokens, s_stride, z_stride, states, HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr,
    DV: gl.constexpr, W: gl.constexpr, PACKED: gl.constexpr, JOINED: gl.constexpr, CARRIED: gl.constexpr,
    SUMMED: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """SUMMED: a row has so many `states`, whose sum is applied."""
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    NARROW: gl.constexpr = product(CHUNK, PARTS, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    BYTES: gl.constexpr = CHUNK * W * 2
    pid = gl.program_id(0)
    head = pid % HEADS
    row, batch, start, begin, end, _ = part_of(
        pid // HEADS, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED, JOINED
    )
    chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    qs = room(STAGES, CHUNK, W)
    out = room(2, CHUNK, W)
    sc_room = scratch(W, W)
    ss_room = scratch(W, W)
    zc_room = scratch(PARTS, W)
    zs_room = scratch(PARTS, W)
    bars = barriers(STAGES)
    for i in gl.static_range(STAGES):
        if i < chunks:
            mbarrier.expect(bars.index(i), BYTES)
            fetch(q, qs.index(i), bars.index(i), batch, start + begin + i * CHUNK, head)
    if chunks > 0:
        if CARRIED:
            origin += gl.load(POSITIONS + row).to(gl.int32)
        if SUMMED:
            apart = (HEADS // GROUP) * s_stride.to(gl.int64)
            first_state = row * states * apart + head // GROUP * s_stride
            settle_sum(S + first_state, Z + first_state, states, apart, sc_room, ss_room, zc_room, zs_room, D,
                       DV, W, LINES)  # fmt: skip
        else:
            settle(S, Z, row * (HEADS // GROUP) + head // GROUP, s_stride, z_stride, sc_room, ss_room,
                   zc_room, zs_room, PARTS, D, DV, W, LINES)  # fmt: skip
    of_q = gl.arange(0, CHUNK, layout=of_rows(left(RESULT)))
    of_o = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    no_parts = gl.zeros([CHUNK, PARTS], gl.float32, NARROW)
    for t in range(chunks):
        stage = t % STAGES
        first = begin + t * CHUNK
        token = start + first
        zero = anew(t)
        s_c = sc_room.index(zero)
        s_s = ss_room.index(zero)
        z_c = zc_room.index(zero)
        z_s = zs_room.index(zero)
        cos, sin = phases(origin + first + of_q, theta)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        x = flat(qs.index(stage)).load(left(RESULT))
        q_c = turned(x, cos)
        q_s = turned(x, sin)
        acc = warpgroup_mma(q_c, s_c, no_result, use_acc=False, is_async=True)
        acc = warpgroup_mma(q_s, s_s, acc, is_async=True)
        n_c = gl.convert_layout(q_c, left(NARROW))
        n_s = gl.convert_layout(q_s, left(NARROW))
        parts = warpgroup_mma(n_c, z_c.permute((1, 0)), no_parts, use_acc=False, is_async=True)
        parts = warpgroup_mma(n_s, z_s.permute((1, 0)), parts, is_async=True)
        acc, parts, q_c, q_s = warpgroup_mma_wait(num_outstanding=0, deps=[acc, parts, q_c, q_s])
        d = gl.convert_layout(gl.sum(parts, axis=1), of_rows(RESULT))
        result = (acc * (1.0 / gl.maximum(d, eps))[:, None]).to(gl.bfloat16)
        tma.store_wait(1)
        sync()
        if t + STAGES < chunks:
            mbarrier.expect(bars.index(stage), BYTES)
            fetch(q, qs.index(stage), bars.index(stage), batch, token + STAGES * CHUNK, head)
        flat(out.index(t % 2)).store(result)
        fence_async_shared()
        sync()
        if PACKED and first + CHUNK > end:
            put(O + head * DV, HEADS * DV, token, end - first, flat(out.index(t % 2)), DV, LINES)
        else:
            send(o, out.index(t % 2), batch, token, head)
        at_d = DEN + (batch * HEADS + head).to(gl.int64) * tokens + token + of_o
        gl.store(at_d, d, mask=first + of_o < end)
    tma.store_wait(0)
