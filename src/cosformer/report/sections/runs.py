"""Finished runs as sections: for each task and scale one table of mechanisms, and scores against speed; and
one table for all tasks at the smallest scale, which shows that they learn and nothing more."""

import json
from collections.abc import Sequence
from statistics import mean
from typing import Any

from cosformer.record_format import ADDED_FIELDS, NON_SEMANTIC_FIELDS, current_names
from cosformer.report.document import Block, Line, Plot, Section, Table, Text, colour_of
from cosformer.report.sections.common import Record, hardware_words
from cosformer.terminal import size

# Of a run's settings: what may differ between two runs of the same experiment.
_NO_MATTER = ("seed", "attention", *NON_SEMANTIC_FIELDS)

SMALLEST = "tiny"
SPREAD = (
    "Means over runs of the same settings with different seeds; behind ± half the distance between the best "
    "and the worst of them."
)


def sections(records: Sequence[Record]) -> list[Section]:
    """Of runs that no plan has made. Scales are different experiments: they share a section, but no row."""
    records = _newest([r for r in records if "experiment" not in r])  # those have tables of their own
    smallest = [r for r in records if r.get("scale") == SMALLEST]
    others = [r for r in records if r.get("scale") != SMALLEST]
    tasks = sorted({r["task"] for r in others})
    made = [_task(task, [r for r in others if r["task"] == task]) for task in tasks]
    return [*made, _smallest(smallest)] if smallest else made


def _newest(records: Sequence[Record]) -> list[Record]:
    """Without the runs that were repeated later, seed and all: a repetition is no second run."""

    def experiment(record: Record) -> str:
        said = [record.get(name) for name in ("task", "mechanism", "scale", "seed")]
        return json.dumps([*said, flat(record.get("settings", {}))], sort_keys=True)

    last = {experiment(r): r for r in sorted(records, key=lambda r: r.get("date", ""))}
    return [r for r in records if r is last[experiment(r)]]


def _smallest(records: list[Record]) -> Section:
    mechanisms = _in_order({r["mechanism"] for r in records})
    rows = []
    for task in sorted({r["task"] for r in records}):
        for words, own in _alike([r for r in records if r["task"] == task]).items():
            metric, chance = own[0]["metric"]["name"], own[0].get("chance", {})
            better = "higher" if own[0]["metric"].get("higher_is_better") else "lower"
            tests = {m: [r["metric"]["test"] for r in own if r["mechanism"] == m] for m in mechanisms}
            scores = {m: [t[metric] for t in tests[m] if metric in t] for m in mechanisms}
            rows.append(
                [
                    f"{task}, {words}" if words else task, f"{metric}, {better} is better",
                    *(_spread(scores[m]) for m in mechanisms),
                    f"{chance[metric]:.4g}" if metric in chance else "-",
                ]
            )  # fmt: skip
    caption = (
        "Small models, trained for seconds on a CPU: whether a task can be learned at all, not how well. By "
        f"counting: what a predictor scores that knows only how often each answer is right. {SPREAD}"
    )
    header = ["task", "test", *mechanisms, "by counting"]
    return Section(
        f"Every task at scale {SMALLEST}", [Table(header, rows, caption), Text(made_with(records))], SMALLEST
    )


def _in_order(names: set[str]) -> list[str]:
    return sorted(names, key=lambda m: (m != "cosformer", m != "softmax", m))


def _task(task: str, records: list[Record]) -> Section:
    blocks: list[Block] = []
    for scale in sorted({r.get("scale") or "own settings" for r in records}):
        blocks += _scale(task, scale, [r for r in records if (r.get("scale") or "own settings") == scale])
    return Section(task, [*blocks, Text(made_with(records))])


