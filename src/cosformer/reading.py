"""JSON from untrusted files: of a bounded size and the expected type, or one sentence that says what is
wrong."""

import json
import stat
from pathlib import Path
from typing import Any

LIMIT = 64 * 1024**2  # bytes; no configuration or record comes near it


def parsed(text: str | bytes, where: object, advice: str = "") -> Any:
    """The value of JSON text; `where` names its place in the error, `advice` says what to do."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    said = f"{where} is damaged: it is not JSON ({reason}). {advice}"
    raise ValueError(said.rstrip())


def json_file(path: Path, advice: str = "Put a copy of it back.") -> Any:
    """The value of a JSON file. A device, a pipe or a file larger than LIMIT is not read at all."""
    return parsed(content(path), path, advice)


def json_object(path: Path, advice: str = "") -> dict[str, Any]:
    found = json_file(path, advice)
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} must hold a JSON object, but it holds a {_KINDS[type(found)]}. {advice}".rstrip()
        )
    return found


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line; none where there is no file. A last line that a crash has cut
    off is left out."""
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


def content(path: Path) -> bytes:
    """The bytes of an ordinary file of at most LIMIT bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no ordinary file.")
    if status.st_size > LIMIT:
        raise ValueError(f"{path} has {status.st_size:,} bytes, and at most {LIMIT:,} are read.")
    return path.read_bytes()


_KINDS: dict[type, str] = {
    list: "list", str: "text", int: "number", float: "number", bool: "truth value", type(None): "null",
}  # fmt: skip
