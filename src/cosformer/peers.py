"""Ends all processes of a group when one fails, each with the reason.

A process that waits in a collective for one that has failed gets a timeout minutes later, with an address
instead of a reason. Here every process holds a connection to rank 0: the operating system closes it when a
process dies, however that happens, and a process that fails sends the reason first. The connections are made
before anything else, so that a process lost during start-up is noticed as well.
"""

import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

GRACE = 10.0  # seconds that a process is left to end by itself once another has failed
WAIT = "COSFORMER_WAIT_S"  # names the seconds that processes wait for each other at the beginning
_LAUNCHED = "TORCHELASTIC_USE_AGENT_STORE"  # by a launcher that misses lost processes itself
_meetings = count()
_DONE, _SILENT = "done", "it ended without a word (killed, or out of memory)"


class PeerFailed(RuntimeError):
    """Another process of the group has failed, and this one cannot go on without it."""


class Peers:
    """While entered, the failure of one process ends all of them, each with a sentence that names it. Which
    processes there are is read from the environment, as torchrun sets it."""

    def __init__(self) -> None:
        self.rank, self.size = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
        self.host = os.environ.get("MASTER_ADDR", "127.0.0.1")  # where rank 0 is
        self.news: str | None = None
        self._told, self._left = threading.Event(), threading.Event()
        self._links: dict[Connection, int] = {}
        self._listener: Listener | None = None

    def __enter__(self) -> "Peers":
        if self.size > 1:
            launched = os.environ.get(_LAUNCHED) == "True"
            seconds = float(os.environ.get(WAIT, 300 if launched else 25))
            try:
                self._meet(launched, time.monotonic() + seconds)
            except (RuntimeError, OSError, EOFError):
                known = self._told.wait(1)
                self._leave(_DONE)
                raise PeerFailed(
                    self.news if known else
                    f"rank {self.rank} of {self.size} waited for the others, and not all have come within "
                    f"{seconds:g} s: start all of them at once, or set {WAIT} to more seconds."
                ) from None  # fmt: skip
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.size == 1:
            return
        if isinstance(error, RuntimeError) and self._told.wait(5 if _of_a_collective(error) else 0):
            self._leave(_DONE)  # the others have been told
            raise PeerFailed(self.news) from None
        said = "" if error is None else " ".join(f"{type(error).__name__}: {error}".split())
        self._leave(f"rank {self.rank} of {self.size} failed: {said}" if said else _DONE)

    def _leave(self, word: str) -> None:
        self._left.set()
        self._tell(word)
        for link in list(self._links):
            link.close()
        if self._listener is not None:
            self._listener.close()

    def _tell(self, word: str) -> None:
        for link in list(self._links):
            with suppress(OSError):
                link.send_bytes(word.encode())

    def _meet(self, launched: bool, deadline: float) -> None:
        """Connects this process to rank 0, and waits until all are."""
        keeps, port = self.rank == 0 and not launched, int(os.environ.get("MASTER_PORT", 29500))
        while not keeps and not _answers(self.host, port):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.1)
        self._store = TCPStore(  # kept: rank 0 may be done with it before the others are
            self.host, port, self.size, is_master=keeps, multi_tenant=True, wait_for_workers=False,
            timeout=timedelta(seconds=max(1.0, deadline - time.monotonic())),
        )  # fmt: skip
        here = f"cosformer peers {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)} {next(_meetings)}"
        if self.rank == 0:
            password = secrets.token_hex(16)
            self._listener = Listener(("", 0), backlog=self.size, authkey=password.encode())
            self._store.set(here, f"{self._listener.address[1]} {password}")
        else:
            own, key = self._store.get(here).split()
            link = Client((self.host, int(own)), authkey=key)
            link.send_bytes(str(self.rank).encode())
            self._links[link] = 0
        threading.Thread(target=self._listen, daemon=True).start()
        if self.rank == 0:
            accepting = threading.Thread(target=self._accept, daemon=True)
            accepting.start()
            accepting.join(max(1.0, deadline - time.monotonic()))
            if accepting.is_alive():
                raise TimeoutError
            self._store.set(f"{here}, all", "")
        self._store.wait([f"{here}, all"])

    def _accept(self) -> None:
        """In a thread of rank 0: connects all others."""
        assert self._listener is not None
        with suppress(OSError):  # closed by `_leave`
            while len(self._links) < self.size - 1:
                with suppress(AuthenticationError, EOFError, ConnectionError, ValueError):  # a stranger
                    link = self._listener.accept()
                    self._links[link] = int(link.recv_bytes(20))

    def _listen(self) -> None:
        """In a thread: until a process has failed, or this one leaves."""
        done: set[int] = set()
        while not self._left.is_set():
            waiting = {link: rank for link, rank in list(self._links.items()) if rank not in done}
            with suppress(OSError):  # closed by `_leave`
                ready = wait(list(waiting), timeout=0.2)
                for link in [link for link in waiting if link in ready]:
                    done.add(waiting[link])
                    try:
                        word = link.recv_bytes().decode()
                    except (EOFError, OSError):
                        word = f"rank {waiting[link]} of {self.size} failed: {_SILENT}"
                    if word != _DONE and not self._left.is_set():
                        self._end(word)

    def _end(self, word: str) -> None:
        """This process, and from rank 0 all others: by an error where it can raise one, else at once."""
        if self.rank == 0:
            self._tell(word)
        self.news = (
            f"{word.rstrip('.')}. Rank {self.rank} was stopped with it; start the run again to continue from "
            "its newest checkpoint."
        )
        self._told.set()
        if not self._left.wait(GRACE):
            print(f"error: {self.news}", file=sys.stderr, flush=True)
            os._exit(1)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def _of_a_collective(error: RuntimeError) -> bool:
    """Whether it may be the consequence of another process's failure."""
    return isinstance(error, torch.distributed.DistError) or any(
        word in str(error) for word in ("gloo", "NCCL", "peer")
    )
