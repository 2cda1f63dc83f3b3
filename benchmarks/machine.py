"""The machine a benchmark runs on: what it is (as every record says it), what a contender may take of it,
and who else was using it."""

import os
import time
from pathlib import Path

import torch

from cosformer.machine import commit, forget_peak, hardware, resident, versions
from cosformer.memory import physical

__all__ = [
    "ROOT",
    "Others",
    "commit",
    "forget_peak",
    "hardware",
    "memory_limit",
    "resident",
    "versions",
    "wait",
]

ROOT = Path(__file__).resolve().parent.parent


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_limit(device: torch.device) -> int:
    """What a contender may take: half of a GPU, of a CPU a quarter and 4 GiB at most."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory // 2)
    return min(4 * 2**30, (physical() or 8 * 2**30) // 4)


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
