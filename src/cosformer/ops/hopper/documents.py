"""Documents packed into one row, as one list of tiles.

A tile is CHUNK tokens of one document, fewer where the document ends; its first tile begins where the
document begins, wherever that is in the row. So no tile holds two documents, and nothing one of them holds
can reach another. The list is cut into runs of about equal length, one for each piece: a block goes from
document to document without stopping, with the copies of the next tiles under way, and starts a new state
where a document begins. Short documents cost no more than their tiles.

    TILES [tiles + 1, 4] int32: of each tile its first token, how many tokens of its document lie before it
    and how many from it on; and of each piece, and after the last, its first tile

A piece begins where a document does, if one does nearby; else that document is cut. Causal, a piece that
begins inside of a document needs the state of what lies before it: `absorb` (states.py) sums up the tiles of
that document in each piece, `chain` adds these up over the pieces. Bidirectional, documents that are cut go
through states in memory like long rows (`absorb`, `join`, apply.py), all others through whole.py. Where
nothing is cut, these kernels find nothing to do. Bidirectional and with as many key heads as query heads,
documents of one tile are not in this list at all: neighbours share a tile, and squares.py keeps them apart.

Everything is made on the device, from bounds nobody has to look at: what is started depends on shapes alone.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK as TILE
from cosformer.ops.hopper.tiles import locate

LISTED = 256  # tiles or tokens a program of `list_tiles` takes
COUNTED = 128  # numbers of `count_tiles`
EACH = 16  # documents in turn for each of them
AS_LONG = tl.constexpr(7)  # tiles: to cut a document takes the time of so many
CHAINED = 2048  # numbers a program of `chain` holds


@triton.jit
def _next_document(CU, document, documents, begin, opened, CHUNK: tl.constexpr, GROUPED: tl.constexpr):
    """Of a document: its beginning and end, how many tiles it has, whether it goes into a group and begins
    one; and where that group begins, and whether the document after it can join it."""
    start = tl.load(CU + document, mask=document < documents, other=0).to(tl.int32)
    end = tl.load(CU + document + 1, mask=document < documents, other=0).to(tl.int32)
    tiles = tl.cdiv(end - start, CHUNK)
    grouped = tiles == (1 if GROUPED else -1)
    begins = grouped & ((opened == 0) | (end - begin > CHUNK))
    begin = tl.where(begins, start, begin)
    opened = tl.where(tiles == 0, opened, grouped.to(tl.int32))
    return start, end, tl.where(grouped, 0, tiles), grouped, begins, begin, opened


@triton.jit(do_not_specialize=["documents"])
def count_tiles(CU, FIRST, GROUPS, documents, CHUNK: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """FIRST [documents + 1]: how many tiles the documents before each one have. Where there are GROUPS
    [2, documents + 1, 2], those of one tile have none: neighbours of them are a group as long as they fit
    into one, with its first token and length, and behind all rows the number of groups. Then the same of each
    of these documents alone; behind all rows zero, and their number. One program; each of its BLOCK numbers
    is for EACH documents in turn, and no group goes beyond these."""
    GROUPED: tl.constexpr = GROUPS is not None
    total = 0
    groups = 0
    alone = 0
    ALONE = GROUPS + 2 * documents + 2 if GROUPED else None
    nothing = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, documents, BLOCK * EACH):
        first = i + tl.arange(0, BLOCK) * EACH
        tiles, begun, short, begin, opened = nothing, nothing, nothing, nothing, nothing
        for j in range(EACH):
            _, _, n, grouped, begins, begin, opened = _next_document(
                CU, first + j, documents, begin, opened, CHUNK, GROUPED
            )
            tiles += n
            begun += begins.to(tl.int32)
            short += grouped.to(tl.int32)
        before = total + tl.cumsum(tiles, 0) - tiles
        total += tl.sum(tiles, 0)
        at = groups + tl.cumsum(begun, 0) - begun - 1
        groups += tl.sum(begun, 0)
        at_short = alone + tl.cumsum(short, 0) - short
        alone += tl.sum(short, 0)
        begin, opened = nothing, nothing
        for j in range(EACH):
            start, end, n, grouped, begins, begin, opened = _next_document(
                CU, first + j, documents, begin, opened, CHUNK, GROUPED
            )
            tl.store(FIRST + first + j, before, mask=first + j < documents)
            before += n
            if GROUPED:
                at += begins.to(tl.int32)
                tl.store(GROUPS + 2 * at, begin, mask=begins)
                tl.store(GROUPS + 2 * at + 1, end - begin, mask=grouped)
                tl.store(ALONE + 2 * at_short, start, mask=grouped)
                tl.store(ALONE + 2 * at_short + 1, end - start, mask=grouped)
                at_short += grouped.to(tl.int32)
    tl.store(FIRST + documents, total)
    if GROUPED:
        tl.store(GROUPS + 2 * documents, groups)
        tl.store(ALONE + 2 * documents, 0)
        tl.store(ALONE + 2 * documents + 1, alone)


@triton.jit
def _search(BOUNDS, x, documents):
    """Which document each of x is in, by halving: the last whose bound is not above it."""
    low = x * 0
    width = documents
    while width > 1:
        half = width // 2
        low = tl.where(tl.load(BOUNDS + low + half) <= x, low + half, low)
        width -= half
    return low


@triton.jit(do_not_specialize=["documents", "length", "pieces", "programs", "tokens"])
def list_tiles(
    CU, FIRST, TILES, BOUNDS, documents, length, pieces, programs, tokens, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One program lists BLOCK tiles, those after the first `programs` where BLOCK pieces begin: in equal
    steps, or where the nearest document does if that is not far. Of the `length` rows, those without a tile
    are zeros.
    BOUNDS [tokens, 2]: where the document of each token begins and ends; the last programs write it, if it is
    there."""
    after = tl.program_id(0) - programs - tl.cdiv(pieces + 1, BLOCK)
    if after >= 0:
        if BOUNDS is not None:
            token = after * BLOCK + tl.arange(0, BLOCK)
            document = _search(CU, token, documents)
            tl.store(BOUNDS + 2 * token, tl.load(CU + document).to(tl.int32), mask=token < tokens)
            tl.store(BOUNDS + 2 * token + 1, tl.load(CU + document + 1).to(tl.int32), mask=token < tokens)
    else:
        total = tl.load(FIRST + documents)
        each = tl.cdiv(total, pieces)
        listing = tl.program_id(0) < programs
        tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        piece = tile - programs * BLOCK
        tile = tl.where(listing, tile, tl.minimum(piece * each, total))
        low = _search(FIRST, tile, documents)
        before = (tile - tl.load(FIRST + low)) * CHUNK
        begin = tl.load(CU + low).to(tl.int32)
        rest = tl.load(CU + low + 1).to(tl.int32) - begin - before
        inside = listing & (tile < length)
        there = (tile < total).to(tl.int32)
        at = TILES + 4 * tile
        tl.store(at, (begin + before) * there, mask=inside)
        tl.store(at + 1, before * there, mask=inside)
        tl.store(at + 2, rest * there, mask=inside)
        tl.store(at + 3, 0 * there, mask=inside & (tile > pieces))
        ahead = tl.cdiv(rest, CHUNK)
        back = before // CHUNK
        limit = tl.maximum(tl.maximum(each // 8, 1), tl.minimum(each // 4, AS_LONG))
        # Half of the limit: a piece may grow at both ends.
        near = (tile < total) & (2 * tl.minimum(ahead, back) <= limit + 1)
        begins = tile + tl.where(near, tl.where(ahead <= back, ahead, -back), 0)
        tl.store(TILES + 4 * piece + 3, begins, mask=(piece >= 0) & (piece <= pieces))


@triton.jit
def _append(value, through, more, and_through):
    """Two stretches of pieces as one; `through`: one document goes from end to end."""
    return tl.where(and_through != 0, value + more, more), through & and_through


@triton.jit(do_not_specialize=["pieces"])
def chain(
    STATES, TILES, pieces, HEADS: tl.constexpr, SIZE: tl.constexpr, BACKWARDS: tl.constexpr,
    CHUNK: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """STATES [pieces, HEADS, SIZE]: of each piece, the part of the document that goes on in the next one (the
    one before, if BACKWARDS), becomes what each piece starts from. One program takes BLOCK numbers of one
    head, of all pieces (MOST at most) at once."""
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    i = tl.arange(0, MOST)[:, None]
    n = (tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK))[None, :]
    STATES += tl.program_id(0) // BLOCKS * SIZE + n
    piece = i
    following = i + 1
    if BACKWARDS:
        piece = pieces - 1 - i
        following = piece - 1
    real = (i < pieces) & (following >= 0) & (following < pieces)
    begin = tl.load(TILES + 4 * piece + 3, mask=real, other=0)
    end = tl.load(TILES + 4 * piece + 7, mask=real, other=0)
    border = begin if BACKWARDS else end
    real = real & (border < tl.load(TILES + 4 * pieces + 3))
    before = tl.load(TILES + 4 * border + 1, mask=real, other=0)
    within = tl.load(TILES + 4 * border + 2, mask=real, other=0) if BACKWARDS else before
    goes_on = (before > 0) & (n < SIZE)
    through = (goes_on & (within > (end - begin) * CHUNK)).to(tl.int32)
    own = tl.load(STATES + piece.to(tl.int64) * (HEADS * SIZE), mask=goes_on, other=0.0)
    found, _ = tl.associative_scan((own, through), 0, _append)
    tl.debug_barrier()  # sums go where other threads have read
    tl.store(STATES + following.to(tl.int64) * (HEADS * SIZE), found, mask=goes_on)


@triton.jit(do_not_specialize=["pieces"])
def join(
    PARTS, SUMS, TILES, pieces, HEADS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    MOST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """PARTS [2 pieces, HEADS, SIZE], of the parts of cut documents (`cut_part`) -> SUMS [pieces, HEADS, SIZE]
    of the whole document that is cut at the beginning of a piece. Programs as in `chain`."""
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    border = tl.arange(0, MOST)[:, None]
    n = (tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK))[None, :]
    offset = tl.program_id(0) // BLOCKS * SIZE + n
    real = (border > 0) & (border < pieces)
    begin_before = tl.load(TILES + 4 * border - 1, mask=real, other=0)
    begin = tl.load(TILES + 4 * border + 3, mask=real, other=0)
    end = tl.load(TILES + 4 * border + 7, mask=real, other=0)
    real = real & (begin < tl.load(TILES + 4 * pieces + 3))
    before = tl.load(TILES + 4 * begin + 1, mask=real, other=0)
    rest = tl.load(TILES + 4 * begin + 2, mask=real, other=0)
    cut = (before > 0) & (n < SIZE)
    through = cut & (before > (begin - begin_before) * CHUNK)
    on = cut & (rest > (end - begin) * CHUNK)
    if tl.max(cut.to(tl.int32)) > 0:  # mostly nothing is
        part = 2 * border.to(tl.int64)
        left = tl.load(PARTS + (part - 1) * (HEADS * SIZE) + offset, mask=cut, other=0.0)
        right = tl.load(PARTS + tl.where(on, part + 1, part) * (HEADS * SIZE) + offset, mask=cut, other=0.0)
        left, _ = tl.associative_scan((left, through.to(tl.int32)), 0, _append)
        right, _ = tl.associative_scan((right, on.to(tl.int32)), 0, _append, reverse=True)
        tl.store(SUMS + border.to(tl.int64) * (HEADS * SIZE) + offset, left + right, mask=cut)


@gluon.jit
def run_of(TILES, piece):
    """A piece's part of the list: its first tile, and how many it has."""
    first = gl.load(TILES + 4 * piece + 3)
    return first, gl.load(TILES + 4 * piece + 7) - first


@gluon.jit
def way(piece, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED: gl.constexpr,
        JOINED: gl.constexpr):  # fmt: skip
    """As `locate`, and how many tiles a walk along the piece has. JOINED: it begins at tile `begin`."""
    if JOINED:
        begin, chunks = run_of(TILES, piece)
        row = 0
        batch = 0
        start = 0
        end = 0
        slot = piece
    else:
        row, batch, start, begin, end, slot = locate(
            piece, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED
        )
        chunks = gl.maximum(end - begin + TILE - 1, 0) // TILE
    return row, batch, start, begin, end, slot, chunks


@gluon.jit
def tile_at(i, TILES, start, begin, end, JOINED: gl.constexpr):
    """Of a piece's tile: its first token, and how many tokens of its row lie before it and from it on."""
    if JOINED:
        at = TILES + 4 * (begin + i)
        token = gl.load(at)
        first = gl.load(at + 1)
        rest = gl.load(at + 2)
    else:
        first = begin + i * TILE
        token = start + first
        rest = end - first
    return token, first, rest


@gluon.jit
def reaching_out(TILES, piece, pieces, BACKWARDS: gl.constexpr):
    """Of the document that goes on in the next piece (the one before, if BACKWARDS): where it begins, the
    part of it that lies in this piece, and whether there is one."""
    run, chunks = run_of(TILES, piece)
    if BACKWARDS:
        there = chunks > 0
        token, begin, rest = tile_at(gl.where(there, run, 0), TILES, 0, 0, 0, True)
        start = token - begin
        end = begin + gl.minimum(rest, chunks * TILE)
    else:
        there = run + chunks < gl.load(TILES + 4 * pieces + 3)
        token, end, _ = tile_at(gl.where(there, run + chunks, 0), TILES, 0, 0, 0, True)
        start = token - end
        begin = gl.maximum(end - chunks * TILE, 0)
    return start, begin, end, there & (token > start)


@gluon.jit
def end_of(piece, TILES, pieces, BACKWARDS: gl.constexpr):
    """As `locate`, of the part `reaching_out` finds."""
    start, begin, end, there = reaching_out(TILES, piece, pieces, BACKWARDS)
    return 0, 0, start, begin, end, gl.where(there, piece, -1)


@gluon.jit
def whole_documents(TILES, piece, pieces):
    """The tiles [begin, end) of a piece between the documents that are cut."""
    run, chunks = run_of(TILES, piece)
    first, begin, end, before = reaching_out(TILES, piece, pieces, True)
    cut = gl.where(before, (end - begin + TILE - 1) // TILE, 0)
    last, begin, end, after = reaching_out(TILES, piece, pieces, False)
    cut_after = gl.where(after & ~(before & (first == last)), (end - begin) // TILE, 0)
    return run + cut, run + chunks - cut_after


@gluon.jit
def part_of(part, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED: gl.constexpr,
            JOINED: gl.constexpr):  # fmt: skip
    """As `locate`. JOINED: of the two parts of cut documents in a piece, or of the one that fills it (the
    second); the row is the piece whose beginning cuts the document, and the slot is -1 if there is none."""
    if JOINED:
        piece = part // 2
        second = part % 2 == 1
        first, begin_first, end_first, before = reaching_out(TILES, piece, pieces, True)
        last, begin_last, end_last, after = reaching_out(TILES, piece, pieces, False)
        there = gl.where(second, after, before & ~(after & (first == last)))
        row = piece + part % 2
        batch = 0
        start = gl.where(second, last, first)
        begin = gl.where(second, begin_last, begin_first)
        end = gl.where(there, gl.where(second, end_last, end_first), begin)
        slot = gl.where(there, part, -1)
    else:
        row, batch, start, begin, end, slot = locate(
            part, CU, DOCUMENT, FIRST, SLOT, length, pieces, size, PACKED
        )
    return row, batch, start, begin, end, slot
