"""Runs of one recipe side by side: a table, and their losses and scores from the logs of their folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cosformer.report.document import Document, Line, Plot, Section, Table, colour_of
from cosformer.report.sections.common import Record, hardware_words
from cosformer.terminal import seconds, size


def table(records: Sequence[Record]) -> Table:
    name = records[0]["metric"]["name"]
    rows = [
        [
            r["mechanism"],
            f"{r['metric']['test'][name]:.4g}",
            f"{r['steps']:,}",
            seconds(r["wall_time_s"]),
            f"{r['tokens_per_s']:,.0f}" if r["tokens_per_s"] else "-",
            size(r["peak_memory_bytes"]),
            f"{r['parameters']:,}",
        ]
        for r in records
    ]
    header = ["attention", f"{name} (test)", "steps", "time", "tokens/s", "peak memory", "parameters"]
    better = "higher" if records[0]["metric"]["higher_is_better"] else "lower"
    return Table(
        header, rows, f"Tested once, at the step that was best on the validation split; {better} is better."
    )


def document(records: Sequence[Record], folders: Mapping[str, Path]) -> Document:
    """The page of a comparison; `folders` holds the folder of each mechanism's run."""
    first = records[0]
    logs = {name: _lines(folder / "log.jsonl") for name, folder in folders.items()}
    metric = first["metric"]["name"]
    plots = [
        Plot(
            field,
            title,
            "steps",
            label,
            lines,
            caption,
            x_unit="count",
        )
        for field, title, label, caption in (
            ("loss", "Loss while training", "loss", "Lower is better; what still falls had more to learn."),
            (metric, f"{metric} on the validation split", metric, "The best step here is the one tested."),
        )
        if (lines := _curves(logs, field))
    ]  # fmt: skip
    lead = (
        f"The recipe {first['recipe'] or first['task']} at scale {first['scale'] or 'of its own'}, "
        f"seed {first['seed']}, with {', '.join(r['mechanism'] for r in records)}: all else equal."
    )
    sections = [Section("Result", [table(records)])]
    if plots:
        sections.append(Section("On the way", plots))
    made = f"{hardware_words(first)}; torch {first['versions'].get('torch', 'unknown')}"
    return Document(
        f"{first['task']}: attentions compared", lead, sections, f"Made by `cosformer compare` on {made}."
    )


def _curves(logs: Mapping[str, list[Record]], field: str) -> list[Line]:
    names = list(logs)
    found = []
    for name in names:
        points = [(x["step"], x[field]) for x in logs[name] if field in x and x.get("event") != "test"]
        if points:
            found.append(Line(name, points, colour_of(name, names)))
    return found


def _lines(path: Path) -> list[Record]:
    """What the log says; a last line that was cut off is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    found = []
    for line in text.split("\n")[:-1]:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
