"""A worker process as the scheduler sees it."""

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from benchmarks import worker
from benchmarks.plan import Entry


@dataclass
class Slot:
    """A worker and what it is doing: an entry of a plan, or the data of a task. Its connection answers with
    outcomes."""

    process: SpawnProcess
    connection: Connection
    entry: Entry | None = None
    task: str | None = None
    began: float = 0.0
    planned: float = 0.0  # seconds alone, before they are corrected by what other runs have taken
    spent: float = 0.0  # of these, as far as others beside it have let it come

    @property
    def busy(self) -> bool:
        return self.entry is not None or self.task is not None

    def kill(self) -> None:
        self.connection.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join(5)


def spawn(log: Path, threads: int, *, trains: bool) -> Slot:
    """A new worker, which writes what it prints to a log; see `worker.serve`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker.serve, args=(theirs, log, threads, os.getpid(), trains))
    process.start()
    theirs.close()
    return Slot(process, ours)
