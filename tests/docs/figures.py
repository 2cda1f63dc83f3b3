"""What tests of figures in sentences read: lines of pages, and records."""

import json
from pathlib import Path

from cosformer import reading
from cosformer.report.sections.evidence import places_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results.md"
SHOWN = {"ours": "default model"}  # what sentences call a row of the tables


def bits(column, name, split):
    """Of the best learning rate that a variant has a record of: one figure for each seed."""
    runs = [json.loads(line) for line in (ROOT / "results" / "plan-enwik8.jsonl").read_text().splitlines()]
    found = [r for r in runs if (r["experiment"]["column"], r["experiment"]["row"]) == (column, name)]
    seeds = sorted({r["seed"] for r in found})
    own = [min((r["metric"]["valid"]["bits_per_character"], r["metric"][split]["bits_per_character"])
               for r in found if r["seed"] == seed) for seed in seeds]  # fmt: skip
    return [figure for _, figure in own]


def line_of(text, start):
    """The one line of a page that begins so."""
    (found,) = (line for line in text.splitlines() if line.startswith(start))
    return found


def best(plan, column, row, form=".2f", scale=100, split="test"):
    """The figure of the best settings, as tables have it."""
    return places_of(plan_records(plan)).cell(plan, column, row, form, scale, split).split(" ±")[0]


def plan_records(plan):
    return list(reading.json_lines(ROOT / "results" / f"plan-{plan}.jsonl"))
