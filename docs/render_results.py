"""Brings the tables of runs in docs/results.md up to date with the records under results/.

python docs/render_results.py
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cosformer.report import evidence, records, svg
from cosformer.report import markdown as pages
from cosformer.report.document import Document, Plot, Section
from cosformer.report.places import Places
from cosformer.terminal import markdown

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.enwik8_plan import OURS, VARIANTS  # noqa: E402 (part of the tree, not of the package)

PAGE = ROOT / "docs" / "results.md"
MARK = "<!-- {}: python docs/render_results.py -->\n"
SWEEP = {"mqar": "associative recall", "copy": "copying"}

Record = dict[str, Any]


def sweep() -> str:
    """Accuracy by task and width; the newest record of each counts."""
    found: dict[tuple[str, int, str], float] = {}
    for r in records.runs(ROOT / "results"):
        if "experiment" not in r and r["scale"] == "cpu" and r["task"] in SWEEP:
            width = r["settings"]["model"]["hidden_size"]
            found[r["task"], width, r["mechanism"]] = r["metric"]["test"]["accuracy"]
    attentions = sorted({name for _, _, name in found})
    places = sorted({(list(SWEEP).index(task), task, width) for task, width, _ in found})
    rows = [
        [SWEEP[task], str(width), *(f"{found[task, width, name]:.3f}" for name in attentions)]
        for _, task, width in places
    ]
    return markdown(("task", "width", *attentions), rows)


def learning() -> str:
    """Test scores beside chance; those that are not better by two standard errors stand in brackets."""
    found: dict[str, dict[str, Record]] = {}
    for r in records.runs(ROOT / "results"):
        if "margin" in r and r["scale"] == "tiny":
            found.setdefault(r["task"], {})[r["mechanism"]] = r
    attentions = sorted({name for own in found.values() for name in own}, reverse=True)
    rows = []
    for task, own in sorted(found.items()):
        first = next(iter(own.values()))
        metric = first["metric"]["name"]
        rows.append(
            [
                task,
                metric,
                f"{first['chance'][metric]:.3f}",
                *(_score(own[n], metric) if n in own else "-" for n in attentions),
            ]
        )
    return markdown(("task", "metric", "chance", *attentions), rows)


def _score(record: Record, metric: str) -> str:
    margin, text = record["margin"], f"{record['metric']['test'][metric]:.3f}"
    return text if margin["better_by"] > 2 * margin["standard_error"] else f"({text})"


def planned() -> dict[str, Section]:
    """The paper's tables and the study, run or not."""
    folder = ROOT / "results"
    places = Places(records.runs(folder), records.failures(folder))
    return {
        "language": evidence.language(places, OURS),
        "arena": evidence.arena(places),
        "ablation": evidence.ablation(places, list(VARIANTS)),
    }


def figures() -> dict[str, str]:
    """The drawings of these sections, by their names in docs/figures."""
    plots = (b for section in planned().values() for b in section.blocks if isinstance(b, Plot))
    return {f"{plot.name}.svg": svg.standalone(plot) for plot in plots}


def _planned(name: str) -> str:
    section = planned()[name]
    # Without title and heading: those are the page's own.
    return pages.render(Document("", "", [section]), "figures").partition(f"## {section.title}")[2].strip()


def page(text: str) -> str:
    tables: dict[str, Callable[[], str]] = {"sweep": sweep, "learning": learning}
    for part in ("language", "arena", "ablation"):
        tables[part] = partial(_planned, part)
    for name, table in tables.items():
        before, begin, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(MARK.format(f"end of {name}"))
        text = f"{before}{begin}{table()}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    for name, drawing in figures().items():
        (ROOT / "docs" / "figures" / name).write_text(drawing)
    print(PAGE.relative_to(ROOT))
