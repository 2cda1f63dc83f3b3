"""Documents packed into one row, as one list of tiles.

A tile is CHUNK tokens of one document, fewer at the document's end; its first tile begins where the document
begins. So no tile holds two documents, and nothing of one of them can reach another. The list is divided into
splits of about equal length: a CTA goes from document to document without stopping, with the loads of the
next tiles in flight, and starts a new state where a document begins. Short documents cost no more than their
tiles.

    tile_list [tiles + 1, 4] int32: columns 0 to 2, for each tile: its first token, and how many tokens of its
    document lie before it and from it on; column 3, for each split and after the last: its first tile

A split begins where a document does, if one begins nearby; otherwise it cuts that document. Causal: a split
that begins within a document needs the state of what lies before; `chunk_state` sums the tiles of that
document in each split, `tile_list_state_scan` adds these up over the splits. Bidirectional: documents that
are cut go through states in global memory like long rows (`chunk_state`, `tile_list_state_sum`,
state_apply.py), all others through varlen_bidir_fwd.py. Where nothing is cut, these kernels have nothing to
do. Bidirectional and with as many key heads as query heads, documents of one tile are not in this list:
neighbours share a tile (varlen_single_tile_fwd.py).

All of it is computed on the device, without synchronisation: what is launched depends on shapes alone.
"""

import triton
import triton.language as tl

LIST_BLOCK = 256  # tiles or tokens a program of `list_tiles` takes
COUNT_BLOCK = 128  # lanes of `count_tiles`
DOCS_PER_LANE = 16  # consecutive documents a lane of `count_tiles` takes
CUT_COST = tl.constexpr(7)  # tiles: the cost of cutting a document
SCAN_NUMBERS = 2048  # numbers a program of `tile_list_state_scan` holds


@triton.jit
def _next_document(
    cu_seqlens, document, documents, begin, open_group, CHUNK: tl.constexpr, GROUP_SHORT: tl.constexpr
):
    """Begin and end of a document, its number of tiles, whether it is in a group of short documents and
    begins one, where that group begins, and whether the next document can join it."""
    row_start = tl.load(cu_seqlens + document, mask=document < documents, other=0).to(tl.int32)
    end = tl.load(cu_seqlens + document + 1, mask=document < documents, other=0).to(tl.int32)
    tiles = tl.cdiv(end - row_start, CHUNK)
    is_short = tiles == (1 if GROUP_SHORT else -1)
    begins_group = is_short & ((open_group == 0) | (end - begin > CHUNK))
    begin = tl.where(begins_group, row_start, begin)
    open_group = tl.where(tiles == 0, open_group, is_short.to(tl.int32))
    return row_start, end, tl.where(is_short, 0, tiles), is_short, begins_group, begin, open_group


