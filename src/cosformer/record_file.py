"""Files of records that may be appended to: one JSON object per line, and perhaps a last line that a crash of
this program has cut off. Any other file is left untouched."""

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

from cosformer.atomic import flush
from cosformer.record_format import FORMAT

LIMIT = 1024**3  # bytes
_OPENING = json.dumps({"format": FORMAT})[:-1].encode()


def check(path: Path) -> None:
    """Raises unless records can be appended to the file, or it is not there yet."""
    if path.exists():
        _ordinary(path)
        _scan(path, path.read_bytes(), _OPENING)


def holds(path: Path, record: dict[str, Any], key: str) -> bool:
    """Whether a file has a record with the same value under `key`, in a line of its own to the end."""
    if not path.exists():
        return False
    _ordinary(path)
    content = path.read_bytes()
    known, _ = _scan(path, content, _opening(record, key))
    return content.endswith(b"\n") and any(other.get(key) == record[key] for other in known)


def append_once(path: Path, record: dict[str, Any], key: str) -> bool:
    """Adds a line for a record, unless one with the same value under `key` is there; whether it did.

    Several processes may do so at once. What a crash left of such a line is taken away first; a file that
    holds anything else is refused, and stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _ordinary(path)
    with path.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        content = path.read_bytes()
        known, kept = _scan(path, content, _opening(record, key))
        file.truncate(kept)
        data = b"" if content[:kept].endswith(b"\n") or not kept else b"\n"
        is_new = all(other.get(key) != record[key] for other in known)
        if is_new:
            data += (json.dumps(record) + "\n").encode()
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())
    flush(path.parent)
    return is_new


def _opening(record: dict[str, Any], key: str) -> bytes:
    """How lines of such records begin: the first field, with its value where that is the same in all."""
    name = next(iter(record))
    text = json.dumps({name: record[name]})[:-1]
    return (text if name != key else text[: text.index(":") + 2]).encode()


def _scan(path: Path, content: bytes, begins: bytes) -> tuple[list[dict[str, Any]], int]:
    """The records of a file, and the number of its bytes to keep: all but a last line that this program began
    and did not finish. A last line that lacks only its newline counts."""
    *lines, tail = content.split(b"\n")
    found = [_object(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not tail:
        return found, len(content)
    try:
        return [*found, _object(path, len(lines) + 1, tail)], len(content)
    except ValueError:
        if tail.startswith(begins) or begins.startswith(tail):
            return found, len(content) - len(tail)
        raise


def _ordinary(path: Path) -> None:
    """Raises for what cannot be read to its end: a device, a pipe, a file beyond the limit."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _foreign(path, "it is no ordinary file")
    if status.st_size > LIMIT:
        raise _foreign(path, f"it has {status.st_size:,} bytes")


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _foreign(path, f"line {number} is no JSON object")
    return found


def _foreign(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is no file of records ({why}): nothing was written to it; give another file.")
