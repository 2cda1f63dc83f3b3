"""Brings the tables of runs in docs/results.md up to date with the records under results/.

python docs/render_results.py
"""

import sys
from pathlib import Path

from cosformer.report import plotter, records, render
from cosformer.report.document import Document, Plot, Section, Text
from cosformer.report.sections import arena, evidence, learning, overview, recall, text_model
from cosformer.report.sections.common import latest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import cosine_plan, small_arena_plan  # noqa: E402 (part of the tree, not of the package)
from benchmarks.enwik8_plan import VARIANTS  # noqa: E402

PAGE = ROOT / "docs" / "results.md"
MARK = "<!-- {}: python docs/render_results.py -->\n"


def planned() -> dict[str, Section]:
    """The paper's tables and the study, run or not."""
    folder = ROOT / "results"
    places = evidence.places_of(records.runs(folder), records.failures(folder))
    return {
        "overview": overview.section(places),
        "similarity": evidence.similarity(places),
        "tuned": evidence.fine_tuning(places),
        "language": evidence.language(places),
        "arena": arena.from_scratch(places),
        "holes": arena.pretrained(places),
        "small": arena.small(places, list(small_arena_plan.ROWS)),
        "masked": evidence.masked(places),
        "cosine": evidence.cosine(places, [*cosine_plan.ROWS, *cosine_plan.MASKED]),
        "ablation": evidence.ablation(places, list(VARIANTS)),
        "speed": speed(),
    }


def speed() -> Section:
    """Of the newest record that a GPU has left."""
    found = [r for r in records.benchmarks(ROOT / "benchmarks" / "reports") if "gpu" in r.get("hardware", {})]
    newest = latest(found, text_model.FORMAT.rpartition(" ")[0])
    if newest is None:
        words = "Not run yet; `python -m benchmarks.text_model` measures it."
        return Section(text_model.TITLE, [Text(words)])
    return text_model.section(newest)


def figures() -> dict[str, str]:
    """The drawings of these sections, by their names in docs/figures."""
    plots = (b for section in planned().values() for b in section.blocks if isinstance(b, Plot))
    return {f"{plot.name}.svg": plotter.standalone(plot) for plot in plots}


def page(text: str) -> str:
    """Every part between its marks, from the records; titles and headings are the page's own."""
    runs = records.runs(ROOT / "results")
    blocks = {"sweep": [recall.sweep(runs)], "learning": [learning.beside_chance(runs)]}
    for name, section in planned().items():
        blocks[name] = section.blocks
    for name, own in blocks.items():
        before, begin, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(MARK.format(f"end of {name}"))
        if not begin or not end:
            raise SystemExit(f"docs/results.md has lost a mark of {name!r}: {MARK.format(name)}")
        text = f"{before}{begin}{render.markdown(Document('', '', opening=own), 'figures')}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    for name, drawing in figures().items():
        (ROOT / "docs" / "figures" / name).write_text(drawing)
    print(PAGE.relative_to(ROOT))