@triton.jit(do_not_specialize=["documents"])
def count_tiles(
    cu_seqlens, FIRST, groups_ptr, documents, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    DOCS_PER_LANE: tl.constexpr,
):  # fmt: skip
    """FIRST [documents + 1]: how many tiles the documents before each one have. If groups [2, documents + 1,
    2] is given, documents of one tile are not counted. groups[0]: first token and length of each group of
    neighbouring short documents that fit into one tile, and in the last row the number of groups. groups[1]:
    the same for each short document alone, and in the last row zero and their number. One program; each of
    its BLOCK lanes takes DOCS_PER_LANE consecutive documents, and no group goes beyond these."""
    GROUP_SHORT: tl.constexpr = groups_ptr is not None
    total = 0
    groups = 0
    singles = 0
    single_ptr = groups_ptr + 2 * documents + 2 if GROUP_SHORT else None
    zeros = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, documents, BLOCK * DOCS_PER_LANE):
        first = i + tl.arange(0, BLOCK) * DOCS_PER_LANE
        tiles, group_starts, short_docs, begin, open_group = zeros, zeros, zeros, zeros, zeros
        for j in range(DOCS_PER_LANE):
            _, _, n, is_short, begins_group, begin, open_group = _next_document(
                cu_seqlens, first + j, documents, begin, open_group, CHUNK, GROUP_SHORT
            )
            tiles += n
            group_starts += begins_group.to(tl.int32)
            short_docs += is_short.to(tl.int32)
        before = total + tl.cumsum(tiles, 0) - tiles
        total += tl.sum(tiles, 0)
        at = groups + tl.cumsum(group_starts, 0) - group_starts - 1
        groups += tl.sum(group_starts, 0)
        single_index = singles + tl.cumsum(short_docs, 0) - short_docs
        singles += tl.sum(short_docs, 0)
        begin, open_group = zeros, zeros
        for j in range(DOCS_PER_LANE):
            row_start, end, n, is_short, begins_group, begin, open_group = _next_document(
                cu_seqlens, first + j, documents, begin, open_group, CHUNK, GROUP_SHORT
            )
            tl.store(FIRST + first + j, before, mask=first + j < documents)
            before += n
            if GROUP_SHORT:
                at += begins_group.to(tl.int32)
                tl.store(groups_ptr + 2 * at, begin, mask=begins_group)
                tl.store(groups_ptr + 2 * at + 1, end - begin, mask=is_short)
                tl.store(single_ptr + 2 * single_index, row_start, mask=is_short)
                tl.store(single_ptr + 2 * single_index + 1, end - row_start, mask=is_short)
                single_index += is_short.to(tl.int32)
    tl.store(FIRST + documents, total)
    if GROUP_SHORT:
        tl.store(groups_ptr + 2 * documents, groups)
        tl.store(single_ptr + 2 * documents, 0)
        tl.store(single_ptr + 2 * documents + 1, singles)


@triton.jit
def _search(bounds_ptr, x, documents):
    """Which document each of x is in, by bisection: the last whose bound is not above x."""
    low = x * 0
    width = documents
    while width > 1:
        half = width // 2
        low = tl.where(tl.load(bounds_ptr + low + half) <= x, low + half, low)
        width -= half
    return low


@triton.jit(do_not_specialize=["documents", "length", "splits", "programs", "tokens"])
def list_tiles(
    cu_seqlens, FIRST, tile_list, bounds_ptr, documents, length, splits, programs, tokens,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first `programs` programs each list BLOCK tiles; of the `length` rows, those without a tile become
    zeros. The next ones each list where BLOCK splits begin: at equal distances, or where the nearest document
    begins if that is not far. The last ones fill bounds [tokens, 2], if it is given: where the document of
    each token begins and ends."""
    after = tl.program_id(0) - programs - tl.cdiv(splits + 1, BLOCK)
    if after >= 0:
        if bounds_ptr is not None:
            token = after * BLOCK + tl.arange(0, BLOCK)
            document = _search(cu_seqlens, token, documents)
            tl.store(bounds_ptr + 2 * token, tl.load(cu_seqlens + document).to(tl.int32), mask=token < tokens)
            tl.store(
                bounds_ptr + 2 * token + 1,
                tl.load(cu_seqlens + document + 1).to(tl.int32),
                mask=token < tokens,
            )
    else:
        total = tl.load(FIRST + documents)
        each = tl.cdiv(total, splits)
        listing = tl.program_id(0) < programs
        tile = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        split = tile - programs * BLOCK
        tile = tl.where(listing, tile, tl.minimum(split * each, total))
        low = _search(FIRST, tile, documents)
        before = (tile - tl.load(FIRST + low)) * CHUNK
        begin = tl.load(cu_seqlens + low).to(tl.int32)
        rest = tl.load(cu_seqlens + low + 1).to(tl.int32) - begin - before
        inside = listing & (tile < length)
        there = (tile < total).to(tl.int32)
        at = tile_list + 4 * tile
        tl.store(at, (begin + before) * there, mask=inside)
        tl.store(at + 1, before * there, mask=inside)
        tl.store(at + 2, rest * there, mask=inside)
        tl.store(at + 3, 0 * there, mask=inside & (tile > splits))
        ahead = tl.cdiv(rest, CHUNK)
        back = before // CHUNK
        limit = tl.maximum(tl.maximum(each // 8, 1), tl.minimum(each // 4, CUT_COST))
        # Half of the limit: a split may grow at both ends.
        near = (tile < total) & (2 * tl.minimum(ahead, back) <= limit + 1)
        begins_group = tile + tl.where(near, tl.where(ahead <= back, ahead, -back), 0)
        tl.store(tile_list + 4 * split + 3, begins_group, mask=(split >= 0) & (split <= splits))


@triton.jit
def _append(value, spans, more, next_spans):
    """Two ranges of splits as one. `spans`: one document covers the whole range."""
    return tl.where(next_spans != 0, value + more, more), spans & next_spans


@triton.jit(do_not_specialize=["splits"])
def tile_list_state_scan(
    h_ptr, tile_list, splits, HEADS: tl.constexpr, SIZE: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, MAX_SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h [splits, HEADS, SIZE], in place: in, the state of the part of each split that belongs to the document
    which continues in the next split (the one before, if REVERSE); out, the state each split starts from. One
    program takes BLOCK numbers of one head, of all splits (at most MAX_SPLITS) at once."""
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    i = tl.arange(0, MAX_SPLITS)[:, None]
    n = (tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK))[None, :]
    h_ptr += tl.program_id(0) // BLOCKS * SIZE + n
    split = i
    following = i + 1
    if REVERSE:
        split = splits - 1 - i
        following = split - 1
    real = (i < splits) & (following >= 0) & (following < splits)
    begin = tl.load(tile_list + 4 * split + 3, mask=real, other=0)
    end = tl.load(tile_list + 4 * split + 7, mask=real, other=0)
    border = begin if REVERSE else end
    real = real & (border < tl.load(tile_list + 4 * splits + 3))
    before = tl.load(tile_list + 4 * border + 1, mask=real, other=0)
    within = tl.load(tile_list + 4 * border + 2, mask=real, other=0) if REVERSE else before
    continues = (before > 0) & (n < SIZE)
    spans = (continues & (within > (end - begin) * CHUNK)).to(tl.int32)
    own = tl.load(h_ptr + split.to(tl.int64) * (HEADS * SIZE), mask=continues, other=0.0)
    found, _ = tl.associative_scan((own, spans), 0, _append)
    tl.debug_barrier()  # results are stored where other threads have loaded
    tl.store(h_ptr + following.to(tl.int64) * (HEADS * SIZE), found, mask=continues)


