"""The report: one page and one Markdown file from everything that was recorded."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from cosformer import atomic
from cosformer.report import plotter, records, render, sections
from cosformer.report.document import Block, Document, Figure, Maps, Plot, Section, Text
from cosformer.report.sections import evidence, overview, runs

PLOTS = "plots"


def report(results_at: Path, benchmarks_at: Path) -> Document:
    """The document of all runs and benchmarks under two folders; either may be missing or empty."""
    finished, measured = records.runs(results_at), records.benchmarks(benchmarks_at)
    failures = records.failures(results_at)
    parts: list[Section] = [
        *overview.sections(finished, failures),
        *evidence.sections(finished, failures=failures),
        *sections.benchmarks(measured),
        *runs.sections(finished),
    ]
    if not parts:
        parts = [Section("Nothing yet", [Text("No run has finished, and no benchmark was recorded.")])]
    tasks = len({r["task"] for r in finished})
    lead = (
        f"{_count(len(finished), 'finished run')} of {_count(tasks, 'task')} and "
        f"{_count(len(measured), 'benchmark')}, as they were recorded."
    )
    return Document(
        "cosformer: results",
        lead,
        parts,
        "Rendered by `cosformer report` from the records and from nothing else.",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def write(document: Document, folder: Path, name: str = "report") -> tuple[Path, Path]:
    """`name`.html and `name`.md in the folder, the Markdown's plots in a folder beside them."""
    page, text = folder / f"{name}.html", folder / f"{name}.md"
    document = drawable(document)
    atomic.replace(page, render.html(document))
    for plot in document.plots:
        atomic.replace(folder / PLOTS / f"{plot.name}.svg", plotter.standalone(plot))
    atomic.replace(text, render.markdown(document, PLOTS))
    return page, text


def write_beside(document: Document, record: Path) -> list[Path]:
    """The report of one benchmark beside its record: Markdown, and the picture of its figure as PNG."""
    document, written = drawable(document), [record.with_suffix(".md")]
    for figure in (b for b in document.opening if isinstance(b, Figure)):
        written.append(record.with_suffix(".png"))
        plotter.png(figure, written[-1])
    atomic.replace(written[0], render.markdown(document, picture=written[-1].name))
    return written


def drawable(document: Document) -> Document:
    """Without pictures, and with a word about it, where matplotlib is not installed: on a machine that only
    measures, the tables must not be lost."""
    if importlib.util.find_spec("matplotlib") is not None:
        return document
    print('No plots: matplotlib is not installed (pip install "cosformer[plots]").', file=sys.stderr)

    def rest(blocks: tuple[Block, ...]) -> list[Block]:
        return [b for b in blocks if not isinstance(b, Plot | Figure | Maps)]

    left = [replace(s, blocks=rest(tuple(s.blocks))) for s in document.sections]
    return replace(document, sections=left, opening=rest(tuple(document.opening)))
