"""Ends all processes of a group when one fails, each with the reason.

A collective waits for a failed process for minutes, and then reports an address instead of a reason. Here
every process holds a connection to rank 0: the kernel closes it when a process dies, however that happens,
and a process that fails sends its reason before it exits.
"""

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import torch
from torch import Tensor

GRACE = 10.0  # seconds for a process to end by itself once another has failed
_logger = logging.getLogger(__name__)
_DONE, _SILENT = "done", "it ended without a word (killed, or out of memory)"


class PeerFailed(RuntimeError):
    """Another process of the group has failed, and this one cannot go on without it."""


class Peers:
    """While entered, the failure of one process ends all of them, each with a sentence that names it.

    Args:
        rank, size: of this process, and of the group.
        total: sums a tensor over the group.
        device: for the tensors that are summed.
    """

    def __init__(self, rank: int, size: int, total: Callable[[Tensor], Tensor], device: torch.device):
        self.rank, self.size, self.total, self.device = rank, size, total, device
        self.news: str | None = None
        self._met, self._told, self._left = threading.Event(), threading.Event(), threading.Event()
        self._links: dict[Connection, int] = {}
        self._listener: Listener | None = None

    def __enter__(self) -> "Peers":
        if self.size > 1:
            own = [0, 0]  # port and password
            if self.rank == 0:
                own[1] = secrets.randbits(60)
                self._listener = Listener(("", 0), backlog=self.size, authkey=str(own[1]).encode())
                own[0] = self._listener.address[1]
            port, password = self.total(torch.tensor(own, device=self.device)).tolist()
            for work in (self._meet, self._listen):
                threading.Thread(target=work, args=(port, str(password).encode()), daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.size == 1:
            return
        self._met.wait(5)
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

    def _meet(self, port: int, password: bytes) -> None:
        """In a thread: connects this process, or from rank 0 all others."""
        try:
            if self._listener is None:
                host = os.environ.get("MASTER_ADDR", "localhost")  # where rank 0 is
                link = Client((host, port), authkey=password)
                link.send_bytes(str(self.rank).encode())
                self._links[link] = 0
            while self._listener is not None and len(self._links) < self.size - 1:
                with suppress(AuthenticationError, EOFError, ValueError):  # not one of our processes
                    link = self._listener.accept()
                    self._links[link] = int(link.recv_bytes(20))
        except OSError as error:
            if not self._left.is_set():
                _logger.warning("Rank %s cannot reach rank 0 (%s): if others fail, it may wait for them.",
                                self.rank, error)  # fmt: skip
        self._met.set()

    def _listen(self, port: int, password: bytes) -> None:
        """In a thread: until a process has failed, or this one leaves."""
        done: set[int] = set()
        while not self._left.is_set():
            waiting = {link: rank for link, rank in list(self._links.items()) if rank not in done}
            with suppress(OSError):  # closed by `_leave`
                ready = wait(list(waiting), timeout=0.2 if not self._met.is_set() else 1)
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


def _of_a_collective(error: RuntimeError) -> bool:
    """Whether it may be the consequence of another process's failure."""
    return isinstance(error, torch.distributed.DistError) or any(
        word in str(error) for word in ("gloo", "NCCL", "peer")
    )
