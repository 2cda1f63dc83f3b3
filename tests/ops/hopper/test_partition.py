"""How rows are split on Hopper: never more CTAs than are resident, a state for every split, no token left
out."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.gpu.partition import MIN_SPLIT_TOKENS, split_documents, split_rows, state_subdivision
from cosformer.ops.hopper.partition import (
    CHUNK,
    chunk_split_size,
    resident_ctas,
    state_split_size,
    states_to_keep,
)

CPU = torch.device("cpu")  # stands for 132 SMs
rows = st.integers(1, 64)
heads = st.sampled_from([1, 2, 3, 12, 16, 32])
lengths = st.integers(1, 70_000)
widths = st.sampled_from([64, 128])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows, heads, lengths, widths)
@example(8, 16, 8192, 64)
@example(4, 16, 16384, 64)
@example(1, 16, 65536, 128)
def test_ctas_fill_the_gpu_and_no_more(rows, heads, length, width):
    ctas, resident = rows * heads, resident_ctas(CPU, width)
    for rule, most in ((chunk_split_size, resident), (state_split_size, 2 * resident)):
        size = rule(ctas, length, CPU, width)
        splits = split_rows(rows, length, size)
        assert size % CHUNK == 0
        assert splits.per_row * size >= length
        if splits.per_row > 1:
            assert splits.count * heads <= most
            assert size >= min(MIN_SPLIT_TOKENS, length // 2)


@pytest.mark.parametrize(
    ("ctas", "length", "count"),
    [(2, 65536, 64), (1, 2**20, 256), (16, 65536, 33), (16, 8192, 32), (1, 8192, 32), (64, 2048, 8)],
)
def test_states_that_are_summed_one_after_the_other(ctas, length, count):
    """Two heads of 65,536 tokens had 256 each."""
    size = state_split_size(ctas, length, CPU, 64)
    assert -(-length // size) <= count
    assert -(-length // (size - CHUNK)) > count or size == MIN_SPLIT_TOKENS


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows, heads, lengths, widths)
@example(8, 16, 8192, 64)
def test_as_many_states_are_kept_as_there_are_splits(rows, heads, length, width):
    """The op computes the number before there are any."""
    splits = split_rows(rows, length, chunk_split_size(rows * heads, length, CPU, width))
    assert states_to_keep(rows, heads, length, CPU, width) == (0 if splits.one_per_row else splits.slots)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows, heads, lengths, widths)
@example(4, 16, 16384, 64)
def test_subdivided_splits_cover_the_same_tokens(rows, heads, length, width):
    splits = split_rows(rows, length, chunk_split_size(rows * heads, length, CPU, width))
    factor = state_subdivision(splits, heads, 3 * 132)
    smaller = splits.subdivided(factor)
    assert smaller.size * factor == splits.size
    assert smaller.size % CHUNK == 0
    assert smaller.per_row == splits.per_row * factor
    if not splits.one_per_row:
        assert factor == 1 or (splits.per_row - 1) * factor * rows * heads <= 3 * 132


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tables_of_documents_are_of_one_type(dtype):
    """A kernel that is compiled once must not be given bounds of two types."""
    splits = split_documents(torch.tensor([0, 3, 70, 300], dtype=dtype), 300, 64, every_state=True)
    assert {table.dtype for table in splits.tables} == {torch.int32}
