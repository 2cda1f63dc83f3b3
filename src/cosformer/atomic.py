"""Atomic writes: the old file stays until the new one is complete on disk."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def flush(path: Path) -> None:
    """Waits until a file, or the list of names of a folder, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows syncs no folders
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path`: synced and renamed at the end of the block, removed on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with aside.open("wb") as file:
            yield file
        flush(aside)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush(path.parent)


def replace(path: Path, content: str | bytes) -> None:
    """Writes the content of a file."""
    with writing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    replace(path, json.dumps(value, indent=1) + "\n")
