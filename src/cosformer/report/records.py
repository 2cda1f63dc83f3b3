"""Records from the disk: finished runs (results/*.jsonl) and benchmarks (benchmarks/reports/*.json)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cosformer.reading import content

Record = dict[str, Any]

FAILURES = "plan-failures.json"
_FIGURES = ("steps", "parameters", "tokens_per_s", "peak_memory_bytes")


class RecordError(ValueError):
    """A malformed file; the sentence names the file, and the line where there is one."""


def runs(folder: Path) -> list[Record]:
    """Every finished run, in the order of the files' names and lines."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(_text(path).splitlines(), 1):
            if not line.strip():
                continue
            record = _parsed(line, f"{path}, line {number},")
            if (wrong := _wrong(record)) is not None:
                raise RecordError(f"{path}, line {number}, is no record of a run: it {wrong}.")
            found.append(record)
    return found


def failures(folder: Path) -> dict[str, Record]:
    """Why planned runs have failed, by the names of their entries."""
    path = folder / FAILURES
    return _parsed(_text(path), str(path)) if path.is_file() else {}


def _wrong(record: Record) -> str | None:
    """What is wrong with a record, or None."""
    missing = [key for key in ("task", "mechanism", "metric") if key not in record]
    if missing:
        return f"lacks {', '.join(missing)}"
    metric = _object(record["metric"])
    name, test = metric.get("name"), metric.get("test")
    if not isinstance(name, str) or not isinstance(test, dict) or name not in test:
        return "has no score on the test split"
    parts = ("settings", "hardware", "versions", "commit", "chance")
    settings, hardware, _, commit, chance = (_object(record.get(key)) for key in parts)
    checks: list[tuple[Record, Iterable[str], Any, str]] = [
        (test, test, int | float, "a number"),
        (chance, chance, int | float, "a number"),
        (record, ("task", "mechanism", "date"), str, "text"),
        (record, ("scale",), str | None, "text"),
        (record, parts, dict, "an object"),
        (record, _FIGURES, int | float | None, "a number"),
        (settings, ("model", "task_settings"), dict, "an object"),
        (hardware, ("cpu", "gpu"), str | None, "text"),
        (commit, ("id",), str | None, "text"),
    ]
    for where, keys, kind, wanted in checks:
        for key in keys:
            if key in where and not isinstance(where[key], kind):
                return f"has {where[key]!r} for {key}, where {wanted} is expected"
    return None


def _object(value: Any) -> Record:
    return value if isinstance(value, dict) else {}


def benchmarks(folder: Path) -> list[Record]:
    """Every benchmark's record, with the name of its file as `stem`."""
    found = []
    for path in sorted(folder.glob("*.json")):
        record = _parsed(_text(path), str(path))
        if str(record.get("format", "")).startswith("cosformer "):
            found.append(record | {"stem": path.stem})
    return found


def _text(path: Path) -> str:
    try:
        return content(path).decode("utf-8")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from None


def _parsed(text: str, where: str) -> Record:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where} is not JSON ({error}): it was cut short or edited.") from None
    if not isinstance(record, dict):
        raise RecordError(f"{where} holds no record.")
    return record