def _scale(task: str, scale: str, records: list[Record]) -> list[Block]:
    mechanisms = _in_order({r["mechanism"] for r in records})
    of = {m: _alike([r for r in records if r["mechanism"] == m]) for m in mechanisms}
    metrics = list(dict.fromkeys(name for r in records for name in r["metric"]["test"]))
    header = ["attention", *metrics, "runs", "steps", "parameters", "tokens/s", "peak memory"]
    better = "higher" if records[0]["metric"].get("higher_is_better") else "lower"
    caption = f"Scale {scale}, test split; {better} {metrics[0]} is better. {SPREAD}"
    rows = [
        _row(f"{m}, {words}" if words else m, own, metrics)
        for m in mechanisms
        for words, own in of[m].items()
    ]
    blocks: list[Block] = [Table(header, rows, caption)]
    if any(len(own) > 1 for own in of.values()):
        return blocks  # a sweep over settings: what it shows is not speed
    points = {m: [p for own in of[m].values() if (p := _point(own, metrics[0]))] for m in mechanisms}
    lines = [Line(m, sorted(points[m]), colour_of(m, mechanisms)) for m in mechanisms if points[m]]
    if len(lines) > 1:
        blocks.append(
            Plot(
                f"{task} {scale} score",
                f"{task}, {scale}: {metrics[0]} against speed",
                "training, tokens a second",
                metrics[0],
                lines,
                f"Further right is faster, and {better} is better; only runs on the same hardware compare.",
                x_unit="count",
            )
        )
    return blocks


def _alike(records: list[Record]) -> dict[str, list[Record]]:
    """Runs that differ in nothing but their seeds, by the words for what sets them apart from the others of
    their mechanism: each mechanism may have settings of its own."""
    settings = [flat(r.get("settings", {})) for r in records]
    values: dict[str, dict[str, set[str]]] = {}
    for name in dict.fromkeys(name for own in settings for name in own):
        of = values.setdefault(name, {})
        for record, own in zip(records, settings, strict=True):
            of.setdefault(record["mechanism"], set()).add(json.dumps(own.get(name)))
    differ = [name for name, of in values.items() if any(len(seen) > 1 for seen in of.values())]
    found: dict[str, list[Record]] = {}
    for record, own in zip(records, settings, strict=True):
        words = ", ".join(f"{name} {own[name]}" for name in differ if name in own)
        found.setdefault(words, []).append(record)
    return found


def flat(settings: Record) -> Record:
    """Settings with those of model and task among them, without what does not change an experiment."""
    parts = ("model", "task_settings")
    said = ADDED_FIELDS | current_names(settings)
    own = {name: v for name, v in said.items() if name not in (*parts, *_NO_MATTER)}
    return own | {name: v for part in parts for name, v in settings.get(part, {}).items()}


def _point(records: list[Record], metric: str) -> tuple[float, float] | None:
    speeds = [r["tokens_per_s"] for r in records if r.get("tokens_per_s")]
    scores = [r["metric"]["test"][metric] for r in records if metric in r["metric"]["test"]]
    return (mean(speeds), mean(scores)) if speeds and scores else None


def _row(name: str, records: list[Record], metrics: list[str]) -> list[str]:
    tests = [r["metric"]["test"] for r in records]
    return [
        name,
        *(_spread([t[m] for t in tests if m in t]) for m in metrics),
        f"{len(records)}",
        _range([r.get("steps") for r in records]),
        _range([r.get("parameters") for r in records]),
        _range([r.get("tokens_per_s") for r in records]),
        _peak(records),
    ]


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    half = (max(values) - min(values)) / 2
    return f"{mean(values):.4g}" + (f" ± {half:.2g}" if len(values) > 1 else "")


def _range(values: list[Any]) -> str:
    known = sorted({round(v) for v in values if v is not None})
    if not known:
        return "-"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def _peak(records: list[Record]) -> str:
    known = [v for r in records if (v := r.get("peak_memory_bytes")) is not None]
    return size(max(known)) if known else "-"


def made_with(records: list[Record]) -> str:
    hardware = sorted({words for r in records if (words := hardware_words(r))})
    versions = sorted({f"torch {v}" for r in records if (v := r.get("versions", {}).get("torch"))})
    commits = sorted({c[:10] for r in records if (c := r.get("commit", {}).get("id"))})
    said = [", ".join(hardware), ", ".join(versions), f"commit {', '.join(commits)}" if commits else ""]
    return "Made with " + "; ".join(part for part in said if part) + "."
