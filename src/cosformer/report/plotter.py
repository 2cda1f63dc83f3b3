"""The one plotter: matplotlib draws every line plot, as SVG in the colours of the page's light or dark style,
or as PNG; and attention maps as pictures. matplotlib is imported when something is drawn."""

import base64
import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosformer.atomic import replace
from cosformer.report.document import Figure, Plot
from cosformer.terminal import seconds, size

WIDTH, HEIGHT = 480, 340
ROWS_OF_NAMES, ROW = 3, 20  # in a legend, for which there is room within the height; and the height of one
POINTS_SHOWN = 24
"""Lines of more points than that have no markers."""
LEAST_RANGE = 4  # from the bottom to the top of a logarithmic axis

# Okabe and Ito's palette, which colour-blind readers can tell apart; on a dark page, lighter shades of it.
LIGHT = ("#d55e00", "#0072b2", "#009e73", "#aa4499", "#b8860b", "#3b8fc4", "#555555", "#882255")
DARK = ("#ff8a3d", "#5db7f5", "#3ddcab", "#e08fd6", "#f0c04a", "#8fd0f5", "#b9b9b9", "#f58ab0")
_NAMES = (*(f"c{i}" for i in range(len(LIGHT))), "paper", "panel", "ink", "muted", "faint", "line", "accent")
THEMES = {
    "light": dict(zip(_NAMES, (*LIGHT, "#ffffff", "#f6f7f9", "#1d2126", "#5a636e", "#9aa3ad", "#e3e6ea",
                               "#b34700"), strict=True)),
    "dark": dict(zip(_NAMES, (*DARK, "#16191d", "#1e2227", "#e8eaed", "#a3abb5", "#6d7681", "#333a42",
                              "#ff9a57"), strict=True)),
}  # fmt: skip
INK, MUTED, FAINT, GRID = (THEMES["light"][name] for name in ("ink", "muted", "faint", "line"))
VARIABLES = {
    theme: " ".join(f"--{name}: {colour};" for name, colour in colours.items())
    for theme, colours in THEMES.items()
}

_SVG = "http://www.w3.org/2000/svg"
ET.register_namespace("", _SVG)
ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def written(value: float, unit: str) -> str:
    """A number in a readable unit: 4K tokens, 12.3 ms, 520 KiB, 2.31."""
    if unit == "tokens":
        return f"{value / 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"
    if unit == "seconds":
        if 0 < value < 1e-4:
            return f"{value * 1e6:.3g} µs" if value >= 1e-6 else f"{value * 1e9:.3g} ns"
        return _short(seconds(value))
    if unit == "bytes":
        return _short(size(value))
    return f"{value:,.0f}" if unit == "count" else f"{value:.4g}"


def _short(words: str) -> str:
    """10.0 ms -> 10 ms."""
    figure, _, unit = words.partition(" ")
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"


def svg(plot: Plot) -> str:
    """An SVG for a page, which defines the colours; each point has a tooltip."""
    import matplotlib

    said: dict[str, str] = {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.name}):
        figure = _figure(Figure("", [plot], columns=1), said)
        file = io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    root = ET.fromstring(file.getvalue())
    for style in root.findall(f"{{{_SVG}}}defs"):  # styles of lines, which the page defines itself
        root.remove(style)
    root.attrib = {
        "class": "plot",
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": plot.title,
    }
    _say(root, plot.title)
    for group in root.iter(f"{{{_SVG}}}g"):
        name = group.attrib.pop("id", "")  # not unique on a page with several plots
        if name in said:
            group.set("class", name.partition(" ")[0])
            _say(group, said[name])
    text = ET.tostring(root, encoding="unicode")
    for name, colour in THEMES["light"].items():
        text = text.replace(colour, f"var(--{name})")
    return text


def standalone(plot: Plot) -> str:
    """An SVG file of its own, for light and dark pages."""
    head, _, rest = svg(plot).partition(">")
    box = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)[0]
    width, height = (round(float(n) * 4 / 3) for n in box)
    light, dark = (f"svg {{ {VARIABLES[theme]} }}" for theme in ("light", "dark"))
    style = f"{light} @media (prefers-color-scheme: dark) {{ {dark} }}"
    return (
        f'{head} width="{width}" height="{height}"><style>{style}</style>'
        f'<rect width="100%" height="100%" rx="6" fill="var(--paper)"/>{rest}\n'
    )


def png(figure: Figure, path: Path) -> None:
    """Several plots in one picture."""
    file = io.BytesIO()
    _figure(figure, {}).savefig(file, format="png", dpi=120)
    replace(path, file.getvalue())


