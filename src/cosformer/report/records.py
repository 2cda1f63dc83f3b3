"""Records from the disk: finished runs (results/*.jsonl) and benchmarks (benchmarks/reports/*.json)."""

import json
from pathlib import Path
from typing import Any

from cosformer.reading import content
from cosformer.record_format import wrong

Record = dict[str, Any]

FAILURES = "plan-failures.json"


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
            if (said := wrong(record)) is not None:
                raise RecordError(f"{path}, line {number}, is no record of a run: it {said}.")
            found.append(record)
    return found


def failures(folder: Path) -> dict[str, Record]:
    """Why planned runs have failed, by the names of their entries."""
    path = folder / FAILURES
    return _parsed(_text(path), str(path)) if path.is_file() else {}


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
        raise RecordError(f"{path} cannot be read: {str(error).rstrip('.')}.") from None


def _parsed(text: str, where: str) -> Record:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where} is not JSON ({error}): it was cut short or edited.") from None
    if not isinstance(record, dict):
        raise RecordError(f"{where} holds no record.")
    return record
