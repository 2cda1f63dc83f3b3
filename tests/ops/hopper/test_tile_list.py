"""Documents as one list of tiles: every token is in it once, with its position in its document; and the state
a split starts from is the sum of its first document's parts in the splits before."""

from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (there are none for this platform)")

from cosformer.ops.hopper import support

WRONG = support._wrong_triton(support._TRITON)
pytestmark = pytest.mark.skipif(WRONG is not None, reason=f"hopper: {WRONG}")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUNDS = {
    "one": [0, 1000],
    "of everything": [0, 0, 640, 640],
    "odd": [0, 1, 64, 128, 193, 193, 193, 320, 1000],
    "short": list(range(0, 700, 3)),
    "long": [0, 700, 1000, 1100, 2300, 2304, 3000, 4700],
    "near and far": [0, 64 * 35, 64 * 58, 64 * 90],  # 5 and 2 tiles from splits of 30 tiles; the limit is 4
}
cases = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)


def listed(bounds, splits):
    """The list as the kernels write it, its tiles, and where the splits begin."""
    from cosformer.ops.hopper.partition import tile_list_rows
    from cosformer.ops.hopper.tile_list import count_tiles, list_tiles

    cu = torch.tensor(bounds, device=DEVICE)
    documents = len(bounds) - 1
    length = tile_list_rows(bounds[-1], documents)
    first = torch.full((documents + 1,), -1, dtype=torch.int32, device=DEVICE)
    buffer = torch.full((length + 16, 4), -1, dtype=torch.int32, device=DEVICE)
    count_tiles[(1,)](cu, first, None, documents, CHUNK=64, BLOCK=4, DOCS_PER_LANE=3)
    programs = -(-length // 16)
    list_tiles[(programs + 1,)](
        cu, first, buffer, None, documents, length, splits, programs, bounds[-1], CHUNK=64, BLOCK=16
    )
    tiles = buffer[:length]
    begins = tiles[: splits + 1, 3].tolist()
    # The list is kept for a backward: every element of it is written.
    assert (tiles[begins[-1] :, :3] == 0).all()
    assert (tiles[splits + 1 :, 3] == 0).all()
    assert (buffer[length:] == -1).all()
    return tiles, tiles[: begins[-1], :3].tolist(), begins


@cases
def test_the_list(bounds):
    expected = [
        [token, token - begin, end - token]
        for begin, end in pairwise(bounds)
        for token in range(begin, end, 64)
    ]
    _, tiles, begins = listed(bounds, 3)
    assert tiles == expected
    each = -(-len(tiles) // 3)
    assert begins[0] == 0
    assert begins[3] == len(tiles)
    for i, begin in enumerate(begins[1:3], 1):
        even = min(i * each, len(tiles))
        limit = (max(1, each // 8, min(each // 4, 7)) + 1) // 2
        starts = [t for t, (_, before, _) in enumerate(tiles) if before == 0] + [len(tiles)]
        nearest = min(abs(t - even) for t in starts)
        assert abs(begin - even) == (nearest if nearest <= limit else 0)
        assert begin in starts or nearest > limit
    assert begins == sorted(begins)


@cases
def test_neighbours_of_one_tile_are_a_group(bounds):
    """As long as they fit into a tile, and four documents long; they have no tile in the other list."""
    from cosformer.ops.hopper.tile_list import count_tiles

    cu, documents = torch.tensor(bounds, device=DEVICE), len(bounds) - 1
    first = torch.full((documents + 1,), -1, dtype=torch.int32, device=DEVICE)
    groups = torch.full((2, documents + 1, 2), -1, dtype=torch.int32, device=DEVICE)
    count_tiles[(1,)](cu, first, groups, documents, CHUNK=64, BLOCK=2, DOCS_PER_LANE=4)
    lengths = [end - begin for begin, end in pairwise(bounds)]
    tiles = [0 if n <= 64 else -(-n // 64) for n in lengths]
    assert first.tolist() == [sum(tiles[:i]) for i in range(documents + 1)]
    alone = [(begin, n) for begin, n in zip(bounds, lengths, strict=False) if 0 < n <= 64]
    shared: list[tuple[int, int]] = []
    for i, (begin, end) in enumerate(pairwise(bounds)):
        if not 0 < end - begin <= 64:
            continue
        joined = shared and shared[-1][0] >= bounds[i // 4 * 4] and sum(shared[-1]) == begin
        if joined and end - shared[-1][0] <= 64:
            begin = shared.pop()[0]
        shared.append((begin, end - begin))
    for expected, found in ((shared, groups[0]), (alone, groups[1])):
        assert found[: len(expected)].tolist() == [list(group) for group in expected]
    # Documents alone are only done if a group held NaN.
    assert groups[:, documents].tolist() == [[len(shared), groups[0, documents, 1]], [0, len(alone)]]


@cases
def test_where_the_document_of_each_token_begins_and_ends(bounds):
    from cosformer.ops.hopper.tile_list import list_tiles

    cu, documents, tokens = torch.tensor(bounds, device=DEVICE), len(bounds) - 1, bounds[-1]
    first, tiles = (torch.zeros(n, dtype=torch.int32, device=DEVICE) for n in (documents + 1, 64))
    found = torch.full((tokens + 16, 2), -1, dtype=torch.int32, device=DEVICE)
    list_tiles[(2 - -tokens // 16,)](
        cu, first, tiles, found, documents, 16, 3, 1, tokens, CHUNK=64, BLOCK=16
    )  # fmt: skip
    assert found[:tokens].tolist() == [
        [begin, end] for begin, end in pairwise(bounds) for _ in range(begin, end)
    ]
    assert (found[tokens:] == -1).all()


@cases
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("splits", [2, 3, 8])
def test_the_state_a_split_starts_from(splits, reverse, bounds):
    from cosformer.ops.hopper.tile_list import tile_list_state_scan

    tiles, expected, begins = listed(bounds, splits)
    runs = [expected[a:b] for a, b in pairwise(begins)]
    owner = torch.tensor([p for p, run in enumerate(runs) for _ in run])
    tile_states = torch.rand(len(expected), 2, 5, device=DEVICE)
    documents = torch.tensor([token - before for token, before, _ in expected])

    def sums(split, document):
        return tile_states[(documents == document) & (owner == split)].sum(0)

    states, truth = torch.full((2, splits, 2, 5), torch.nan, device=DEVICE)
    for p, run in enumerate(runs):
        beside = p - 1 if reverse else p + 1
        if not run or not 0 <= beside < splits or not runs[beside]:
            continue
        token, before, _ = (run if reverse else runs[beside])[0]
        if before == 0:
            continue
        document = token - before
        states[p] = sums(p, document)  # what `chunk_state` leaves there
        beyond = range(p, splits) if reverse else range(p + 1)
        truth[beside] = sum(sums(i, document) for i in beyond)
    tile_list_state_scan[(2 * 2,)](
        states, tiles, splits, HEADS=2, SIZE=5, REVERSE=reverse, CHUNK=64, MAX_SPLITS=8, BLOCK=4
    )  # fmt: skip
    needed = ~truth.isnan()
    torch.testing.assert_close(states[needed], truth[needed])


@cases
@pytest.mark.parametrize("splits", [2, 3, 8])
def test_the_whole_of_a_cut_document(splits, bounds):
    from cosformer.ops.hopper.tile_list import tile_list_state_sum

    tiles, expected, begins = listed(bounds, splits)
    runs = [expected[a:b] for a, b in pairwise(begins)]
    tile_states = torch.rand(len(expected), 2, 5, device=DEVICE)
    documents = [token - before for token, before, _ in expected]
    cut = {documents[b] for b in begins[1:-1] if b < len(expected) and expected[b][1] > 0}
    parts = torch.full((2 * splits, 2, 5), torch.nan, device=DEVICE)
    for p, run in enumerate(runs):
        for document in {token - before for token, before, _ in run} & cut:
            here = [i for i in range(begins[p], begins[p + 1]) if documents[i] == document]
            goes_on = begins[p + 1] < len(expected) and documents[begins[p + 1]] == document
            parts[2 * p + goes_on] = tile_states[here].sum(0)
    sums = torch.full((splits, 2, 5), torch.nan, device=DEVICE)
    tile_list_state_sum[(2 * 2,)](
        parts, sums, tiles, splits, HEADS=2, SIZE=5, CHUNK=64, MAX_SPLITS=8, BLOCK=4
    )
    for p, begin in enumerate(begins[:-1]):
        if begin < len(expected) and expected[begin][1] > 0:
            whole = [i for i, d in enumerate(documents) if d == documents[begin]]
            torch.testing.assert_close(sums[p], tile_states[whole].sum(0))
        else:
            assert sums[p].isnan().all()
