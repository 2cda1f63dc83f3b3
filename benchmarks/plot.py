"""Log-log pictures of time and memory against length. matplotlib is only needed here."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contenders import MODES
from benchmarks.report import machine_words, shape_words
from benchmarks.targets import PHASE, Results

# Okabe and Ito's palette, which colour-blind readers can tell apart; one colour per contender.
COLOURS = {
    "cosformer": "#D55E00",
    "sdpa": "#0072B2",
    "authors": "#009E73",
    "fast-transformers": "#AA4499",
    "causal_dot_product": "#CC79A7",
}
OTHERS = ("#E69F00", "#56B4E9", "#000000")

End = tuple[int, float, str, str, bool]  # where a line ends (x, y), its title, colour, and if it is ours


@dataclass
class Line:
    name: str
    title: str
    points: list[tuple[int, float]]


@dataclass
class Panel:
    title: str
    unit: str
    lines: list[Line] = field(default_factory=list)


def _line(results: Results, name: str, value: Callable[[int], float | None]) -> Line:
    points = [(t, found) for t in results.settings["lengths"] if (found := value(t)) is not None]
    return Line(name, results.data["contenders"][name], points)


def panels(data: dict[str, Any]) -> list[Panel]:
    """Time, causal and bidirectional, and causal peak memory: whichever the record has points for."""
    results = Results(data)
    raced = [name for name in data["contenders"] if name != "cosformer[reference]"]  # a judge, no rival
    found = []
    for mode in MODES:
        lines = [_line(results, n, partial(results.time, n, mode)) for n in raced]
        found.append(Panel(f"{mode.capitalize()}: time, {PHASE}", "seconds", lines))
    lines = [_line(results, n, partial(results.extra, n, "causal")) for n in raced]
    for line in lines:
        line.points = [(t, y / 2**20) for t, y in line.points]
    found.append(Panel("Causal: peak extra memory", "MiB", lines))
    for panel in found:
        panel.lines = [line for line in panel.lines if line.points]
    return [panel for panel in found if panel.lines]


def draw(data: dict[str, Any], path: Path) -> bool:
    """Writes the picture; False where there is nothing to draw. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = panels(data)
    if not drawn:
        return False
    width = 5.6 * len(drawn)
    figure, axes = plt.subplots(1, len(drawn), figsize=(width, 4.9), squeeze=False, layout="constrained")
    colours = _colours(list(data["contenders"]))
    ends = [_panel(axis, panel, colours) for axis, panel in zip(axes[0], drawn, strict=True)]
    figure.suptitle("Attention against sequence length", x=0.01, ha="left", fontsize=13, fontweight="bold")
    settings = f"{shape_words(data['settings'])} · {machine_words(data)}"
    figure.supxlabel(settings, x=0.01, ha="left", fontsize=8.5, color="#666666")
    figure.draw_without_rendering()  # only now is it known where a point lies on the page
    for axis, names in zip(axes[0], ends, strict=True):
        _labels(axis, names)
    figure.savefig(path, dpi=160)
    plt.close(figure)
    return True


def _panel(axis: Any, panel: Panel, colours: dict[str, Any]) -> list[End]:
    """Draws everything but the names, and says where those belong."""
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ends = []
    for line in panel.lines:
        colour = colours[line.name]
        ours = line.name == "cosformer"
        xs, ys = zip(*line.points, strict=True)
        axis.plot(
            xs, ys, color=colour, marker="o", markersize=5 if ours else 3.5, lw=2.6 if ours else 1.6,
            zorder=4 if ours else 3, solid_capstyle="round",
        )  # fmt: skip
        ends.append((xs[-1], ys[-1], line.title, colour, ours))
    lengths = sorted({x for line in panel.lines for x, _ in line.points})
    # Room on the right for the names of the lines.
    octaves = max(1.0, math.log2(lengths[-1] / lengths[0]))
    axis.set_xlim(lengths[0] / 1.2, lengths[-1] * 2 ** (0.42 * octaves))
    _guides(axis, panel)
    axis.margins(y=0.08)
    axis.set_xticks(lengths, [f"{x // 1024}K" if x % 1024 == 0 else str(x) for x in lengths])
    axis.minorticks_off()
    axis.set_title(panel.title, loc="left", fontsize=11)
    axis.set_xlabel("tokens")
    axis.yaxis.set_major_formatter(_seconds if panel.unit == "seconds" else _mebibytes)
    axis.grid(True, color="#ECECEC", lw=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return ends


def _colours(names: list[str]) -> dict[str, Any]:
    """One colour a contender, the same in every panel; many need more than the palette has."""
    others = [n for n in names if n not in COLOURS]
    if len(others) <= len(OTHERS):
        return COLOURS | dict(zip(others, OTHERS, strict=False))
    import matplotlib

    shades = matplotlib.colormaps["tab20"]
    return COLOURS | {name: shades(i % 20) for i, name in enumerate(others)}


def _seconds(value: float, _: object) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} µs"


