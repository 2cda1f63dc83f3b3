"""Line plots as SVG, by hand: no library, no script, colours from the page's own light or dark style."""

from collections.abc import Sequence
from html import escape

from cosformer.report.document import Line, Plot
from cosformer.report.scales import Scale, fitted, ticks, written

WIDTH, HEIGHT = 480, 340
LEFT, RIGHT, TOP, BOTTOM = 84, 14, 14, 48
LETTER = 7.4  # the width of a character of the legend, roughly
ROW = 20

# Okabe and Ito's palette, which colour-blind readers can tell apart; on a dark page, lighter shades of it.
LIGHT = ("#d55e00", "#0072b2", "#009e73", "#aa4499", "#b8860b", "#3b8fc4", "#555555", "#882255")
DARK = ("#ff8a3d", "#5db7f5", "#3ddcab", "#e08fd6", "#f0c04a", "#8fd0f5", "#b9b9b9", "#f58ab0")

STYLE = """
.plot text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.plot .axis { stroke: var(--faint); stroke-width: 1; }
.plot .grid { stroke: var(--line); stroke-width: 1; }
.plot path { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.plot .muted { fill: var(--muted); }
"""


def variables(colours: Sequence[str], **others: str) -> str:
    named = {f"c{i}": colour for i, colour in enumerate(colours)} | others
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


LIGHT_VARIABLES = variables(
    LIGHT, paper="#ffffff", panel="#f6f7f9", ink="#1d2126", muted="#5a636e", faint="#9aa3ad", line="#e3e6ea",
    accent="#b34700",
)  # fmt: skip
DARK_VARIABLES = variables(
    DARK, paper="#16191d", panel="#1e2227", ink="#e8eaed", muted="#a3abb5", faint="#6d7681", line="#333a42",
    accent="#ff9a57",
)  # fmt: skip


def draw(plot: Plot) -> str:
    """The picture inside a page, which brings STYLE and the variables."""
    lines = [line for line in plot.lines if line.points]
    if not lines:
        raise ValueError(f"plot {plot.name!r} has no points.")
    legend, top = _legend(lines)
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x = fitted(xs, LEFT, WIDTH - RIGHT, plot.log_x, 0.03)
    y = fitted(ys, HEIGHT - BOTTOM, top, plot.log_y)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'aria-label="{escape(plot.title)}">',
        f"<title>{escape(plot.title)}</title>",
        *_axes(plot, x, y),
        *(_line(plot, line, x, y) for line in lines),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts)


def standalone(plot: Plot) -> str:
    """A file of its own, that looks right on light and on dark pages."""
    drawn = draw(plot)
    head, _, rest = drawn.partition("\n")
    head = head.replace("<svg ", f'<svg width="{WIDTH * 4 // 3}" height="{HEIGHT * 4 // 3}" ', 1)
    background = '<rect width="100%" height="100%" rx="6" fill="var(--paper)"/>'
    style = (
        f"<style>svg {{ {LIGHT_VARIABLES} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {DARK_VARIABLES} }} }} {STYLE}</style>"
    )
    return f"{head}\n{style}\n{background}\n{rest}\n"


def _axes(plot: Plot, x: Scale, y: Scale) -> list[str]:
    parts = []
    for value in ticks(y, 6, plot.y_unit):
        at = f"{y.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(
            f'<text class="muted" x="{LEFT - 7}" y="{at}" dy="0.35em" text-anchor="end">'
            f"{escape(written(value, plot.y_unit))}</text>"
        )
    base = HEIGHT - BOTTOM
    for value in ticks(x, 7, plot.x_unit):
        at = f"{x.at(value):.1f}"
        parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{base}" y2="{base + 5}"/>')
        parts.append(
            f'<text class="muted" x="{at}" y="{base + 20}" text-anchor="middle">'
            f"{escape(written(value, plot.x_unit))}</text>"
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(plot.x_label)}</text>')
    high = (y.begin + y.end) / 2
    parts.append(
        f'<text x="14" y="{high:.0f}" text-anchor="middle" transform="rotate(-90 14 {high:.0f})">'
        f"{escape(plot.y_label)}</text>"
    )
    return parts


def _line(plot: Plot, line: Line, x: Scale, y: Scale) -> str:
    at = [(x.at(a), y.at(b)) for a, b in line.points]
    path = "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in at)
    colour = f"var(--c{line.colour})"
    name = escape(line.name)
    parts = [f'<g><path d="{path}" style="stroke: {colour}"><title>{name}</title></path>']
    if len(at) <= 24:
        for (a, b), (px, py) in zip(line.points, at, strict=True):
            said = f"{line.name}, {written(a, plot.x_unit)}: {written(b, plot.y_unit)}"
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.6" style="fill: {colour}">'
                f"<title>{escape(said)}</title></circle>"
            )
    return "".join(parts) + "</g>"


def _legend(lines: Sequence[Line]) -> tuple[list[str], float]:
    """Names above the picture, in as many rows as they need; and where the picture may begin."""
    parts, left, row = [], float(LEFT), 0
    for line in lines:
        wide = 26 + LETTER * len(line.name)
        if left > LEFT and left + wide > WIDTH - RIGHT:
            left, row = float(LEFT), row + 1
        y = TOP + row * ROW
        parts.append(
            f'<line x1="{left:.0f}" x2="{left + 16:.0f}" y1="{y}" y2="{y}" '
            f'style="stroke: var(--c{line.colour}); stroke-width: 3"/>'
            f'<text x="{left + 21:.0f}" y="{y}" dy="0.35em">{escape(line.name)}</text>'
        )
        left += wide + 12
    return parts, TOP + (row + 1) * ROW - 2
