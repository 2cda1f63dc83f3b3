"""The state of a stretch of rows, and running sums of such states.

`absorb` gives each piece of a row its own state, in fp32, from the keys ("o") or from the queries and
the gradients of their results ("dv"; the table in rows.py):

    S = sum_j phi(b_j) c_j^T [2, D, Dv],     z = sum_j w_j phi(b_j) [2, D],     w_j = 1 or e_j

One program takes one key head of one piece and BN columns of c; it reads b and c once (2 tensors) and
writes 2 D (Dv + 1) numbers. `scan` then turns the states of a row's pieces into what each piece finds
when it starts, and gives the sum of all: together with a second pass over the pieces, long rows are
walked by many programs at once. More programs sum than walk, because they need fewer registers: a piece of
a walk is then several of `absorb`.
"""

import triton
import triton.language as tl

from cosformer.ops.triton.rows import at, feature, inner, locate, narrow, partial, phases, read, visible


@triton.jit(
    do_not_specialize=["origin", "length", "pieces", "size", "unused", "row_b", "row_h", "mask_stride"]
)
def absorb(
    B, C, INVERSE, E, MASK, POSITIONS, STATES, CU, DOCUMENT, FIRST, SLOT, origin, length, pieces, size,
    unused, horizon, b_b, b_t, b_h, c_b, c_t, c_h, row_b, row_h, mask_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    WHAT: tl.constexpr, PACKED: tl.constexpr, MASKED: tl.constexpr, CARRIED: tl.constexpr,
    UNUSED: tl.constexpr, CHUNK: tl.constexpr, BF: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """HEADS key heads; with "dv", GROUP heads of b and c belong to each of them. UNUSED: nobody will ask for
    the states of a row's "first" or "last" `unused` pieces."""
    BLOCKS: tl.constexpr = (DV + BN - 1) // BN
    PAD_F: tl.constexpr = D != BF
    PAD_N: tl.constexpr = DV % BN != 0

    pid = tl.program_id(0)
    block = pid % BLOCKS
    head = pid // BLOCKS % HEADS
    piece = pid // (BLOCKS * HEADS)
    if UNUSED != "none" and not PACKED:  # have no program: packed, a piece does not know what it is
        piece += piece // (pieces - unused) * unused
        if UNUSED == "first":
            piece += unused
    row, start, begin, end, slot = locate(piece, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED)
    if CARRIED:
        origin += tl.load(POSITIONS + row, mask=begin < end, other=0).to(tl.int32)
    rows = tl.arange(0, CHUNK)
    features = tl.arange(0, BF)
    columns = block * BN + tl.arange(0, BN)
    sc = tl.zeros((BF, BN), tl.float32)
    ss = tl.zeros((BF, BN), tl.float32)
    zc = tl.zeros((PARTS, BF), tl.float32)
    zs = tl.zeros((PARTS, BF), tl.float32)
    # A document of one piece has no use for its state.
    chunks = tl.cdiv(end - begin, CHUNK) * (slot >= 0)
    if UNUSED == "first":
        chunks *= begin > 0
    for g in range(GROUP):
        for i in range(chunks):
            first = begin + i * CHUNK
            token = start + first
            inside = first + rows < end
            c, s = phases(origin + first + rows, horizon, DOT)
            if WHAT == "o":
                seen = visible(MASK, mask_stride, row, first + rows, inside, MASKED)
            else:
                seen = inside
            h = head * GROUP + g
            b = read(at(B, row, token, h, b_b, b_t, b_h, PACKED), b_t, rows, seen, features, D, PAD_F)
            x = read(at(C, row, token, h, c_b, c_t, c_h, PACKED), c_t, rows, seen, columns, DV, PAD_N)
            x = narrow(x, DOT, PRECISION)
            if WHAT == "o":
                bc, bs = feature(b, c, DOT, PRECISION), feature(b, s, DOT, PRECISION)
                zc += partial(bc.to(tl.float32), PARTS)
                zs += partial(bs.to(tl.float32), PARTS)
            else:
                vector = (0 if PACKED else row.to(tl.int64) * row_b) + token + h.to(tl.int64) * row_h
                r = tl.load(INVERSE + vector + rows, mask=inside, other=0.0)
                e = tl.load(E + vector + rows, mask=inside, other=0.0)
                b = tl.where((r != 0.0)[:, None], b, 0.0)
                bc, bs = feature(b, c * r, DOT, PRECISION), feature(b, s * r, DOT, PRECISION)
                zc += partial(bc.to(tl.float32) * e[:, None], PARTS)
                zs += partial(bs.to(tl.float32) * e[:, None], PARTS)
            sc = inner(tl.trans(bc), x, sc, PRECISION)
            ss = inner(tl.trans(bs), x, ss, PRECISION)

    MATRIX: tl.constexpr = D * DV
    STATES += (slot * HEADS + head).to(tl.int64) * (2 * MATRIX + 2 * D)
    tile = features[:, None] * DV + columns[None, :]
    whole = (features < D)[:, None] & (columns < DV)[None, :] & (slot >= 0)
    tl.store(STATES + tile, sc, mask=whole)
    tl.store(STATES + MATRIX + tile, ss, mask=whole)
    if block == 0:
        real = (features < D) & (slot >= 0)
        tl.store(STATES + 2 * MATRIX + features, tl.sum(zc, 0), mask=real)
        tl.store(STATES + 2 * MATRIX + D + features, tl.sum(zs, 0), mask=real)


@triton.jit
def _piece(STATES, slot, i, count, head, n, HEADS: tl.constexpr, SIZE: tl.constexpr, BACKWARDS: tl.constexpr):
    if BACKWARDS:
        i = count - 1 - i
    return STATES + ((slot + i).to(tl.int64) * HEADS + head) * SIZE + n


@triton.jit
def _note(BEGIN, slot, i, count, parts, head, n, total, real, HEADS: tl.constexpr, SIZE: tl.constexpr,
          BACKWARDS: tl.constexpr):  # fmt: skip
    """What is there before piece i, if it is the first of `parts`."""
    where = _piece(BEGIN, slot // parts, i // parts, count // parts, head, n, HEADS, SIZE, BACKWARDS)
    tl.store(where, total, mask=real & (i < count) & (i % parts == 0))


@triton.jit(do_not_specialize=["pieces", "parts"])
def scan(
    STATES, BEGIN, S_IN, Z_IN, S_OUT, Z_OUT, FIRST, SLOT, pieces, parts, s_stride, z_stride, s_out_stride,
    z_out_stride,
    HEADS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, PACKED: tl.constexpr, STARTED: tl.constexpr,
    STORED: tl.constexpr, PREFIX: tl.constexpr, BACKWARDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """STATES [slots, HEADS, 2 D (Dv + 1)]: S, then z, of each piece. PREFIX: the sum of those before each
    one (after it, if BACKWARDS) and of what came in goes to BEGIN, which may be STATES, or of one in
    `parts` alone; STORED: the sum of all goes out.

    No sum is ever made by taking a piece away from a larger one: a piece of queries that see no key
    has a state a million times larger (1 / eps) than the pieces beside it.
    """
    MATRIX: tl.constexpr = 2 * D * DV
    SIZE: tl.constexpr = MATRIX + 2 * D
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    head = pid // BLOCKS % HEADS
    row = pid // (BLOCKS * HEADS)
    if PACKED:
        first = tl.load(FIRST + row)
        count = tl.load(FIRST + row + 1) - first
        slot = tl.load(SLOT + first, mask=count > 0, other=0)
        count = tl.where(slot >= 0, count, 0)
    else:
        slot = row * pieces
        count = pieces
    n = pid % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    in_matrix = n < MATRIX
    in_vector = (n >= MATRIX) & (n < SIZE)
    index = (row * HEADS + head).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    if STARTED:
        total += tl.load(S_IN + index * s_stride + n, mask=in_matrix, other=0.0)
        total += tl.load(Z_IN + index * z_stride + n - MATRIX, mask=in_vector, other=0.0)
    real = n < SIZE
    for i in range(0, count, 4):  # four loads under way at a time
        p0 = _piece(STATES, slot, i, count, head, n, HEADS, SIZE, BACKWARDS)
        p1 = _piece(STATES, slot, i + 1, count, head, n, HEADS, SIZE, BACKWARDS)
        p2 = _piece(STATES, slot, i + 2, count, head, n, HEADS, SIZE, BACKWARDS)
        p3 = _piece(STATES, slot, i + 3, count, head, n, HEADS, SIZE, BACKWARDS)
        x0 = tl.load(p0, mask=real, other=0.0)
        x1 = tl.load(p1, mask=real & (i + 1 < count), other=0.0)
        x2 = tl.load(p2, mask=real & (i + 2 < count), other=0.0)
        x3 = tl.load(p3, mask=real & (i + 3 < count), other=0.0)
        if PREFIX:
            y1 = total + x0
            y2 = y1 + x1
            _note(BEGIN, slot, i, count, parts, head, n, total, real, HEADS, SIZE, BACKWARDS)
            _note(BEGIN, slot, i + 1, count, parts, head, n, y1, real, HEADS, SIZE, BACKWARDS)
            _note(BEGIN, slot, i + 2, count, parts, head, n, y2, real, HEADS, SIZE, BACKWARDS)
            _note(BEGIN, slot, i + 3, count, parts, head, n, y2 + x2, real, HEADS, SIZE, BACKWARDS)
        total = total + x0 + x1 + x2 + x3
    if STORED:
        tl.store(S_OUT + index * s_out_stride + n, total, mask=in_matrix)
        tl.store(Z_OUT + index * z_out_stride + n - MATRIX, total, mask=in_vector)