def picture(weights: Sequence[Sequence[float]], colour: int) -> str:
    """A data: address of a PNG with a pixel for each weight between 0 and 1: one colour, the weight as its
    opacity, so that a map is light on a light page and dark on a dark one."""
    import numpy
    from matplotlib.colors import to_rgb
    from matplotlib.image import imsave

    opacity = numpy.asarray(weights).clip(0, 1)
    shades = numpy.empty((*opacity.shape, 4))
    shades[..., :3], shades[..., 3] = to_rgb(LIGHT[colour]), opacity
    file = io.BytesIO()
    imsave(file, shades, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _say(element: ET.Element, words: str) -> None:
    title = ET.Element(f"{{{_SVG}}}title")
    title.text = words
    element.insert(0, title)


def _figure(wanted: Figure, said: dict[str, str]) -> Any:
    """Draws a figure; the tooltips of lines and points go to `said`, by the id of their SVG group."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    plots = wanted.plots
    columns = min(wanted.columns, len(plots))
    rows = -(-len(plots) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)  # inches
    canvas = Canvas(figsize=(WIDTH * columns / 72, HEIGHT * rows / 72), dpi=72, layout=layout)
    axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for axis, plot in zip(axes, plots, strict=False):
        if len(plots) > 1:
            axis.set_title(plot.title, loc="left", fontsize=13, color=INK)
        _draw(axis, plot, said)
    for axis in axes[len(plots) :]:
        axis.set_visible(False)
    _legend(canvas, axes[: len(plots)], wanted.heading)
    return canvas


def _draw(axis: Any, plot: Plot, said: dict[str, str]) -> None:
    lines = [line for line in plot.lines if line.points]
    if not lines:
        raise ValueError(f"plot {plot.name!r} has no points.")
    guides = 0
    for number, line in enumerate(lines):
        xs, ys = zip(*line.points, strict=True)
        name = f"line {number}"
        said[name] = line.name
        if line.colour < 0:
            guides += 1
            axis.plot(xs, ys, color=FAINT, lw=1.2, ls=("--", ":")[guides % 2], label=line.name, gid=name)
            continue
        colour, style = LIGHT[line.colour % len(LIGHT)], ("-", "--", ":")[line.colour // len(LIGHT) % 3]
        axis.plot(xs, ys, color=colour, lw=2.2, ls=style, label=line.name, gid=name, solid_capstyle="round")
        for i, (x, y) in enumerate(line.points if len(line.points) <= POINTS_SHOWN else ()):
            name = f"point {number}.{i}"
            said[name] = f"{line.name}, {written(x, plot.x_unit)}: {written(y, plot.y_unit)}"
            axis.plot([x], [y], color=colour, marker="o", ms=7, mew=0, gid=name)
    axis.margins(x=0.03, y=0.06)
    if plot.log_y:
        values = [y for line in lines for _, y in line.points]
        low, high = min(values), max(values)
        if low > 0 and high < LEAST_RANGE * low:  # else what is constant would look as if it grew
            middle = math.sqrt(low * high)
            axis.set_ylim(middle / math.sqrt(LEAST_RANGE), middle * math.sqrt(LEAST_RANGE))
    _scale(axis.xaxis, axis.set_xscale, axis.get_xlim, plot.log_x, plot.x_unit, 7)
    _scale(axis.yaxis, axis.set_yscale, axis.get_ylim, plot.log_y, plot.y_unit, 6)
    axis.set_xlabel(plot.x_label, fontsize=13, color=INK, labelpad=6)
    axis.set_ylabel(plot.y_label, fontsize=13, color=INK, labelpad=6)
    axis.tick_params(labelsize=13, labelcolor=MUTED, color=FAINT, pad=6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)
    axis.spines[["top", "left", "right"]].set_visible(False)
    axis.spines["bottom"].set_color(FAINT)
    for artist in axis.findobj():
        artist.set_clip_on(False)


def _scale(axis: Any, set_scale: Any, limits: Any, log: bool, unit: str, most: int) -> None:
    """At most `most` ticks at round values of the unit; a log scale over a narrow range gets those of a
    linear one."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    locators: list[Any] = [MaxNLocator(most - 1)]
    if log:
        set_scale("log")
        base = 2 if unit in ("tokens", "bytes") else 10
        finer = [] if base == 2 else [LogLocator(10, subs=(1, 2, 5), numticks=most)]
        locators = [LogLocator(base, numticks=most), *finer, *locators]
    low, high = limits()
    for locator in locators:
        ticks = [float(t) for t in locator.tick_values(low, high) if low <= t <= high]
        if len(ticks) >= 3:
            break
    axis.set_ticks(ticks, [written(t, unit) for t in ticks])
    axis.minorticks_off()


def _legend(canvas: Any, axes: Sequence[Any], heading: str) -> None:
    """Every name once, above the picture, in as few rows as fit; many make it taller, not the plots lower."""
    known = {
        name: line for axis in axes for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    for columns in range(len(known), 0, -1):
        legend = canvas.legend(
            known.values(), known, loc="outside upper left", ncols=columns, frameon=False, fontsize=13,
            labelcolor=INK, handlelength=1.2, columnspacing=1.2, handletextpad=0.4, borderpad=0.1,
            title=heading, alignment="left", title_fontproperties={"size": 15, "weight": "bold"},
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= 0.98 * canvas.bbox.width:
            more = max(0, -(-len(known) // columns) - ROWS_OF_NAMES)
            canvas.set_figheight(canvas.get_figheight() + more * ROW / 72)
            return
        legend.remove()
