"""A document as a page, as Markdown, or as tables for the terminal. The page is one HTML file: no script, no
network, light and dark, readable on a phone."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from cosformer.report import plotter
from cosformer.report.document import Block, Document, Table, Text
from cosformer.terminal import plain

DRAWN = ("plot", "figure")
# The browser loads nothing from outside the file.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def _inline(words: str) -> Markup:
    """Escaped, with `code` and links; addresses other than files and the web stay words."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words)))
    return Markup(re.sub(r"\[([^\]]+)\]\((https://[^)\s]+|#?[\w./-]+)\)", r'<a href="\2">\1</a>', text))


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def _groups(blocks: Sequence[Block]) -> list[list[Block]]:
    """Groups neighbouring plots, which are shown side by side where the page is wide enough."""
    found: list[list[Block]] = []
    for block in blocks:
        if found and block.kind in DRAWN and found[-1][0].kind in DRAWN:
            found[-1].append(block)
        else:
            found.append([block])
    return found


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "inline": _inline,
        "cell": _cell,
        "groups": _groups,
        "svg": lambda plot: Markup(plotter.svg(plot)),
        "picture": lambda m: plotter.picture(m.weights, m.colour),
    }
    made.globals |= {"variables": plotter.VARIABLES, "policy": POLICY}
    return made


def html(document: Document) -> str:
    return _templates().get_template("page.html").render(document=document)


def markdown(document: Document, plots_at: str = "plots", picture: str = "") -> str:
    """`plots_at` is the folder of the plots, as seen from the file; `picture` the file of a figure of several
    plots, which is left out without one."""
    blocks = _templates().get_template("blocks.md").make_module({"plots_at": plots_at, "picture": picture})
    show: Callable[[Block], str] = blocks.show  # type: ignore[attr-defined]
    parts = [f"# {document.title}" if document.title else "", document.lead, *map(show, document.opening)]
    for section in document.sections:
        parts += [f"## {section.title}", *map(show, section.blocks)]
    return "\n\n".join(filter(None, (str(p).strip("\n") for p in [*parts, document.footer]))) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = True) -> str:
    """One table, as Markdown."""
    return markdown(Document("", "", opening=[Table(header, rows, figures=figures)])).strip("\n")


def terminal(document: Document) -> str:
    """What the opening says, the tables of brief sections, and what a section without one has to say."""
    parts = [block.words for block in document.opening if isinstance(block, Text)]
    for section in document.sections:
        if section.brief:
            tables = [plain(b.header, b.rows) for b in section.blocks if isinstance(b, Table) and b.rows]
            words = [b.words for b in section.blocks if isinstance(b, Text)]
            parts.append("\n".join([section.title, *tables]) if tables else f"{section.title}: {words[0]}")
    return "\n\n".join(parts)
