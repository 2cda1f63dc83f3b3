"""A folder that one process at a time writes to.

The lock is the kernel's (flock), so that it ends with the process, however that ends; the content of the file
only names the holder. Child processes release it: workers of a loader outlive a killed process by seconds.
"""

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from cosformer.reading import parsed

FILE = ".lock.json"
_held: set[int] = set()


class InUse(FileExistsError):
    """Another process, or another thread of this one, works in the folder."""


@contextlib.contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """Holds a folder, or raises `InUse` at once; `doing` says what is done there, as in "trains"."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _held.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"{folder} is in use: {_holder(descriptor)}. Wait until it has ended, or give another folder."
            ) from None
        began = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        own = {"process": os.getpid(), "host": socket.gethostname(), "doing": doing, "since": began}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(own) + "\n").encode(), 0)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also where a child has not closed its copy yet
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """process 4711 on this-host trains there since ..."""
    try:
        said = parsed(os.pread(descriptor, 4096, 0), FILE)
        return "process {process} on {host} {doing} there since {since}".format(**said)
    except (ValueError, KeyError, TypeError):
        return "another process works there"


def _let_go() -> None:
    """In a child: its copies of the descriptors would hold the locks after the parent's end."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
