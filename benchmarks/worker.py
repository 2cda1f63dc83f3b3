"""A process that makes one run after the other for the scheduler, so that libraries are imported, and the
GPU is set up, once for many runs."""

import ctypes
import gc
import os
import shutil
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cosformer import record_file

Job = dict[str, Any]
_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, log: Path, threads: int, parent: int, trains: bool) -> None:
    """Answers every job with an outcome, until the other end is closed. Who `trains` imports everything and
    sets up the GPU before the first job; who prepares data must not, for it forks."""
    _bind(parent)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(threads)
    if trains:
        import cosformer.training  # noqa: F401 (so that the first run need not wait for it)

        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        print(f"--- {job['doing']}", flush=True)
        connection.send(_prepared(job) if job["kind"] == "prepare" else _trained(job))


def _bind(parent: int) -> None:
    """Ctrl-C is the scheduler's business, which then asks us once; if it is killed, we go with it."""
    os.setpgrp()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prepared(job: Job) -> Job:
    """Generates, unpacks or tokenises the data of a task, which then lies in the cache."""
    from cosformer import tasks
    from cosformer.tasks.base import SPLITS

    try:
        os.nice(max(0, 5 - os.nice(0)))  # who trains starts kernels from the same cores
        task = tasks.build(job["task"], **job["settings"])
        for split in SPLITS:
            task.dataset(split)
    except Exception as error:
        traceback.print_exc()
        return {"outcome": "failed", "reason": _words(error)}
    return {"outcome": "finished"}


def _trained(job: Job) -> Job:
    import torch

    from benchmarks import curve
    from cosformer.training import Interrupted, Run, best, train

    folder, run = Path(job["folder"]), Run.from_dict(job["run"])
    try:
        record = train(
            run.replace(initial=job["initial"]), folder, progress=False, results=folder / "results.jsonl"
        )
        if job["weights"] is not None:
            _kept(best(folder), Path(job["weights"]))
        made = {
            **record,
            "settings": {**record["settings"], "initial": run.initial},
            "experiment": job["experiment"],
            "curve": curve.read(folder, record["metric"]["name"]),
        }
        for path in job["records"]:
            record_file.append_once(Path(path), made, "id")
        shutil.rmtree(folder, ignore_errors=True)
        return {"outcome": "finished", "record": made}
    except Interrupted as stopped:
        return {"outcome": "stopped", "reason": str(stopped)}
    except Exception as error:
        traceback.print_exc()
        shutil.rmtree(folder, ignore_errors=True)  # what failed would fail again from its last checkpoint
        return {"outcome": "failed", "reason": _words(error, folder)}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _kept(weights: Path, at: Path) -> None:
    """There all at once: others look for the folder, and begin when it is there."""
    begun = at.with_name(f"{at.name} begun")
    shutil.rmtree(begun, ignore_errors=True)
    shutil.copytree(weights, begun)
    shutil.rmtree(at, ignore_errors=True)
    begun.rename(at)


def _words(error: Exception, folder: Path | None = None) -> str:
    """Its first line; records name no folder of this machine."""
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    if folder is not None:
        words = words.replace(f"{folder.resolve().parent}/", "").replace(f"{folder.parent}/", "")
    return words[:300]
