"""JSON files and files of records, read and written so that a crash leaves no half of one."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cosformer import atomic, reading, record_file
from cosformer.atomic import flush


def write_json(path: Path, value: Any) -> None:
    atomic.replace(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path, advice: str = "Put a copy of it back.") -> Any:
    return reading.json_file(path, advice)


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line. A last line that a crash has cut off is left out."""
    if not path.is_file():
        return []
    whole, found = path.read_bytes().split(b"\n")[:-1], []
    for number, line in enumerate(whole, 1):
        try:
            read = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error}).") from error
        if not isinstance(read, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object, but {read!r:.60}.")
        found.append(read)
    return found


def append_once(path: Path, record: dict[str, Any], key: str) -> bool:
    """Adds a line for a record, unless one with the same value under `key` is there; whether it did.

    Several processes may do so at once. What a crash left of such a line is taken away first; a file that
    holds anything else is refused, and stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        record_file.ordinary(path)
    with _locked(path) as descriptor:
        content = path.read_bytes()
        known, kept = record_file.scan(path, content, record_file.opening(record, key))
        os.ftruncate(descriptor, kept)
        os.lseek(descriptor, 0, os.SEEK_END)
        data = b"" if content[:kept].endswith(b"\n") or not kept else b"\n"
        is_new = all(other.get(key) != record[key] for other in known)
        if is_new:
            data += (json.dumps(record) + "\n").encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    flush(path.parent)
    return is_new


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # which unlocks it
