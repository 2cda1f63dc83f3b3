"""Each kind of position: its equation, and what a mistake says."""

import math

import pytest
import torch

from cosformer import positions

OFFERED = {"hidden_size": 12, "head_dim": 6, "max_length": 40}


def rotate(kind, heads, at):
    turn = kind.rotation(at)
    return heads if turn is None else turn(heads)


@pytest.mark.parametrize("name", positions.names())
def test_positions_are_explicit(name):
    """A token gets what its own position says, wherever in the tensor it lies."""
    kind = positions.fit(name, {}, **OFFERED).double()
    at = torch.tensor([[0, 1, 2, 0, 1], [7, 8, 9, 10, 39]])
    x, heads = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 5, 3, 6, dtype=torch.float64)
    embedded, rotated = kind.embed(x, at), rotate(kind, heads, at)
    assert embedded.shape == x.shape
    assert rotated.shape == heads.shape
    for b, t in ((0, 3), (1, 4)):
        one = at[b : b + 1, t : t + 1]
        torch.testing.assert_close(kind.embed(x[b, t][None, None], one)[0, 0], embedded[b, t])
        torch.testing.assert_close(rotate(kind, heads[b, t][None, None], one)[0, 0], rotated[b, t])


def test_none_changes_nothing():
    x, at = torch.randn(1, 3, 12), torch.arange(3)[None]
    kind = positions.build("none")
    assert torch.equal(kind.embed(x, at), x)
    assert kind.rotation(at) is None


def test_sinusoidal_is_the_papers():
    at = torch.tensor([[0, 1, 500]])
    table = positions.build("sinusoidal").embed(torch.zeros(1, 3, 7, dtype=torch.float64), at)[0]
    for row, i in zip(table, at[0].tolist(), strict=True):
        for c in range(7):
            wave = i / 10_000 ** ((c - c % 2) / 7)
            assert row[c].item() == pytest.approx(math.cos(wave) if c % 2 else math.sin(wave), abs=1e-12)


def test_learned_adds_its_table():
    kind = positions.build("learned", hidden_size=4, max_length=9)
    out = kind.embed(torch.zeros(1, 2, 4), torch.tensor([[8, 3]]))
    assert torch.equal(out[0], kind.table.weight[[8, 3]])


def test_rotary_products_depend_on_the_distance():
    kind = positions.build("rotary", head_dim=8)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def product(i, j):
        return (rotate(kind, q, torch.tensor([[i]])) * rotate(kind, k, torch.tensor([[j]]))).sum()

    torch.testing.assert_close(product(9, 4), product(1005, 1000), rtol=1e-9, atol=1e-9)
    assert abs(product(9, 4) - product(9, 5)) > 1e-3


def test_rotary_turns_pairs_by_the_papers_angles():
    kind = positions.build("rotary", head_dim=4, base=100.0)
    out = rotate(kind, torch.tensor([1.0, 1.0, 0.0, 0.0]).view(1, 1, 1, 4), torch.tensor([[3]])).flatten()
    expected = [math.cos(3), math.cos(0.3), math.sin(3), math.sin(0.3)]
    torch.testing.assert_close(out, torch.tensor(expected))


def test_large_positions_keep_their_angles_in_half_precision():
    heads, at = torch.ones(1, 1, 1, 8), torch.tensor([[65_000]])
    kind = positions.build("rotary", head_dim=8)
    half = rotate(kind, heads.bfloat16(), at).double()
    torch.testing.assert_close(half, rotate(kind, heads.double(), at), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("absolute", {}, "position must be one of learned, none, rotary, sinusoidal, stochastic"),
        ("rotary", {"head_dim": 7}, "head_dim must be even"),
        ("rotary", {}, "position 'rotary' needs a value for head_dim"),
        ("rotary", {"head_dim": 8, "base": 0}, "base must be a positive finite number"),
        ("learned", {"hidden_size": 4, "max_length": 0}, "max_length must be a positive int"),
        ("none", {"base": 3}, "position 'none' has no parameter 'base'; it takes none"),
        ("sinusoidal", {"bass": 3}, "position 'sinusoidal' has no parameter 'bass'; it takes base"),
    ],
)
def test_mistakes(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        positions.build(name, **parameters)
