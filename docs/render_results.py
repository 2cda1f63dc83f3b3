"""Brings the tables of runs in docs/results.md up to date with the records under results/.

python docs/render_results.py
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosformer.report import records
from cosformer.terminal import markdown

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
MARK = "<!-- {}: python docs/render_results.py -->\n"
SWEEP = {"mqar": "associative recall", "copy": "copying"}

Record = dict[str, Any]


def sweep() -> str:
    """Accuracy by task and width; the newest record of each counts."""
    found: dict[tuple[str, int, str], float] = {}
    for r in records.runs(ROOT / "results"):
        if r["scale"] == "cpu" and r["task"] in SWEEP:
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


def page(text: str) -> str:
    tables: dict[str, Callable[[], str]] = {"sweep": sweep, "learning": learning}
    for name, table in tables.items():
        before, begin, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(MARK.format(f"end of {name}"))
        text = f"{before}{begin}{table()}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))
