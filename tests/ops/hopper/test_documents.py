"""Documents as one list of tiles: every token is in it once, with its place in its document; and what a
piece starts from is the sum of its first document's part in the pieces before."""

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
}
cases = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)


def listed(bounds):
    """The list as the kernels make it, without what is behind its end."""
    from cosformer.ops.hopper.documents import count_tiles, list_tiles

    cu = torch.tensor(bounds, device=DEVICE)
    documents = len(bounds) - 1
    most = bounds[-1] // 64 + documents
    first = torch.full((documents + 1,), -1, dtype=torch.int32, device=DEVICE)
    tiles = torch.full((most + 2, 4), -1, dtype=torch.int32, device=DEVICE)
    count_tiles[(1,)](cu, first, documents, CHUNK=64, BLOCK=16)
    list_tiles[(-(-most // 16),)](cu, first, tiles, documents, CHUNK=64, BLOCK=16)
    total = int(tiles[0, 0])
    assert (tiles[total + 1 :] == -1).all()
    return tiles, tiles[1 : total + 1, :3].tolist()


@cases
def test_the_list(bounds):
    expected = [
        [token, token - begin, end - token]
        for begin, end in zip(bounds, bounds[1:], strict=False)
        for token in range(begin, end, 64)
    ]
    assert listed(bounds)[1] == expected


@cases
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_what_a_piece_starts_from(pieces, backwards, bounds):
    from cosformer.ops.hopper.documents import chain

    tiles, expected = listed(bounds)
    each = -(-len(expected) // pieces)
    runs = [expected[i * each : (i + 1) * each] for i in range(pieces)]
    worth = torch.rand(len(expected), 2, 5, device=DEVICE)  # the state of each tile
    documents = torch.tensor([token - before for token, before, _ in expected])

    def sums(piece, document):
        here = (documents == document) & (torch.arange(len(expected)) // each == piece)
        return worth[here].sum(0)

    states = torch.full((pieces, 2, 5), torch.nan, device=DEVICE)
    truth = torch.zeros(pieces, 2, 5, device=DEVICE)
    for p, run in enumerate(runs):
        beside = p - 1 if backwards else p + 1
        if not run or not 0 <= beside < pieces or not runs[beside]:
            continue
        token, before, _ = (run if backwards else runs[beside])[0]
        if before == 0:
            continue
        document = token - before
        states[p] = sums(p, document)
        beyond = range(p, pieces) if backwards else range(p + 1)
        truth[beside] = sum(sums(i, document) for i in beyond)
    chain[(2 * 2,)](
        states, tiles, pieces, HEADS=2, SIZE=5, BACKWARDS=backwards, CHUNK=64, MOST=8, BLOCK=4
    )  # fmt: skip
    torch.testing.assert_close(states, truth)
