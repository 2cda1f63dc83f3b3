"""How lines are drawn."""

import pytest

from cosformer.report import plotter
from cosformer.report.document import Figure, Line, Plot, colour_of


def test_every_mechanism_of_a_plot_looks_different():
    names = ["softmax", "cosformer", "windows", "ours", *(f"other {i}" for i in range(9))]
    assert len({colour_of(name, names) for name in names}) == len(names)


def test_what_is_nearly_constant_is_drawn_so():
    """A logarithmic axis spans a factor of four: 10 % more at the end is a small part of its height."""
    points = [(1024.0, 1.0), (131072.0, 1.1)]
    plot = Plot("p", "p", "x", "y", [Line("a", points, 0)], "c", log_x=True, log_y=True)
    figure = plotter._figure(Figure("", [plot], columns=1), {})
    low, high = figure.axes[0].get_ylim()
    assert high / low == pytest.approx(4)
    assert low < 1.0 < 1.1 < high
