"""Work on all cores, with a result that does not depend on their number.

The work is divided into numbered jobs, each with a random generator of its own; results come in the order of
the jobs.
"""

import collections
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")

VARIABLE = "COSFORMER_WORKERS"


def cores() -> int:
    """`COSFORMER_WORKERS`, else the cores this process may use."""
    given = os.environ.get(VARIABLE)
    if given:
        if not given.isdigit() or int(given) < 1:
            raise ValueError(f"{VARIABLE} must be a positive number of processes, but it is {given!r}.")
        return int(given)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def ordered(function: Callable[[J], R], jobs: Iterable[J]) -> Iterator[R]:
    """function(job) for each job, in order; jobs may go on for ever, as long as the caller stops.

    The function must be one of a module's, and jobs and results are sent from process to process.
    """
    workers = cores()
    # The workers of a DataLoader are daemons, which may not start processes.
    if workers == 1 or multiprocessing.current_process().daemon:
        yield from map(function, jobs)
        return
    # A forked process starts at once; a spawned one would first import PyTorch.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    waiting: collections.deque[Future[R]] = collections.deque()
    todo = iter(jobs)
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(workers, context, _leave_with, (os.getpid(),)) as pool:
        try:
            # A few jobs ahead: workers do not wait, and little is wasted when the caller stops.
            waiting.extend(pool.submit(function, job) for job in itertools.islice(todo, workers + 2))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(function, job) for job in itertools.islice(todo, 1))
                yield result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed would wait for ever: it looks now and then whether it is there."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
