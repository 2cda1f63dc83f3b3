"""What was generated, tokenised or unpacked once, kept for the next time.

The folder is `COSFORMER_CACHE`, else `cosformer` in the user's cache folder (`XDG_CACHE_HOME`, else
~/.cache). An entry is a folder named by a digest of everything it depends on. It is written aside and renamed
when it is complete, so that whatever has its final name is whole; a second process waits for the first.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "COSFORMER_CACHE"

logger = logging.getLogger(__name__)


def root() -> Path:
    """Where entries are kept."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cosformer"


def entry(kind: str, settings: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """The folder for these settings; where there is none yet, `build` fills it.

    Settings are what the content depends on, as JSON: also the identities of the files it is made from, and
    a number that grows when the way it is made changes.
    """
    text = json.dumps({"kind": kind, "settings": settings}, sort_keys=True, indent=1)
    target = root() / kind / hashlib.sha256(text.encode()).hexdigest()[:20]
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(target.with_suffix(".lock"))
    except OSError as error:
        raise OSError(
            f"the cache folder {root()} cannot be written ({error.strerror}); set {VARIABLE} to one that can."
        ) from error
    with lock:
        if target.is_dir():
            return target
        logger.info("making %s, once, in %s", kind, target)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(aside)
            (aside / "settings.json").write_text(text + "\n")
            _flush(aside)
            aside.chmod(0o755)
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return target


@contextlib.contextmanager
def _held(handle: Any, path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        handle.close()


def _lock(path: Path) -> contextlib.AbstractContextManager[None]:
    """Held by one process at a time, and free again when that ends, however it ends.

    A lock that was waited for may have been removed by its holder: then nobody else looks at it.
    """
    try:
        import fcntl
    except ImportError:  # no such locks here: two processes may do the same work, and one of them keeps it
        return contextlib.nullcontext()
    while True:
        handle = path.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
                return _held(handle, path)
        handle.close()


def _flush(folder: Path) -> None:
    """Onto the disk before the name is: after a power cut an entry is whole or not there."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
