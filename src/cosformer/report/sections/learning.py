"""Every task at a small scale: scores beside those of guessing."""

import functools
import operator
from collections.abc import Sequence

from cosformer.report.document import Block, Document, Table, Text
from cosformer.report.sections.common import Record

FEW = 500  # rows of a test split: with fewer, a share of one half has a standard error above 0.02


def learned(record: Record) -> bool:
    """Better than chance by more than two standard errors."""
    own = record["margin"]
    return bool(own["better_by"] > 2 * own["standard_error"])


def beside_chance(runs: Sequence[Record]) -> Table:
    """Test scores at scale tiny beside chance; those that are not learned stand in brackets."""
    found: dict[str, dict[str, Record]] = {}
    for r in runs:
        if "margin" in r and r["scale"] == "tiny":
            found.setdefault(r["task"], {})[r["mechanism"]] = r
    attentions = sorted({name for own in found.values() for name in own}, reverse=True)
    rows = []
    for task, own in sorted(found.items()):
        first = next(iter(own.values()))
        metric = first["metric"]["name"]
        scores = [_score(own[n], metric) if n in own else "-" for n in attentions]
        rows.append([task, metric, f"{first['chance'][metric]:.3f}", *scores])
    return Table(("task", "metric", "chance", *attentions), rows)


def _score(record: Record, metric: str) -> str:
    text = f"{record['metric']['test'][metric]:.3f}"
    return text if learned(record) else f"({text})"


def document(records: Sequence[Record], absent: Sequence[str], scale: str, folds: int) -> Document:
    """Of the newest record of each task, mechanism and seed."""
    newest = {(r["task"], r["mechanism"], r["seed"]): r for r in records}
    chosen = [newest[key] for key in sorted(newest)]
    header = (
        "task", "attention", "metric", "test", "chance", "better by", "standard error", "test rows",
        "steps", "seconds", "learned",
    )  # fmt: skip
    rows = [
        [
            r["task"], r["mechanism"], r["metric"]["name"], f"{r['metric']['test'][r['metric']['name']]:.4f}",
            f"{r['chance'][r['metric']['name']]:.4f}", f"{r['margin']['better_by']:.4f}",
            f"{r['margin']['standard_error']:.4f}", f"{r['margin']['rows']:,}", f"{r['steps']:,}",
            f"{r['wall_time_s']:.0f}", "yes" if learned(r) else "NO",
        ]
        for r in chosen
    ]  # fmt: skip
    failed = [f"{r['task']} with {r['mechanism']}" for r in chosen if not learned(r)]
    lead = (
        f"`python -m benchmarks.learning --scale {scale}`, {_of(chosen, 'seed')}, on "
        f"{_of(chosen, 'hardware', 'cpu')} with {_of(chosen, 'threads')} thread, commit "
        f"{_of(chosen, 'commit', 'id')}."
    )
    said = [
        "Chance is the score of a predictor that has only counted the labels of the training split. A task "
        "is learned where the test score is better by more than two standard errors of the difference, "
        "found by drawing the rows of the test split again and again. Both attentions have the same "
        "settings; seconds are those of training, validation and test.",
        *_cross_validated(chosen, folds),
    ]
    verdict = f"Not learned in this time: {', '.join(failed)}." if failed else "All of these are learned."
    left = [Text(f"Left out, for their files were not there: {', '.join(absent)}.")] if absent else []
    opening: list[Block] = [*map(Text, said), Table(header, rows), Text(verdict), *left]
    return Document(f"Every task at scale {scale}", lead, opening=opening)


def _cross_validated(records: Sequence[Record], folds: int) -> list[str]:
    names = ", ".join(sorted({r["task"] for r in records if "folds" in r}))
    if not names:
        return []
    return [
        f"The official development set of {names} has fewer than {FEW} rows, too few to tell. The score "
        f"there is that of a cross-validation over the official training rows: {folds} runs, each tested on "
        "a fold that it was neither trained nor chosen on, all rows together; chance has counted all of "
        "them, and seconds are those of the longest run."
    ]


def _of(records: Sequence[Record], *path: str) -> str:
    """The values of a field, each once: `seed 0`, or the value alone where it speaks for itself."""
    found = {str(functools.reduce(operator.getitem, path, r)) for r in records}
    text = ", ".join(sorted(v[:10] if path[-1] == "id" else v for v in found))
    return f"seed {text}" if path == ("seed",) else text
