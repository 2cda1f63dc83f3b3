"""On what and with what a figure was measured: without it, it is not a figure."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent


def hardware(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpu_memory_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return found


def memory() -> int:
    """Bytes of main memory, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def memory_limit(device: torch.device) -> int:
    """What a contender may take: half of a GPU, of a CPU a quarter and 4 GiB at most."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory // 2)
    return min(4 * 2**30, (memory() or 8 * 2**30) // 4)


def versions() -> dict[str, str]:
    import cosformer

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cosformer": getattr(cosformer, "__version__", "unknown"),
    }
    if "fast_transformers" in sys.modules:
        found["fast-transformers"] = getattr(sys.modules["fast_transformers"], "__version__", "unknown")
    return found


def commit() -> dict[str, Any]:
    """The commit the figures belong to; `dirty` where files differ from it."""
    head = _git("rev-parse", "HEAD")
    return {"id": head, "dirty": bool(_git("status", "--porcelain")) if head else None}


class Others:
    """What share of the cores other processes used from here on.

    Taking turns evens out slow spells, but not who suffers most in them: threads that wait for one
    another after every small operation are held up far more than those of one large one.
    """

    def __init__(self) -> None:
        self.before = self._seconds()

    def share(self) -> float | None:
        """None where the system does not say."""
        now = self._seconds()
        if self.before is None or now is None:
            return None
        wall, all_, own = (b - a for a, b in zip(self.before, now, strict=True))
        return max(0.0, (all_ - own) / (wall * (os.cpu_count() or 1)))

    @staticmethod
    def _seconds() -> tuple[float, float, float] | None:
        """The clock, the time all processes have used (what a host took away included), and our own."""
        try:
            with open("/proc/stat") as stat:
                user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
        except (OSError, ValueError):
            return None
        ticks = user + nice + system + irq + softirq + steal
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _field(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
