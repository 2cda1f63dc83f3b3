"""Peak memory of a forward and backward pass beyond q, k, v and the incoming gradient.

On a GPU from PyTorch's allocator. On a CPU from the operating system: each case runs in a process of its own
(`python -m benchmarks.memory CASE`), which resets its peak resident size, makes one call and reads the
peak again. The output and the gradients of q, k and v count: at least 4 times the bytes of q.
"""

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import Shape, Work
from benchmarks.terminal import Progress
from benchmarks.timing import Case

ROOT = Path(__file__).resolve().parent.parent
PHASE = "forward+backward"
WARM_UP_LENGTH = 16

# Freed memory has to leave the process at once, or the peak would count what is no longer in use.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def measure_all(cases: list[Case], progress: Progress) -> list[dict[str, Any]]:
    """A record for each case with a backward pass, but for the parts of an attention timed alone.

    Processes do not share memory, so two of them run at once: most of their time is importing torch.
    """
    wanted = [c for c in cases if c.phase == PHASE and c.contender.computes != "part"]
    at_once = 1 if any(c.shape.device.type == "cuda" for c in wanted) else 2
    progress.start(len(wanted))
    records = []
    with ThreadPoolExecutor(at_once) as pool:
        for case, waiting in [(c, pool.submit(measure, c)) for c in wanted]:
            progress.step(f"memory: {case.contender.title}, {case.mode}, T = {case.shape.length}")
            records.append(waiting.result())
    progress.end()
    return records


def measure(case: Case) -> dict[str, Any]:
    """{extra_bytes, q_bytes, multiple}, or {skipped: why}."""
    shape = case.shape
    try:
        extra = _on_gpu(case) if shape.device.type == "cuda" else _in_new_process(case)
    except (OSError, RuntimeError) as error:
        return {**case.key(), "skipped": f"skipped: {error}"}
    sizes = {"extra_bytes": extra, "q_bytes": shape.bytes_of_q, "multiple": extra / shape.bytes_of_q}
    return {**case.key(), **sizes}


def _on_gpu(case: Case) -> int:
    contender, shape, mode = case.contender, case.shape, case.mode
    Work(contender, replace(shape, length=WARM_UP_LENGTH).inputs(), mode, PHASE)()
    work = Work(contender, shape.inputs(), mode, PHASE)
    torch.cuda.synchronize(shape.device)
    torch.cuda.reset_peak_memory_stats(shape.device)
    before = torch.cuda.memory_allocated(shape.device)
    work()
    torch.cuda.synchronize(shape.device)
    return torch.cuda.max_memory_allocated(shape.device) - before


def _in_new_process(case: Case) -> int:
    shape = case.shape
    if not os.path.exists("/proc/self/clear_refs"):
        raise OSError("peak memory on a CPU is read from Linux's /proc")
    sizes = {"batch": shape.batch, "length": shape.length, "heads": shape.heads, "dim": shape.dim}
    wanted = {
        **case.key(),
        "source": case.contender.source,
        "shape": {**sizes, "dtype": str(shape.dtype).removeprefix("torch.")},
        "threads": torch.get_num_threads(),
    }
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", json.dumps(wanted)],
        env={**os.environ, **_ALLOCATOR, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise RuntimeError(said[-1])
    return int(json.loads(done.stdout.splitlines()[-1])["extra_bytes"])


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the most since the last reset), in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _case(wanted: dict[str, Any]) -> int:
    torch.set_num_threads(wanted["threads"])
    of = wanted["shape"]
    dtype = getattr(torch, of.pop("dtype"))
    shape = Shape(**of, dtype=dtype, device=torch.device("cpu"))
    found, _ = importlib.import_module(wanted["source"]).find(shape)
    contender = next(c for c in found if c.name == wanted["contender"])
    Work(contender, replace(shape, length=WARM_UP_LENGTH).inputs(), wanted["mode"], PHASE)()
    work = Work(contender, shape.inputs(), wanted["mode"], PHASE)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


if __name__ == "__main__":
    print(json.dumps({"extra_bytes": _case(json.loads(sys.argv[1]))}))
