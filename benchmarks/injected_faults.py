"""What can happen to a process that trains, made to happen at a drawn moment, and how the process ended.

A moment is a number: of a thing that the process does in the folder of its run (a file opened, renamed or
removed, a folder made, an fsync), or of seconds.
"""

import errno
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutations import spoil

SECONDS = 60.0  # after which a process hangs
FOLDER = "run"
ROOM = (0, 500, 5_000, 20_000)  # bytes that a file may have on a disk that is full
YEARS = (-30, -1, -0.001, 0.001, 1, 30)


@dataclass
class Ended:
    """How a process ended: its exit code, or minus the signal; what it said; whether the fault struck."""

    code: int
    said: str
    struck: bool
    hung: bool = False


class Moment:
    """Does something when the process is about to do its n-th thing in the folder, or after some seconds."""

    def __init__(self, act: Callable[[], None], number: int | None, seconds: float | None, told: int):
        self.act, self.number, self.told, self.count = act, number, told, 0
        sync = os.fsync

        def fsync(fd: Any) -> None:
            self.step()
            sync(fd)

        os.fsync = fsync
        sys.addaudithook(self._heard)
        if seconds is not None:
            signal.signal(signal.SIGALRM, lambda *_: self._strike())
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event.startswith(("os.", "shutil.")):
            path = arguments[0] if arguments else None
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith((FOLDER, "results")):
                self.step()

    def step(self) -> None:
        self.count += 1
        if self.count == self.number:
            self._strike()

    def _strike(self) -> None:
        os.write(self.told, b"!")
        self.act()


def start(main: Callable[[], int], arm: Callable[[int], None], folder: Path) -> tuple[int, int, int]:
    """A fork that is armed and runs `main` in the folder: its id, and the ends of the pipes through which it
    says something and tells that it was struck. (A full disk is none for pipes.)"""
    said, write_said = os.pipe()
    told, write_told = os.pipe()
    child = os.fork()
    if child:
        os.close(write_said)
        os.close(write_told)
        return child, said, told
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for end in (1, 2):
            os.dup2(write_said, end)
        sys.stdout, sys.stderr = (os.fdopen(end, "w", closefd=False) for end in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        arm(write_told)
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def finish(pipes: tuple[int, int, int], stopped: Callable[[], None] = lambda: None) -> Ended:
    """Waits for the end; a process that has stopped itself goes on once `stopped` has done what it does."""
    child, said, told = pipes
    words, began, hung = b"", time.monotonic(), False
    while True:
        if select.select([said], [], [], 0.002)[0]:
            words += os.read(said, 65536)
        done, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(status):
            stopped()
            os.kill(child, signal.SIGCONT)
        elif done:
            break
        elif time.monotonic() - began > SECONDS and not hung:
            hung = True
            os.killpg(child, signal.SIGKILL)
    while select.select([said], [], [], 0)[0] and (more := os.read(said, 65536)):
        words += more
    struck = bool(select.select([told], [], [], 0)[0] and os.read(told, 1))
    os.close(said)
    os.close(told)
    return Ended(os.waitstatus_to_exitcode(status), words.decode(errors="replace"), struck, hung)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pause() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def interrupt(rng: random.Random) -> Callable[[], None]:
    """Ctrl-C or SIGTERM, perhaps twice."""
    number, times = rng.choice((signal.SIGINT, signal.SIGTERM)), rng.choice((1, 1, 1, 2))

    def act() -> None:
        for _ in range(times):
            os.kill(os.getpid(), number)

    return act


def fill(rng: random.Random) -> Callable[[], None]:
    """No file may grow past this number of bytes; or what was written does not reach the disk."""
    room, late = rng.choice(ROOM), rng.random() < 0.3

    def no_room(fd: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def act() -> None:
        if late:
            os.fsync = no_room
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return act


def shift_clock(rng: random.Random) -> Callable[[], None]:
    """The clock jumps, and the files of the run have times from other years."""
    years, seed, now = rng.choice(YEARS), rng.random(), time.time

    def act() -> None:
        time.time = lambda: now() + years * 365 * 86400
        draw = random.Random(seed)
        for path in Path(FOLDER).rglob("*"):
            at = now() + draw.choice(YEARS) * 365 * 86400
            if path.exists():
                os.utime(path, (at, at))

    return act


def damage(folder: Path, rng: random.Random) -> tuple[str, Callable[[], None]] | None:
    """Spoils a file of the run: in words, and what puts it back; None where there is none."""
    found = sorted(p for p in (folder / FOLDER).rglob("*") if p.is_file() and p.name != ".lock.json")
    if not found:
        return None
    path = rng.choice(found)
    content = path.read_bytes()

    def back() -> None:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    try:
        return f"{path.relative_to(folder)}: {spoil(path, rng)}", back
    except (ValueError, RecursionError):  # a log that was spoilt before is no JSON any more
        path.write_bytes(content[: len(content) // 2])
        return f"{path.relative_to(folder)}: cut", back
