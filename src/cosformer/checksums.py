"""Sizes and checksums of the files of a folder, written when it is complete and verified when it is opened.

CRC-32 is what every run computes (4 GB/s on one core); SHA-256 what a full verification does. A folder is
verified once in a process, and again where the size or the time of one of its files has changed.
"""

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from cosformer.reading import json_object

FILE = "checksums.json"
LARGE = 1024**3  # bytes; of larger files a run compares only the size
_BLOCK = 1 << 20  # bytes read at a time
_verified: dict[Path, list[Any]] = {}


def write(folder: Path) -> None:
    """Writes the checksums of all files of a folder; called when everything else is written."""
    entries = {}
    for path in _files(folder):
        crc, sha = _digests(path)
        entries[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size, "crc32": crc, "sha256": sha,
        }  # fmt: skip
    noted = {"files": entries, "crc32": _crc_of(entries)}
    (folder / FILE).write_text(json.dumps(noted, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path, *, fully: bool = False) -> str | None:
    """What is wrong with a folder, or None. `fully` reads every byte; otherwise only the sizes of large files
    are compared, and nothing is read twice in a process."""
    try:
        stamp = [
            (str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _files(folder, all=True)
        ]
        if not fully and _verified.get(folder) == stamp:
            return None
        noted = json_object(folder / FILE)
        entries = noted["files"]
        if noted["crc32"] != _crc_of(entries):
            return f"{FILE} has another checksum than when it was written"
        found = {path.relative_to(folder).as_posix() for path in _files(folder)}
        for name in sorted(found ^ set(entries)):
            return f"{name} is missing" if name in entries else f"{name} does not belong there"
        for name, entry in entries.items():
            wrong = _wrong(folder / name, entry, fully)
            if wrong is not None:
                return f"{name} {wrong}"
    except OSError as error:
        return f"{Path(error.filename or FILE).name} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{FILE} holds no checksums"
    _verified[folder] = stamp
    return None


def forget() -> None:
    """Makes the next opening of every folder verify it again."""
    _verified.clear()


def _wrong(path: Path, entry: dict[str, Any], fully: bool) -> str | None:
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"has {size:,} bytes instead of {entry['bytes']:,}"
    if size > LARGE and not fully:
        return None
    crc, sha = _digests(path, fully)
    right = crc == entry["crc32"] and sha in (None, entry["sha256"])
    return None if right else "has another checksum than when it was written"


def _digests(path: Path, fully: bool = True) -> tuple[int, str | None]:
    """CRC-32 and, `fully`, SHA-256 of a file."""
    crc, sha = 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
            if fully:
                sha.update(block)
    return crc, sha.hexdigest() if fully else None


def _crc_of(entries: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())


def _files(folder: Path, *, all: bool = False) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if all or path != folder / FILE)
