"""Bidirectional attention of packed documents of at most one tile, and its gradients: squares, no states.

    P = phi(q) phi(k)^T           o = P v / d, d the sums of P along its rows
    A = g v^T + e (along rows)    dq = r phi(1)^T A phi(k) where q > 0
    and their like of keys:       dk = phi(1)^T A^T phi(r q) where k > 0,    dv = phi(k) phi(r q)^T g

with r and e as in apply_gradients.py, and P, A zero between tokens of two documents: neighbours that fit into
a tile share it (`count_tiles` of documents.py). Zero times NaN would carry what one of them holds to the
others: a block that meets such a thing has the next start (`again`) do all documents alone.

A block takes one head and goes from tile to tile, the next one on its way meanwhile. One step does all of it,
where a state takes two, or three backward. phi goes over what it was made of and over what is done with (the
sines of k over q), and so do results.

Few tiles are full, so none of the results goes out by the copy engine. Bytes: 4 tensors forward, 8
backward, the floor, though of each tile all rows are read. 50 KiB of shared memory and four blocks a
multiprocessor; backward 96 KiB and two. Twice that and half as many where W = 128. Measured as in whole.py,
for the quarter of all tokens that is left there: 0.053 ms, backward 0.135.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.hopper.denominators import PARTS, deal, thin
from cosformer.ops.hopper.pairs import between, blank, hidden, masked, turned, where_positive
from cosformer.ops.hopper.tiles import (
    CHUNK,
    anew,
    barriers,
    fetch,
    flat,
    left,
    lines,
    of_columns,
    of_rows,
    phases,
    product,
    put,
    room,
    runs,
    scratch,
    sync,
)

RUNTIME = ["documents", "again", "theta", "eps", "tokens"]


@gluon.jit
def group_at(GROUPS, i, count):
    """Its first token, and how many it has; none beyond the last one."""
    there = i < count
    token = gl.load(GROUPS + 2 * i, mask=there, other=0)
    return token, gl.load(GROUPS + 2 * i + 1, mask=there, other=0)


@gluon.jit
def place(BOUNDS, token, rows, length, theta):
    """cos and sin for how many tokens of its document lie before each row."""
    begin = gl.load(BOUNDS + 2 * (token + rows), mask=rows < length, other=token)
    return phases(token + rows - begin, theta)


@gluon.jit
def neighbours(BOUNDS, token, length, LAYOUT: gl.constexpr):
    """The bits of pairs of tokens in the same document."""
    rows = gl.arange(0, CHUNK, layout=of_rows(LAYOUT))
    at = BOUNDS + 2 * (token + rows)
    begin = gl.load(at, mask=rows < length, other=token)
    end = gl.load(at + 1, mask=rows < length, other=token)
    return between(begin - token, end - token, LAYOUT)


@gluon.jit
def alone_if(doubts, GROUPS, documents, again):
    """All documents alone by the next start, if something was not finite."""
    if (again == 0) & (gl.sum(doubts) != 0.0):
        ALONE = GROUPS + 4 * documents + 2
        gl.store(ALONE, gl.load(ALONE + 1))


@gluon.jit
def bring_three(q, k, v, qs, ks, vs, bar, token, head):
    mbarrier.expect(bar, 3 * CHUNK * qs.shape[3] * 2)
    fetch(q, qs, bar, 0, token, head)
    fetch(k, ks, bar, 0, token, head)
    fetch(v, vs, bar, 0, token, head)


@gluon.jit(do_not_specialize=RUNTIME)
def square_o(
    q, k, v, O, DEN, GROUPS, BOUNDS, documents, again, theta, eps, tokens, HEADS: gl.constexpr,
    DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """GROUPS [2, documents + 1, 2]: of the documents in a tile first token and length, and behind all rows
    the number of tiles; `again`, of each document alone. BOUNDS [tokens, 2]: where the document of
    each token begins and ends."""
    SQUARE: gl.constexpr = product(CHUNK, CHUNK, WARPS)
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    NARROW: gl.constexpr = thin(CHUNK, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    SOME: gl.constexpr = runs(W, WARPS)
    head = gl.program_id(0) % HEADS
    i = gl.program_id(0) // HEADS
    step = gl.num_programs(0) // HEADS
    GROUPS += 2 * again * (documents + 1)
    count = gl.load(GROUPS + 2 * documents)
    qs = room(STAGES, CHUNK, W)
    ks = room(STAGES, CHUNK, W)
    vs = room(STAGES, CHUNK, W)
    deal_room = deal(WARPS)
    bars = barriers(STAGES)
    for n in gl.static_range(STAGES):
        if i + n * step < count:
            at, _ = group_at(GROUPS, i + n * step, count)
            bring_three(q, k, v, qs.index(n), ks.index(n), vs.index(n), bars.index(n), at, head)
    of_q = gl.arange(0, CHUNK, layout=of_rows(left(SQUARE)))
    of_k = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_o = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_parts = gl.zeros([CHUNK, PARTS], gl.float32, NARROW)
    no_square = gl.zeros([CHUNK, CHUNK], gl.float32, SQUARE)
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    doubts = gl.zeros([SOME], gl.float32, of_rows(LINES))
    token, length = group_at(GROUPS, i, count)
    turns = gl.maximum(count - i + step - 1, 0) // step
    for t in range(turns):
        zero = anew(t)
        stage = (t + zero) % STAGES
        tile_q = flat(qs.index(stage))
        tile_k = flat(ks.index(stage))
        tile_v = flat(vs.index(stage))
        ahead, length_ahead = group_at(GROUPS, i + (t + 1) * step, count)
        at, _ = group_at(GROUPS, i + (t + STAGES) * step, count)
        keep = of_k < length
        cos_q, sin_q = place(BOUNDS, token, of_q, length, theta)
        cos_k, sin_k = place(BOUNDS, token, of_k, length, theta)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        x = tile_q.load(left(SQUARE))
        q_c = turned(x, cos_q)
        q_s = turned(x, sin_q)
        if length < CHUNK:
            blank(tile_v, keep, LINES)
        x = hidden(tile_k.load(LINES), keep)
        sync()
        tile_k.store(turned(x, cos_k))
        tile_q.store(turned(x, sin_k))
        fence_async_shared()
        p = warpgroup_mma(q_c, tile_k.permute((1, 0)), no_square, use_acc=False, is_async=True)
        p = warpgroup_mma(q_s, tile_q.permute((1, 0)), p, is_async=True)
        same = neighbours(BOUNDS, token, length, SQUARE)
        p, q_c, q_s = warpgroup_mma_wait(num_outstanding=0, deps=[p, q_c, q_s])
        p = masked(p, same)
        weights = gl.convert_layout(p, left(RESULT))
        shares = gl.convert_layout(p, left(NARROW))
        y = warpgroup_mma(weights, tile_v, no_result, use_acc=False, is_async=True)
        parts = warpgroup_mma(shares, deal_room.index(zero), no_parts, use_acc=False, is_async=True)
        y, parts, weights, shares = warpgroup_mma_wait(num_outstanding=0, deps=[y, parts, weights, shares])
        d = gl.convert_layout(gl.sum(parts, axis=1), of_rows(RESULT))
        y = (y * (1.0 / gl.maximum(d, eps))[:, None]).to(gl.bfloat16)
        sync()
        tile_k.store(y)
        sync()
        # Zero times what is not finite in v is NaN in every row: a few rows tell.
        doubts += gl.sum(tile_k.slice(0, SOME).load(LINES).to(gl.float32), axis=1) * 0.0
        put(O + head * DV, HEADS * DV, token, length, tile_k, DV, LINES)
        gl.store(DEN + head.to(gl.int64) * tokens + token + of_o, d, mask=of_o < length)
        fence_async_shared()
        sync()
        if t + STAGES < turns:
            bring_three(q, k, v, qs.index(stage), ks.index(stage), vs.index(stage), bars.index(stage), at,
                        head)  # fmt: skip
        token, length = ahead, length_ahead
    alone_if(doubts, GROUPS, documents, again)


@gluon.jit
def bring_all(q, k, v, o, g, qs, ks, vs, os, gs, bar, token, head):
    mbarrier.expect(bar, 5 * CHUNK * qs.shape[3] * 2)
    fetch(q, qs, bar, 0, token, head)
    fetch(k, ks, bar, 0, token, head)
    fetch(v, vs, bar, 0, token, head)
    fetch(o, os, bar, 0, token, head)
    fetch(g, gs, bar, 0, token, head)


@gluon.jit(do_not_specialize=RUNTIME)
def square_gradients(
    q, k, v, o, g, DQ, DK, DV_, DEN, GROUPS, BOUNDS, documents, again, theta, eps, tokens,
    HEADS: gl.constexpr, D: gl.constexpr, DV: gl.constexpr, W: gl.constexpr, STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """As many query heads as key heads."""
    SQUARE: gl.constexpr = product(CHUNK, CHUNK, WARPS)
    RESULT: gl.constexpr = product(CHUNK, W, WARPS)
    LINES: gl.constexpr = lines(W, WARPS)
    head = gl.program_id(0) % HEADS
    i = gl.program_id(0) // HEADS
    step = gl.num_programs(0) // HEADS
    GROUPS += 2 * again * (documents + 1)
    count = gl.load(GROUPS + 2 * documents)
    qs = room(STAGES, CHUNK, W)
    ks = room(STAGES, CHUNK, W)
    vs = room(STAGES, CHUNK, W)
    os = room(STAGES, CHUNK, W)
    gs = room(STAGES, CHUNK, W)
    qsin_room = scratch(CHUNK, W)
    ksin_room = scratch(CHUNK, W)
    bars = barriers(STAGES)
    for n in gl.static_range(STAGES):
        if i + n * step < count:
            at, _ = group_at(GROUPS, i + n * step, count)
            bring_all(q, k, v, o, g, qs.index(n), ks.index(n), vs.index(n), os.index(n), gs.index(n),
                      bars.index(n), at, head)  # fmt: skip
    of_q = gl.arange(0, CHUNK, layout=of_rows(LINES))
    of_y = gl.arange(0, CHUNK, layout=of_rows(RESULT))
    no_square = gl.zeros([CHUNK, CHUNK], gl.float32, SQUARE)
    no_result = gl.zeros([CHUNK, W], gl.float32, RESULT)
    DEN += head.to(gl.int64) * tokens
    doubts = gl.zeros([CHUNK], gl.float32, of_rows(LINES))
    token, length = group_at(GROUPS, i, count)
    d = gl.load(DEN + token + of_q, mask=of_q < length, other=1.0)
    turns = gl.maximum(count - i + step - 1, 0) // step
    for t in range(turns):
        zero = anew(t)
        stage = (t + zero) % STAGES
        q_c = flat(qs.index(stage))
        k_c = flat(ks.index(stage))
        tile_v = flat(vs.index(stage))
        tile_o = flat(os.index(stage))
        tile_g = flat(gs.index(stage))
        q_s = qsin_room.index(zero)
        k_s = ksin_room.index(zero)
        ahead, length_ahead = group_at(GROUPS, i + (t + 1) * step, count)
        at, _ = group_at(GROUPS, i + (t + STAGES) * step, count)
        keep = of_q < length
        cos, sin = place(BOUNDS, token, of_q, length, theta)
        mbarrier.wait(bars.index(stage), (t // STAGES) & 1)
        if length < CHUNK:
            blank(tile_g, keep, LINES)
        grad = tile_g.load(LINES).to(gl.float32)
        used = gl.sum(gl.abs(grad), axis=1) != 0.0
        e = -gl.sum(grad * tile_o.load(LINES).to(gl.float32), axis=1)
        # d is not finite where q or k is not, nor e where g is not. (Not found: a finite q beyond 3e32 in a
        # document without any weight, for r is 1 / eps there.)
        doubts += gl.where(keep, e + d, 0.0) * 0.0
        e = gl.where(used & (d >= eps), e, 0.0)
        r = gl.where(used, 1.0 / gl.where(d < eps, eps, d), 0.0)
        x = hidden(q_c.load(LINES), used)
        q_c.store(turned(x, cos * r))
        q_s.store(turned(x, sin * r))
        x = hidden(k_c.load(LINES), keep)
        k_c.store(turned(x, cos))
        k_s.store(turned(x, sin))
        fence_async_shared()
        a = warpgroup_mma(tile_g, tile_v.permute((1, 0)), no_square, use_acc=False, is_async=True)
        b = warpgroup_mma(tile_v, tile_g.permute((1, 0)), no_square, use_acc=False, is_async=True)
        p = warpgroup_mma(k_c, q_c.permute((1, 0)), no_square, use_acc=False, is_async=True)
        p = warpgroup_mma(k_s, q_s.permute((1, 0)), p, is_async=True)
        e_rows = gl.convert_layout(e, of_rows(SQUARE))
        e_columns = gl.convert_layout(e, of_columns(SQUARE))
        r_y = gl.convert_layout(r, of_rows(RESULT))
        cos_y, sin_y = place(BOUNDS, token, of_y, length, theta)
        same = neighbours(BOUNDS, token, length, SQUARE)
        a, b, p = warpgroup_mma_wait(num_outstanding=0, deps=[a, b, p])
        # v beyond the last document may be NaN: the bits of it are taken away.
        a = gl.convert_layout(masked(a + e_rows[:, None], same), left(RESULT))
        x = warpgroup_mma(a, k_c, no_result, use_acc=False, is_async=True)
        y = warpgroup_mma(a, k_s, no_result, use_acc=False, is_async=True)
        p = gl.convert_layout(masked(p, same), left(RESULT))
        b = gl.convert_layout(masked(b + e_columns[None, :], same), left(RESULT))
        x, y, a = warpgroup_mma_wait(num_outstanding=0, deps=[x, y, a])
        w = warpgroup_mma(p, tile_g, no_result, use_acc=False, is_async=True)
        # phi(r q) is positive where q is, NaN where r is, or r is zero.
        x = x * (cos_y * r_y)[:, None] + y * (sin_y * r_y)[:, None]
        tile_o.store(where_positive(x, q_c.load(RESULT)))
        w, p = warpgroup_mma_wait(num_outstanding=0, deps=[w, p])
        sync()
        x = warpgroup_mma(b, q_c, no_result, use_acc=False, is_async=True)
        y = warpgroup_mma(b, q_s, no_result, use_acc=False, is_async=True)
        tile_v.store(w.to(gl.bfloat16))
        x, y, b = warpgroup_mma_wait(num_outstanding=0, deps=[x, y, b])
        x = x * cos_y[:, None] + y * sin_y[:, None]
        tile_g.store(where_positive(x, k_c.load(RESULT)))
        sync()
        put(DQ + head * D, HEADS * D, token, length, tile_o, D, LINES)
        put(DV_ + head * DV, HEADS * DV, token, length, tile_v, DV, LINES)
        put(DK + head * D, HEADS * D, token, length, tile_g, D, LINES)
        fence_async_shared()
        sync()
        if t + STAGES < turns:
            bring_all(q, k, v, o, g, qs.index(stage), ks.index(stage), vs.index(stage), os.index(stage),
                      gs.index(stage), bars.index(stage), at, head)  # fmt: skip
        d = gl.load(DEN + ahead + of_q, mask=of_q < length_ahead, other=1.0)
        token, length = ahead, length_ahead
    alone_if(doubts, GROUPS, documents, again)
