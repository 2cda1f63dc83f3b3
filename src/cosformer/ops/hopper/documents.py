"""Documents packed into one row, as one list of tiles.

A tile is CHUNK tokens of one document, fewer where the document ends; its first tile begins where the
document begins, wherever that is in the row. So no tile holds two documents, and nothing one of them holds
can reach another. The list is cut into runs of equal length, one for each piece: a block goes from document
to document without stopping, with the copies of the next tiles under way, and starts a new state where a
document begins. Short documents cost no more than their tiles.

    TILES [1 + tiles, 4] int32: how many tiles there are; then for each of them its first token, how many
    tokens of its document lie before it, and how many from it on

A piece that begins inside of a document needs the state of what lies before it. `absorb` (states.py) sums up
the tiles of that document in each piece, `chain` adds these up over the pieces. Where nothing is cut, both
find nothing to do.

Everything is made on the device, from bounds nobody has to look at: what is started depends on shapes alone.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK as TILE
from cosformer.ops.hopper.tiles import locate

LISTED = 256  # documents, or tiles, a program takes at a time
CHAINED = 4096  # numbers a program of `chain` holds


@triton.jit(do_not_specialize=["documents"])
def count_tiles(CU, FIRST, documents, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """FIRST [documents + 1]: how many tiles the documents before each one have. One program."""
    total = 0
    for i in range(0, documents, BLOCK):
        document = i + tl.arange(0, BLOCK)
        inside = document < documents
        begin = tl.load(CU + document, mask=inside, other=0).to(tl.int32)
        n = tl.cdiv(tl.load(CU + document + 1, mask=inside, other=0).to(tl.int32) - begin, CHUNK)
        tl.store(FIRST + document, total + tl.cumsum(n, 0) - n, mask=inside)
        total += tl.sum(n, 0)
    tl.store(FIRST + documents, total)


@triton.jit(do_not_specialize=["documents"])
def list_tiles(CU, FIRST, TILES, documents, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """One program lists BLOCK tiles; each looks for its document by halving."""
    total = tl.load(FIRST + documents)
    tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = tile < total
    low = tl.zeros((BLOCK,), tl.int32)
    width = documents
    while width > 1:
        half = width // 2
        low = tl.where(tl.load(FIRST + low + half) <= tile, low + half, low)
        width -= half
    before = (tile - tl.load(FIRST + low)) * CHUNK
    begin = tl.load(CU + low).to(tl.int32)
    end = tl.load(CU + low + 1).to(tl.int32)
    at = TILES + 4 + 4 * tile
    tl.store(at, begin + before, mask=inside)
    tl.store(at + 1, before, mask=inside)
    tl.store(at + 2, end - begin - before, mask=inside)
    tl.store(TILES + tile, total, mask=tile == 0)


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
    total = tl.load(TILES)
    each = tl.cdiv(total, pieces)
    piece = i
    following = i + 1
    border = following * each
    if BACKWARDS:
        piece = pieces - 1 - i
        following = piece - 1
        border = piece * each
    there = (following >= 0) & (following < pieces) & (border < total)
    before = tl.load(TILES + 5 + 4 * border, mask=there, other=0)
    inside = before
    if BACKWARDS:
        inside = tl.load(TILES + 6 + 4 * border, mask=there, other=0)
    goes_on = (before > 0) & (n < SIZE)
    through = (goes_on & (inside > each * CHUNK)).to(tl.int32)
    own = tl.load(STATES + piece.to(tl.int64) * (HEADS * SIZE), mask=goes_on, other=0.0)
    found, _ = tl.associative_scan((own, through), 0, _append)
    tl.debug_barrier()  # sums go where other threads have read
    real = (i < pieces) & (n < SIZE)
    tl.store(STATES + piece.to(tl.int64) * (HEADS * SIZE), tl.zeros_like(own), mask=real & (i == 0))
    real = real & (i + 1 < pieces)
    tl.store(STATES + following.to(tl.int64) * (HEADS * SIZE), tl.where(goes_on, found, 0.0), mask=real)


@gluon.jit
def run_of(TILES, piece, pieces):
    """A piece's part of the list: its first tile, how many it has, and how many there are in all."""
    total = gl.load(TILES)
    each = (total + pieces - 1) // pieces
    first = gl.minimum(piece * each, total)
    return first, gl.minimum(each, total - first), total


@gluon.jit
def way(piece, CU, DOCUMENT, FIRST, SLOT, TILES, length, pieces, size, PACKED: gl.constexpr,
        JOINED: gl.constexpr):  # fmt: skip
    """As `locate`, and how many tiles a walk along the piece has. JOINED: it begins at tile `begin`."""
    if JOINED:
        begin, chunks, _ = run_of(TILES, piece, pieces)
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
        at = TILES + 4 + 4 * (begin + i)
        return gl.load(at), gl.load(at + 1), gl.load(at + 2)
    else:
        first = begin + i * TILE
        return start + first, first, end - first


@gluon.jit
def reaching_out(TILES, piece, pieces, BACKWARDS: gl.constexpr):
    """Of the document that goes on in the next piece (the one before, if BACKWARDS): where it begins, the
    part of it that lies in this piece, and whether there is one."""
    run, chunks, total = run_of(TILES, piece, pieces)
    if BACKWARDS:
        there = chunks > 0
        token, begin, rest = tile_at(gl.where(there, run, 0), TILES, 0, 0, 0, True)
        start = token - begin
        end = begin + gl.minimum(rest, chunks * TILE)
    else:
        there = run + chunks < total
        token, end, _ = tile_at(gl.where(there, run + chunks, 0), TILES, 0, 0, 0, True)
        start = token - end
        begin = gl.maximum(end - chunks * TILE, 0)
    return start, begin, end, there & (token > start)
