"""Runs one case of a campaign in a process of its own: with a limit of memory and of time, without a network,
with an eager "y" on its standard input, and with somebody who looks at how it ended."""

import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 30.0
MEMORY = 4 * 1024**3  # bytes beyond what a process has when it starts
RAN, NETWORK, TRACE = "ran", "network", "trace"  # files that a case leaves in its folder
ENDS = ("answered", "refused", "traceback", "hang", "killed", "code run", "network", "question")


class Refused(Exception):
    """The case was refused as it should be: in one sentence."""


def run(case: Callable[[], Any], folder: Path, seconds: float = SECONDS) -> dict[str, Any]:
    """How a case ends, {end, said}; it runs as a fork, in a folder of its own."""
    (folder / "answers").write_text("y\n" * 100)
    child = os.fork()
    if child == 0:
        _child(case, folder)
    began, status = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return {"end": "hang", "said": f"longer than {seconds:g} s"}
    return _judged(status, folder)


def _judged(status: int, folder: Path) -> dict[str, Any]:
    said = (folder / "said").read_text(errors="replace").strip() if (folder / "said").exists() else ""
    last = said.splitlines()[-1] if said else ""
    if list(folder.rglob(RAN)):
        return {"end": "code run", "said": last}
    if (folder / NETWORK).exists():
        return {"end": "network", "said": last}
    if (folder / "asked").exists():
        return {"end": "question", "said": last}
    if os.WIFSIGNALED(status):
        return {"end": "killed", "said": f"by signal {os.WTERMSIG(status)}"}
    if (folder / TRACE).exists():
        return {"end": "traceback", "said": (folder / TRACE).read_text(errors="replace")[-2000:]}
    return {"end": "answered" if os.WEXITSTATUS(status) == 0 else "refused", "said": last[:300]}


def _child(case: Callable[[], Any], folder: Path) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        _without_a_network(folder)
        answers, out = os.open("answers", os.O_RDONLY), os.open("said", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(answers, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
        code = _ended(case)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.lseek(0, 0, os.SEEK_CUR):
            Path("asked").touch()
    except BaseException:
        Path(folder / TRACE).write_text(traceback.format_exc(), errors="backslashreplace")
    os._exit(code)


def _ended(case: Callable[[], Any]) -> int:
    """0, or 2 for a refusal; a traceback is written down."""
    try:
        found = case()
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    except SystemExit as left:
        found = left.code
    return 0 if found in (None, 0) else 2


def _without_a_network(folder: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        (folder / NETWORK).touch()
        raise OSError("there is no network in a campaign")

    socket.getaddrinfo = refuse
    socket.socket.connect = refuse  # type: ignore[method-assign]
