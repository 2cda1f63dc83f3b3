"""The rules by which rows are cut for Hopper: never more blocks than are at work at a time, states for every
piece, nothing left out."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper.cutting import CHUNK, SHORTEST, at_work, states_to_keep, to_sum, to_walk
from cosformer.ops.triton.pieces import cut, cut_documents, parts_of

CPU = torch.device("cpu")  # stands for 132 multiprocessors
rows = st.integers(1, 64)
heads = st.sampled_from([1, 2, 3, 12, 16, 32])
lengths = st.integers(1, 70_000)
widths = st.sampled_from([64, 128])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows, heads, lengths, widths)
@example(8, 16, 8192, 64)
@example(4, 16, 16384, 64)
@example(1, 16, 65536, 128)
def test_blocks_fill_the_chip_and_no_more(rows, heads, length, width):
    there, busy = rows * heads, at_work(CPU, width)
    for rule, most in ((to_walk, busy), (to_sum, 2 * busy)):
        size = rule(there, length, CPU, width)
        pieces = cut(rows, length, size)
        assert size % CHUNK == 0
        assert pieces.each * size >= length
        if pieces.each > 1:
            assert pieces.count * heads <= most
            assert size >= min(SHORTEST, length // 2)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows, heads, lengths, widths)
@example(8, 16, 8192, 64)
def test_what_is_kept_is_what_pieces_start_from(rows, heads, length, width):
    """An op says how many before there are any."""
    pieces = cut(rows, length, to_walk(rows * heads, length, CPU, width))
    assert states_to_keep(rows, heads, length, CPU, width) == (0 if pieces.single else pieces.slots)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows, heads, lengths, widths)
@example(4, 16, 16384, 64)
def test_parts_of_pieces_cover_the_same_tokens(rows, heads, length, width):
    pieces = cut(rows, length, to_walk(rows * heads, length, CPU, width))
    parts = parts_of(pieces, heads, 3 * 132)
    small = pieces.divided(parts)
    assert small.size * parts == pieces.size
    assert small.size % CHUNK == 0
    assert small.each == pieces.each * parts
    if not pieces.single:
        assert parts == 1 or (pieces.each - 1) * parts * rows * heads <= 3 * 132


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tables_of_documents_are_of_one_type(dtype):
    """A kernel that is compiled once must not be given bounds of two kinds."""
    pieces = cut_documents(torch.tensor([0, 3, 70, 300], dtype=dtype), 300, 64, every=True)
    assert {table.dtype for table in pieces.tables} == {torch.int32}
