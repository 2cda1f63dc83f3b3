"""Ways to compute a long convolution: each is right, or is not timed."""

import sys

import pytest
import torch

from benchmarks import long_convolution

SMALL = ["--device", "cpu", "--lengths", "40", "--channels", "8", "--size", "19"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "way", [long_convolution.transform, long_convolution.products, long_convolution.cudnn]
)
def test_ways_are_right(way, dtype):
    x = long_convolution.inputs(2, 40, 8, 19, dtype, torch.device("cpu"))
    assert long_convolution.worst(way, *x) <= long_convolution.ALLOWED


def test_what_is_wrong_is_not_timed(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda way: way)
    monkeypatch.setattr(long_convolution, "ROWS", 2)
    monkeypatch.setattr(
        long_convolution, "cudnn", lambda x, weight: long_convolution.exact(x, weight).roll(1, 1)
    )
    monkeypatch.setattr(sys, "argv", ["", *SMALL])
    long_convolution.main()
    said = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[3].strip(",") for line in said if "not" in line] == ["cudnn"] * 4
    assert len(said) == 12


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--lengths", "64,x", "--lengths must be positive numbers with commas between them, but got '64,x'"),
        ("--channels", "0", "--channels must be positive numbers"),
        ("--size", "4", "--size must be odd and positive, but got 4"),
    ],
)
def test_mistakes(option, value, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", *SMALL, option, value])
    with pytest.raises(SystemExit) as left:
        long_convolution.main()
    assert left.value.code == 2
    assert says in capsys.readouterr().err
