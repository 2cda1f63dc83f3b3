"""What was generated, tokenised or unpacked once, kept for the next time.

The folder is `COSFORMER_CACHE`, else `cosformer` in the user's cache folder (`XDG_CACHE_HOME`, else
~/.cache). An entry is a folder named by a digest of everything it depends on. It is written aside and renamed
when it is complete, so that whatever has its final name was whole once; checksums tell whether it still is,
and what is damaged is made again. A second process waits for the first.
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

from filelock import FileLock

from cosformer import atomic, checksums

VARIABLE = "COSFORMER_CACHE"
_may_build = True
_fully = False


class NotBuilt(Exception):
    """An entry that would have to be built first."""


@contextlib.contextmanager
def nothing_is_built() -> Iterator[None]:
    """Inside, an entry that is not there raises `NotBuilt`: to look at what there is, in no time."""
    global _may_build
    before, _may_build = _may_build, False
    try:
        yield
    finally:
        _may_build = before


@contextlib.contextmanager
def every_byte_is_verified() -> Iterator[None]:
    """Inside, entries are read to the last byte before they are used, also the large ones."""
    global _fully
    before, _fully = _fully, True
    try:
        yield
    finally:
        _fully = before


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
    wrong = _damage(target)
    if wrong is None:
        return target
    if not _may_build:
        raise NotBuilt(str(target))
    said = f"{target} is damaged ({wrong}), and " if target.exists() else ""
    lock = target.with_suffix(".lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock).acquire()
    except OSError as error:
        raise _unwritable(said, error) from error
    with held:
        wrong = _damage(target)
        if wrong is None:
            return target
        if target.exists():
            logger.warning("%s is damaged (%s): it is made again.", target, wrong)
        logger.info("making %s, once, in %s", kind, target)
        try:
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        except OSError as error:
            raise _unwritable(said, error) from error
        try:
            build(aside)
            (aside / "settings.json").write_text(text + "\n")
            checksums.write(aside)
            _flush(aside)
            aside.chmod(0o755)
            if target.exists():  # damaged: a folder cannot be renamed onto another
                target.rename(aside.with_suffix(".damaged"))
            aside.rename(target)
        finally:
            shutil.rmtree(aside.with_suffix(".damaged"), ignore_errors=True)
            shutil.rmtree(aside, ignore_errors=True)
            lock.unlink(missing_ok=True)  # while it is held: who waits for it sees that, and makes another
    return target


def _damage(target: Path) -> str | None:
    """What is wrong with an entry, or None: also that it is not there."""
    if not target.is_dir():
        return "it is not there"
    return checksums.damage(target, fully=_fully)


def _unwritable(said: str, error: OSError) -> OSError:
    return OSError(
        f"{said}the cache folder {root()} cannot be written ({error.strerror}); set {VARIABLE} to one "
        "that can."
    )


def _flush(folder: Path) -> None:
    """Syncs the files before the rename: after a power failure an entry is complete or absent."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), folder]:
        atomic.flush(path)
