"""What a campaign attacked, with how many cases, and what it found."""

from cosformer.report.document import Items, Section, Table, Text
from cosformer.report.sections.common import Record

_PARTS = {
    "files": "spoilt files against every reader",
    "lines": "command lines with mistakes",
    "operator": "calls of the operator, row by row against float64",
    "faults": "runs with faults, against the run that nothing happened to",
}


def section(record: Record) -> Section:
    """For the page: a row for each part, and every case that ended as none may."""
    parts = record["parts"]
    rows = [
        [
            _PARTS.get(name, name), f"{part['cases']:,}", _counts(part["ends"]), f"{len(part['wrong']):,}",
            part["date"][:10], (part["commit"]["id"] or "unknown")[:10],
        ]
        for name, part in parts.items()
    ]  # fmt: skip
    header = ["attacked with", "cases", "ended", "as none may", "date", "commit"]
    kinds = [f"{_PARTS.get(name, name)}: {_counts(p['kinds'])}" for name, p in parts.items() if p["kinds"]]
    wrong = [
        f"{name} {r['number']}, {r['end']}: {r['what']}" for name, p in parts.items() for r in p["wrong"]
    ]
    mended = [
        f"{name} {r['number']}, {r['end']} at first, run again: {r['now']} ({r['what']})"
        for name, p in parts.items()
        for r in p.get("again", ())
    ]
    note = "A case can be run again by its number: `python -m benchmarks.campaign --only PART:NUMBER`."
    return Section(
        "Attacks on what is promised",
        [Table(header, rows, note), Items(kinds + wrong + mended), Text(f"From `{record['stem']}.json`.")],
        "campaign",
    )


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in found.items())
