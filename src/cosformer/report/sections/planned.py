"""What the tables of planned runs share: their rows, and how each is made again."""

import shlex
from collections.abc import Iterable
from statistics import mean

from cosformer.report.document import Text
from cosformer.report.sections.common import Record
from cosformer.report.sections.places import Places
from cosformer.report.sections.runs import made_with

# Rows of the paper's tables: mechanisms, and what this library recommends.
WINDOWS, OURS = "windows", "ours"
ROWS = ("softmax", "cosformer", WINDOWS, OURS, "relu", "linear")
ROW_AGAIN = "one row again"
TRIED = "settings tried"


def how_again(plan: str, program: str = "evidence") -> str:
    """How the runs of a table are made again, those with a record, too."""
    return (
        f"Again: `python -m benchmarks.{program} --plan {plan} --again DIR`, repeated until nothing is left "
        "to be run (9 minutes a call, or `--minutes`); one row: the same with the `--only` at its end."
    )


def only(*rows: str) -> str:
    """What makes the command choose these rows."""
    return f"`--only {' '.join(shlex.quote(f'/{row}/') for row in rows)}`"


def origin(places: Places, *plans: str) -> list[Text]:
    """What the records of some plans were made with."""
    records = [r for r in places.records if r["experiment"]["plan"] in plans]
    return [Text(made_with(records))] if records else []


def millions(runs: list[Record], key: str) -> str:
    known = [r[key] for r in runs if r.get(key)]
    return f"{mean(known) / 1e6:.2f}" if known else "-"


def count_tried(places: Places, plan: str, columns: Iterable[str], row: str) -> str:
    """How many settings of a row were run, column by column."""
    counts = [len(places.tries(plan, column, row)) for column in columns]
    return ", ".join(map(str, counts)) if any(counts) else "-"


def rate_of(runs: list[Record]) -> str:
    return f"{runs[0]['settings']['learning_rate']:g}" if runs else "-"
