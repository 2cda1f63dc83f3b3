"""A document as one HTML file: no script, no network, light and dark, readable on a phone."""

import re
from html import escape
from pathlib import Path

from cosformer.report import png, svg
from cosformer.report.document import Document, Maps, Plot, Samples, Section, Table, Text

STYLE = "\n".join(
    (
        f":root {{ color-scheme: light dark; {svg.LIGHT_VARIABLES} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {svg.DARK_VARIABLES} }} }}",
        Path(__file__).with_name("style.css").read_text(),
        svg.STYLE,
    )
)

# The browser itself refuses whatever would leave this file.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render(document: Document) -> str:
    links = "".join(f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in document.sections)
    body = "\n".join(_section(section) for section in document.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escape(document.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(document.title)}</h1>
<p class="lead">{_inline(document.lead)}</p>
<nav aria-label="Contents"><ul>{links}</ul></nav>
{body}
<footer>{_inline(document.footer)}</footer>
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    parts = [f'<section id="{section.anchor}">', f"<h2>{escape(section.title)}</h2>"]
    plots: list[str] = []
    for block in section.blocks:
        if isinstance(block, Plot):
            plots.append(_plot(block))
            continue
        if plots:  # neighbours stand beside one another where there is room
            parts.append(f'<div class="grid-of-plots">{"".join(plots)}</div>')
            plots = []
        parts.append(_block(block))
    if plots:
        parts.append(f'<div class="grid-of-plots">{"".join(plots)}</div>')
    return "\n".join([*parts, "</section>"])


def _block(block: Text | Table | Maps | Samples) -> str:
    if isinstance(block, Text):
        return f"<p>{_inline(block.words)}</p>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Maps):
        return _maps(block)
    return _samples(block)


def _plot(plot: Plot) -> str:
    return (
        f'<figure id="plot-{plot.name}"><h3>{escape(plot.title)}</h3>{svg.draw(plot)}'
        f"<figcaption>{_inline(plot.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    caption = f"<caption>{_inline(table.caption)}</caption>" if table.caption else ""
    table_ = f"{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="scroll"><table>{table_}</table></div>'


def _maps(maps: Maps) -> str:
    # Shades that can be told from the paper of either style.
    pictures = "".join(
        f'<div><img alt="{escape(m.name)}" src="{png.data_address(m.weights, svg.LIGHT[m.colour])}">'
        f"<span>{escape(m.name)}</span></div>"
        for m in maps.maps
    )
    return (
        f'<figure><h3>{escape(maps.title)}</h3><div class="maps">{pictures}</div>'
        f"<figcaption>{_inline(maps.caption)}</figcaption></figure>"
    )


def _samples(samples: Samples) -> str:
    boxes = "".join(
        f"<figure><h3>{escape(s.name)}</h3><pre><b>{escape(s.prompt)}</b>{escape(s.text)}</pre></figure>"
        for s in samples.samples
    )
    return f'<p>{_inline(samples.caption)}</p><div class="samples">{boxes}</div>'


def _inline(words: str) -> str:
    """Escaped, with `code` and links; addresses other than files and the web stay words."""
    text = escape(words)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\[([^\]]+)\]\((https://[^)\s]+|#?[\w./-]+)\)", r'<a href="\2">\1</a>', text)
