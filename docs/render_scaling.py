"""Brings the tables and the figure of docs/scaling.md up to date with the newest record.

python -m benchmarks.scaling --out benchmarks/reports/scaling-YYYYMMDD.json
python docs/render_scaling.py
"""

from pathlib import Path

from cosformer.report import plotter, records, render
from cosformer.report.document import Document
from cosformer.report.sections import scaling
from cosformer.report.sections.common import latest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = (f"<!-- {part}: python docs/render_scaling.py -->\n" for part in ("figures", "end of figures"))
RECORD = latest(records.benchmarks(ROOT / "benchmarks" / "reports"), "cosformer scaling simulation")
assert RECORD is not None
FIGURE = ROOT / "docs" / "figures" / f"{scaling.plot(RECORD).name}.svg"


def page(text: str) -> str:
    """What stands between the marks, from the record."""
    assert RECORD is not None
    before, rest = text.split(BEGIN)
    made = render.markdown(Document("", "", opening=scaling.section(RECORD).blocks), "figures")
    return before + BEGIN + made + END + rest.split(END)[1]


def figure() -> str:
    assert RECORD is not None
    return plotter.standalone(scaling.plot(RECORD))


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    FIGURE.write_text(figure())
    print(PAGE.relative_to(ROOT), FIGURE.relative_to(ROOT))
