"""The report: one page and one Markdown file from everything that was recorded."""

from pathlib import Path

from cosformer.report import benchmark_sections, evidence, html, markdown, records, results, svg
from cosformer.report.document import Document, Section, Text
from cosformer.report.files import replace

PLOTS = "plots"


def report(results_at: Path, benchmarks_at: Path) -> Document:
    """The document of all runs and benchmarks under two folders; either may be missing or empty."""
    runs, measured = records.runs(results_at), records.benchmarks(benchmarks_at)
    failures = records.failures(results_at)
    parts: list[Section] = [
        *benchmark_sections.sections(measured),
        *evidence.sections(runs, failures=failures),
        *results.sections(runs),
    ]
    if not parts:
        parts = [Section("Nothing yet", [Text("No run has finished, and no benchmark was recorded.")])]
    tasks = len({r["task"] for r in runs})
    lead = (
        f"{_count(len(runs), 'finished run')} of {_count(tasks, 'task')} and "
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
    replace(page, html.render(document))
    for plot in document.plots:
        replace(folder / PLOTS / f"{plot.name}.svg", svg.standalone(plot))
    replace(text, markdown.render(document, PLOTS))
    return page, text