def _mebibytes(value: float, _: object) -> str:
    return f"{value:,g} MiB" if value < 1e6 else f"{value:.0e} MiB"


def _guides(axis: Any, panel: Panel) -> None:
    """Faint lines of slope one under ours and slope two over softmax: the eye need not guess."""
    wanted = [("cosformer", 1, 1 / 2.8, "∝ T")]
    if panel.unit == "seconds":
        wanted = [("cosformer", 1, 1 / 1.8, "∝ T"), ("sdpa", 2, 1.8, "∝ T²")]
    for line in panel.lines:
        for name, power, shift, says in wanted:
            if line.name != name:
                continue
            (x0, _), (x1, y1) = line.points[-min(4, len(line.points))], line.points[-1]
            y1 *= shift
            y0 = y1 * (x0 / x1) ** power
            axis.plot([x0, x1], [y0, y1], color="#8A8A8A", lw=1.1, ls=(0, (4, 3)), zorder=2)
            middle = ((x0 * x1) ** 0.5, (y0 * y1) ** 0.5)
            below = shift < 1
            axis.annotate(
                says, middle, xytext=(4, -4) if below else (-4, 4), textcoords="offset points", fontsize=9,
                color="#6A6A6A", ha="left" if below else "right", va="top" if below else "bottom",
            )  # fmt: skip


def _labels(axis: Any, ends: list[End]) -> None:
    """Names to the right of the lines' last points, moved apart where they would overlap."""
    from matplotlib.patheffects import withStroke

    height, width = 13.0, 6.2  # of a line and of a character, in points
    to_points = 72 / axis.figure.dpi
    placed: list[tuple[float, float]] = []  # where names of longer lines begin
    for column in sorted({end[0] for end in ends}, reverse=True):
        own = sorted((end for end in ends if end[0] == column), key=lambda end: end[1])
        at = [[float(c) * to_points for c in axis.transData.transform((x, y))] for x, y, *_ in own]
        targets = _apart([place for _, place in at], height)
        for (x, y, title, colour, ours), (left, place), target in zip(own, at, targets, strict=True):
            reach = left + width * len(title)
            free = all(reach < other or abs(target - taken) >= height for other, taken in placed)
            axis.annotate(
                title, (x, y), xytext=(8 if free else -8, target - place), textcoords="offset points",
                va="center", ha="left" if free else "right", fontsize=9, color=colour,
                fontweight="bold" if ours else "normal", zorder=5,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip
        placed += [(left, target) for (left, _), target in zip(at, targets, strict=True)]


def _apart(wanted: list[float], height: float) -> list[float]:
    """The ascending places nearest to those wanted (in squares) that are at least `height` apart: neighbours
    that come too close share the mean of what they want."""
    groups: list[tuple[float, int]] = []  # mean and size, in places less what those below take up
    for i, place in enumerate(wanted):
        mean, count = place - i * height, 1
        while groups and groups[-1][0] > mean:
            below, more = groups.pop()
            mean, count = (mean * count + below * more) / (count + more), count + more
        groups.append((mean, count))
    means = [mean for mean, count in groups for _ in range(count)]
    return [mean + i * height for i, mean in enumerate(means)]
