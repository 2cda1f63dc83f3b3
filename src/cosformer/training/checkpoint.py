"""Checkpoints that are complete or absent.

A checkpoint is a folder `checkpoint-<step>`. It is written under another name, every file is flushed to the
disk, a manifest of sizes and checksums is written last, and only then does the folder get its name. So
a folder with that name was complete once; the manifest tells whether it still is.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from cosformer import reading
from cosformer.atomic import flush

MANIFEST = "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_ASIDE = ".partial-"
_logger = logging.getLogger(__name__)


def name(step: int) -> str:
    return f"checkpoint-{step}"


def steps(folder: Path) -> list[int]:
    """Of all checkpoints in a folder, whole or not, in ascending order."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("checkpoint-*"))
    return sorted(int(match[1]) for match in found if match)


def aside(folder: Path, step: int) -> Path:
    """Where a checkpoint is written before it gets its name."""
    return folder / f"{_ASIDE}{name(step)}"


def finish(path: Path) -> Path:
    """Turns the folder that was written aside into a checkpoint; returns its path."""
    entries = {}
    for inner in sorted(path.rglob("*")):
        flush(inner)
        if inner.is_file():
            entry = {"bytes": inner.stat().st_size, "sha256": _digest(inner)}
            entries[inner.relative_to(path).as_posix()] = entry
    manifest = path / MANIFEST
    manifest.write_text(json.dumps({"files": entries}, indent=1) + "\n", encoding="utf-8")
    flush(manifest)
    flush(path)
    final = path.with_name(path.name.removeprefix(_ASIDE))
    if final.exists():  # damaged, or of a run that was restarted: a folder cannot be renamed onto another
        discard(final)
    path.rename(final)
    flush(path.parent)
    return final


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        entries = reading.json_file(path / MANIFEST)["files"]
        if not entries:
            return f"{MANIFEST} names no files"
        for file, entry in entries.items():
            if Path(file).is_absolute() or ".." in Path(file).parts:
                return f"{MANIFEST} names {file}, which lies elsewhere"
            if not (path / file).is_file() and (path / file).exists():  # a device would be read without end
                return f"{file} is no ordinary file"
            size = (path / file).stat().st_size
            if size != entry["bytes"]:
                return f"{file} has {size} bytes instead of {entry['bytes']}"
            if _digest(path / file) != entry["sha256"]:
                return f"the checksum of {file} is wrong"
    except OSError as error:
        return f"{Path(error.filename or MANIFEST).name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is no manifest"
    return None


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint; damaged ones are skipped with a warning."""
    found = steps(folder)
    while found:
        path = folder / name(found.pop())
        wrong = damage(path)
        if wrong is None:
            return path
        then = "the one before it is tried" if found else "there is none before it"
        _logger.warning("%s is damaged (%s) and is left out; %s.", path, wrong, then)
    return None


def discard(path: Path) -> None:
    """Removes a checkpoint; it is renamed first, so that a crash leaves no half of one under its name."""
    gone = path.with_name(f"{_ASIDE}{path.name}-{os.getpid()}")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Removes what crashes have left beside the checkpoints."""
    for path in folder.glob(f"{_ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, keep: int, best_of: Callable[[Path], int | None]) -> None:
    """Keeps the newest `keep` checkpoints and the best one that each of them names, so that it exists for
    whichever of them a run is resumed from."""
    kept = set(steps(folder)[-keep:])
    needed: Collection[int | None] = {best_of(folder / name(step)) for step in kept}
    for step in steps(folder):
        if step not in kept and step not in needed:
            discard(folder / name(step))


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
