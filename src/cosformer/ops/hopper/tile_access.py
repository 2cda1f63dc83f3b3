"""How kernels find their tiles: of a row that is split, or of the tile list (tile_list.py)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from cosformer.ops.hopper.tiles import CHUNK, locate_split


@gluon.jit
def split_tiles(tile_list, split):
    """The first tile of a split, and how many it has."""
    first = gl.load(tile_list + 4 * split + 3)
    return first, gl.load(tile_list + 4 * split + 7) - first


@gluon.jit
def locate_split_tiles(
    split, cu_seqlens, split_doc, FIRST, split_slot, tile_list, length, splits, split_size,
    IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr,
):  # fmt: skip
    """As `locate_split`, and how many tiles the split has. TILE_LIST: `begin` is its first tile."""
    if TILE_LIST:
        begin, chunks = split_tiles(tile_list, split)
        row = 0
        batch = 0
        row_start = 0
        end = 0
        slot = split
    else:
        row, batch, row_start, begin, end, slot = locate_split(
            split, cu_seqlens, split_doc, FIRST, split_slot, length, splits, split_size, IS_VARLEN
        )
        chunks = gl.maximum(end - begin + CHUNK - 1, 0) // CHUNK
    return row, batch, row_start, begin, end, slot, chunks


@gluon.jit
def tile_at(i, tile_list, row_start, begin, end, TILE_LIST: gl.constexpr):
    """Of tile i of a split: its first token, and how many tokens of its row lie before it and from it on."""
    if TILE_LIST:
        at = tile_list + 4 * (begin + i)
        token = gl.load(at)
        first = gl.load(at + 1)
        rest = gl.load(at + 2)
    else:
        first = begin + i * CHUNK
        token = row_start + first
        rest = end - first
    return token, first, rest


@gluon.jit
def cut_document(tile_list, split, splits, REVERSE: gl.constexpr):
    """The document that continues in the next split (the one before, if REVERSE): where it begins, the range
    of its tokens that lies in this split, and whether there is one."""
    run, chunks = split_tiles(tile_list, split)
    if REVERSE:
        there = chunks > 0
        token, begin, rest = tile_at(gl.where(there, run, 0), tile_list, 0, 0, 0, True)
        row_start = token - begin
        end = begin + gl.minimum(rest, chunks * CHUNK)
    else:
        there = run + chunks < gl.load(tile_list + 4 * splits + 3)
        token, end, _ = tile_at(gl.where(there, run + chunks, 0), tile_list, 0, 0, 0, True)
        row_start = token - end
        begin = gl.maximum(end - chunks * CHUNK, 0)
    return row_start, begin, end, there & (token > row_start)


@gluon.jit
def locate_cut_document(split, tile_list, splits, REVERSE: gl.constexpr):
    """As `locate_split`, for the range that `cut_document` finds."""
    row_start, begin, end, there = cut_document(tile_list, split, splits, REVERSE)
    return 0, 0, row_start, begin, end, gl.where(there, split, -1)


@gluon.jit
def uncut_tiles(tile_list, split, splits):
    """The tiles [begin, end) of a split that belong to documents which are not cut."""
    run, chunks = split_tiles(tile_list, split)
    first, begin, end, before = cut_document(tile_list, split, splits, True)
    cut = gl.where(before, (end - begin + CHUNK - 1) // CHUNK, 0)
    last, begin, end, after = cut_document(tile_list, split, splits, False)
    cut_after = gl.where(after & ~(before & (first == last)), (end - begin) // CHUNK, 0)
    return run + cut, run + chunks - cut_after


@gluon.jit
def locate_part(
    part, cu_seqlens, split_doc, FIRST, split_slot, tile_list, length, splits, split_size,
    IS_VARLEN: gl.constexpr, TILE_LIST: gl.constexpr,
):  # fmt: skip
    """As `locate_split`. TILE_LIST: parts 2 i and 2 i + 1 are those of split i that belong to cut documents
    (only the second, if one document fills the split); the row is the split whose beginning cuts the
    document, and the slot is -1 if there is no such part."""
    if TILE_LIST:
        split = part // 2
        second = part % 2 == 1
        first, begin_first, end_first, before = cut_document(tile_list, split, splits, True)
        last, begin_last, end_last, after = cut_document(tile_list, split, splits, False)
        there = gl.where(second, after, before & ~(after & (first == last)))
        row = split + part % 2
        batch = 0
        row_start = gl.where(second, last, first)
        begin = gl.where(second, begin_last, begin_first)
        end = gl.where(there, gl.where(second, end_last, end_first), begin)
        slot = gl.where(there, part, -1)
    else:
        row, batch, row_start, begin, end, slot = locate_split(
            part, cu_seqlens, split_doc, FIRST, split_slot, length, splits, split_size, IS_VARLEN
        )
    return row, batch, row_start, begin, end, slot
