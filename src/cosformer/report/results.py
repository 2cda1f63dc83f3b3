"""Finished runs as sections: for each task one table of mechanisms, and their losses."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from cosformer.report.document import Block, Line, Plot, Section, Table, Text, colour_of
from cosformer.terminal import size

Record = dict[str, Any]


def sections(records: Sequence[Record]) -> list[Section]:
    tasks = sorted({r["task"] for r in records})
    return [_task(task, [r for r in records if r["task"] == task]) for task in tasks]


def _task(task: str, records: list[Record]) -> Section:
    mechanisms = sorted(
        {r["mechanism"] for r in records}, key=lambda m: (m != "cosformer", m != "softmax", m)
    )
    metrics = list(dict.fromkeys(name for r in records for name in r["metric"]))
    header = ["attention", *metrics, "runs", "steps", "parameters", "tokens/s", "peak memory"]
    rows = [_row(m, [r for r in records if r["mechanism"] == m], metrics) for m in mechanisms]
    blocks: list[Block] = [
        Table(
            header,
            rows,
            "Means over runs; behind ± half the distance between the best and the worst of them.",
        )
    ]
    lines = [
        Line(m, [tuple(p) for p in curve], colour_of(m, mechanisms))
        for m in mechanisms
        if (curve := next((r["loss"] for r in records if r["mechanism"] == m and r.get("loss")), None))
    ]
    if lines:
        blocks.append(
            Plot(
                f"loss {task}",
                f"{task}: training loss",
                "steps",
                "loss",
                lines,
                "The loss while training, the first run of each attention: lower is better, and a line that "
                "is still falling would have gained from more steps.",
                x_unit="count",
                log_y=all(y > 0 for line in lines for _, y in line.points),
            )
        )
    blocks.append(Text(_made_with(records)))
    return Section(task, blocks)


def _row(mechanism: str, records: list[Record], metrics: list[str]) -> list[str]:
    return [
        mechanism,
        *(_spread([r["metric"][m] for r in records if r["metric"].get(m) is not None]) for m in metrics),
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
