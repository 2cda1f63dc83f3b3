"""Files of data sets: where they are searched, how they are read, and the errors when they are damaged.

Files are found under `COSFORMER_DATA`, then under `data` in the cache folder (where `fetch` puts them), each
as it is or with .xz or .gz. They are read as streams. What is wrong with them is a `DataError` that names the
file and the line.
"""

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from cosformer.tasks.io import cache

VARIABLE = "COSFORMER_DATA"
# An archive may be a thousand times larger than its file. The largest file of a data set that is read here
# has less than 2 GB, its longest line less than 2 MB.
LIMIT = 16 * 1024**3
LINE_LIMIT = 64 * 1024**2
PACKED = ("", ".xz", ".gz")
_DAMAGED = (EOFError, MemoryError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)


class DataError(ValueError):
    """A file of a data set is missing, damaged, or is not what it should be."""


def roots() -> list[Path]:
    """The folders that hold data sets, first to last."""
    given = os.environ.get(VARIABLE)
    return [*([Path(given).expanduser()] if given else []), cache.root() / "data"]


def find(*names: str, advice: str) -> Path:
    """The first of these files (relative to a root, packed or not) that is there.

    The advice says where to get the data set.
    """
    for root in roots():
        for name in names:
            for suffix in PACKED:
                path = root / (name + suffix)
                if path.is_file():
                    return path
    places = " and ".join(str(r) for r in roots())
    unset = "" if os.environ.get(VARIABLE) else f" ({VARIABLE} is not set)"
    raise DataError(
        f"{' or '.join(names)} is missing (as it is, or with .xz or .gz): it was looked for in {places}"
        f"{unset}. {advice}"
    )


def identity(path: Path) -> list[Any]:
    """What tells a file from another version of itself, for the keys of caches."""
    stat = path.stat()
    return [path.name, stat.st_size, stat.st_mtime_ns]


def bad(path: Path, line: int | None, what: str) -> DataError:
    """An error for a place in a file."""
    place = str(path) if line is None else f"{path}, line {line}"
    return DataError(f"{place}: {what}; repair the file, or fetch it again.")


def counted(path: Path, found: int, expected: tuple[int, ...], what: str = "rows") -> None:
    """Refuses a file of another size than the official one, which a download broken off leaves.

    Nothing is expected where `expected` is empty; the official number comes first in it.
    """
    if expected and found not in expected:
        raise DataError(
            f"{path}: {found:,} {what}, but the official file has {expected[0]:,}; fetch it again, or set "
            "official=False if another selection is meant."
        )


def opened(path: Path) -> IO[bytes]:
    """The file's own bytes, unpacked."""
    if path.suffix == ".xz":
        return lzma.open(path)
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return path.open("rb")


def pieces(path: Path, size: int = 1 << 20, limit: int | None = None) -> Iterator[bytes]:
    """The unpacked content, block by block; at most `limit` bytes of it (`LIMIT`, where none is given)."""
    done = 0
    try:
        with opened(path) as file:
            while piece := file.read(size):
                done += len(piece)
                _within(path, done, limit)
                yield piece
    except _DAMAGED as error:
        raise bad(path, None, f"the archive is damaged or cut off behind byte {done:,} ({error})") from error


def _within(path: Path, done: int, limit: int | None = None) -> None:
    limit = LIMIT if limit is None else limit
    if done > limit:
        raise bad(path, None, f"it unpacks to more than {limit:,} bytes, so it is not what it should be")


def mapped(file: Path, dtype: Any, origin: Path) -> Any:
    """The numbers of a file, memory-mapped; `origin` is the file of the data set that they are from."""
    if not file.stat().st_size:  # which cannot be mapped
        raise bad(origin, None, "it holds no text")
    return np.memmap(file, dtype, "r")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1; without their ends, and without a byte-order mark.

    A line ends at a newline and nowhere else: texts hold other characters that Python would take for one.
    """
    number = done = 0
    try:
        with opened(path) as file:
            while raw := file.readline(LINE_LIMIT + 1):
                number, done = number + 1, done + len(raw)
                if len(raw) > LINE_LIMIT:
                    raise bad(path, number, f"longer than {LINE_LIMIT:,} bytes")
                _within(path, done)
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise bad(path, number, f"no UTF-8 ({error.reason} at byte {error.start})") from error
                yield number, text.removesuffix("\n").removesuffix("\r")
    except _DAMAGED as error:
        raise bad(path, number + 1, f"the archive is damaged or cut off here ({error})") from error


def tsv(path: Path, columns: int | Sequence[str], *, broken: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Rows of tab-separated columns; quotes are plain characters.

    Args:
        columns: their names, which the first line has to give; or how many there are, with no such line.
        broken: rows of other widths that the official file is known to have, and that are left out.
    """
    width = columns if isinstance(columns, int) else len(columns)
    for number, line in lines(path):
        fields = line.split("\t")
        if number == 1 and not isinstance(columns, int):
            if fields != list(columns):
                raise bad(
                    path,
                    1,
                    f"the columns must be {', '.join(columns)}, but they are {', '.join(fields)[:200]}",
                )
            continue
        if len(fields) != width:
            if broken > 0:
                broken -= 1
                continue
            raise bad(path, number, f"{width} columns are expected, but there are {len(fields)}")
        yield number, fields


def jsonl(path: Path, fields: Mapping[str, type | tuple[type, ...]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records, one a line; each has at least these fields, of these types."""
    for number, line in lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise bad(path, number, f"no JSON ({str(error) or 'nested too deeply'})") from error
        if not isinstance(record, dict):
            raise bad(path, number, f"a JSON object is expected, but there is {line[:60]!r}")
        for name, kind in fields.items():
            if not isinstance(record.get(name), kind):
                wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
                found = str(record.get(name))[:60]
                raise bad(path, number, f"field {name!r} must be of type {wanted}, but it is {found!r}")
        yield number, record


def label(path: Path, line: int, given: str, known: Mapping[str, int]) -> int:
    """The number of a label."""
    if given not in known:
        raise bad(path, line, f"the label must be one of {', '.join(known)}, but it is {given[:60]!r}")
    return known[given]
