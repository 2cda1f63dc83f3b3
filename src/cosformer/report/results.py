"""Finished runs as sections: for each task and scale one table of mechanisms, and scores against speed."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from cosformer.report.document import Block, Line, Plot, Section, Table, Text, colour_of
from cosformer.terminal import size

Record = dict[str, Any]


def sections(records: Sequence[Record]) -> list[Section]:
    """Scales are different experiments: they share a section, but no row."""
    tasks = sorted({r["task"] for r in records})
    return [_task(task, [r for r in records if r["task"] == task]) for task in tasks]


def _task(task: str, records: list[Record]) -> Section:
    blocks: list[Block] = []
    for scale in sorted({r.get("scale") or "own settings" for r in records}):
        blocks += _scale(task, scale, [r for r in records if (r.get("scale") or "own settings") == scale])
    return Section(task, [*blocks, Text(_made_with(records))])


def _scale(task: str, scale: str, records: list[Record]) -> list[Block]:
    names = {r["mechanism"] for r in records}
    mechanisms = sorted(names, key=lambda m: (m != "cosformer", m != "softmax", m))
    of = {m: [r for r in records if r["mechanism"] == m] for m in mechanisms}
    metrics = list(dict.fromkeys(name for r in records for name in r["metric"]["test"]))
    header = ["attention", *metrics, "runs", "steps", "parameters", "tokens/s", "peak memory"]
    better = "higher" if records[0]["metric"].get("higher_is_better") else "lower"
    caption = (
        f"Scale {scale}, test split; {better} {metrics[0]} is better. Means over runs; behind ± half "
        "the distance between the best and the worst of them."
    )
    blocks: list[Block] = [Table(header, [_row(m, of[m], metrics) for m in mechanisms], caption)]
    lines = [
        Line(m, [point], colour_of(m, mechanisms)) for m in mechanisms if (point := _point(of[m], metrics[0]))
    ]
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


def _point(records: list[Record], metric: str) -> tuple[float, float] | None:
    speeds = [r["tokens_per_s"] for r in records if r.get("tokens_per_s")]
    scores = [r["metric"]["test"][metric] for r in records if metric in r["metric"]["test"]]
    return (mean(speeds), mean(scores)) if speeds and scores else None


def _row(mechanism: str, records: list[Record], metrics: list[str]) -> list[str]:
    tests = [r["metric"]["test"] for r in records]
    return [
        mechanism,
        *(_spread([t[m] for t in tests if t.get(m) is not None]) for m in metrics),
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


def _made_with(records: list[Record]) -> str:
    hardware = sorted({words for r in records if (words := hardware_words(r))})
    versions = sorted({f"torch {v}" for r in records if (v := r.get("versions", {}).get("torch"))})
    commits = sorted({c[:10] for r in records if (c := r.get("commit", {}).get("id"))})
    said = [", ".join(hardware), ", ".join(versions), f"commit {', '.join(commits)}" if commits else ""]
    return "Made with " + "; ".join(part for part in said if part) + "."


def hardware_words(record: Record) -> str:
    hardware = record.get("hardware", {})
    return hardware.get("gpu") or hardware.get("cpu") or ""