@triton.jit(do_not_specialize=["splits"])
def tile_list_state_sum(
    parts_ptr, sums_ptr, tile_list, splits, HEADS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    MAX_SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """parts [2 splits, HEADS, SIZE], states of the parts of cut documents (`locate_part`) -> sums [splits,
    HEADS, SIZE], the state of the whole document that is cut where a split begins. Programs as in
    `tile_list_state_scan`."""
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    border = tl.arange(0, MAX_SPLITS)[:, None]
    n = (tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK))[None, :]
    offset = tl.program_id(0) // BLOCKS * SIZE + n
    real = (border > 0) & (border < splits)
    begin_before = tl.load(tile_list + 4 * border - 1, mask=real, other=0)
    begin = tl.load(tile_list + 4 * border + 3, mask=real, other=0)
    end = tl.load(tile_list + 4 * border + 7, mask=real, other=0)
    real = real & (begin < tl.load(tile_list + 4 * splits + 3))
    before = tl.load(tile_list + 4 * begin + 1, mask=real, other=0)
    rest = tl.load(tile_list + 4 * begin + 2, mask=real, other=0)
    cut = (before > 0) & (n < SIZE)
    spans = cut & (before > (begin - begin_before) * CHUNK)
    on = cut & (rest > (end - begin) * CHUNK)
    if tl.max(cut.to(tl.int32)) > 0:  # rarely so
        part = 2 * border.to(tl.int64)
        left = tl.load(parts_ptr + (part - 1) * (HEADS * SIZE) + offset, mask=cut, other=0.0)
        right = tl.load(
            parts_ptr + tl.where(on, part + 1, part) * (HEADS * SIZE) + offset, mask=cut, other=0.0
        )
        left, _ = tl.associative_scan((left, spans.to(tl.int32)), 0, _append)
        right, _ = tl.associative_scan((right, on.to(tl.int32)), 0, _append, reverse=True)
        tl.store(sums_ptr + border.to(tl.int64) * (HEADS * SIZE) + offset, left + right, mask=cut)
