"""Comparable times: contenders and lengths are measured in interleaved rounds, so that other load on the
machine affects all of them alike."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.contenders import Contender, Shape, Work
from benchmarks.terminal import Progress

ROUNDS = 5
MOST_CALLS = 40  # in one round


def clock(device: torch.device, call: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of `times` calls; on a GPU by CUDA events, without a wait between calls."""
    if device.type == "cuda":
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
        for start, end in marks:
            start.record()
            call()
            end.record()
        torch.cuda.synchronize(device)
        return [start.elapsed_time(end) / 1e3 for start, end in marks]
    seconds = []
    for _ in range(times):
        start_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start_s)
    return seconds


def summary(samples: list[float]) -> dict[str, Any]:
    quarters = quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {
        "median_s": median(samples),
        "min_s": min(samples),
        "iqr_s": quarters[2] - quarters[0],
        "repeats": len(samples),
    }


@dataclass
class Case:
    """One contender at one length, in one mode and phase, and the times found so far."""

    contender: Contender
    shape: Shape
    mode: str
    phase: str
    samples: list[float] = field(default_factory=list)
    guess: float | None = None
    """Seconds of one call, from the first round; the number of calls follows from it."""

    def turn(self, inputs: Any, round_: int, rounds: int, seconds: float) -> None:
        slow = self.guess is not None and self.guess > seconds
        if slow and rounds > 3 and round_ % 2 == 1:
            return  # three rounds of five are enough for a call that outlasts its whole budget
        work = Work(self.contender, inputs, self.mode, self.phase)
        if not slow:
            warm_up = clock(self.shape.device, work, 1)[0]
            if self.guess is None:
                # Without the overhead of a first call; but a slow call is not made twice.
                self.guess = clock(self.shape.device, work, 1)[0] if warm_up < seconds else warm_up
        assert self.guess is not None
        calls = int(seconds / rounds / self.guess) - 1
        self.samples += clock(self.shape.device, work, max(1, min(calls, MOST_CALLS)))
        self.guess = min([self.guess, *self.samples])  # the first call may have been disturbed

    def key(self) -> dict[str, Any]:
        """How the case is named in the records."""
        names = {"contender": self.contender.name, "mode": self.mode, "phase": self.phase}
        return {**names, "length": self.shape.length}


def race(cases: list[Case], seconds: float, progress: Progress, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Every case in turns; `seconds` is the budget of a case over all rounds.

    Cases of equal length are neighbours and share their inputs; every second round runs backwards,
    so that no contender always comes first.
    """
    groups: dict[tuple[int, str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.shape.length, case.mode, case.phase), []).append(case)
    progress.start(rounds * len(cases))
    for round_ in range(rounds):
        for (length, mode, phase), group in list(groups.items())[:: -1 if round_ % 2 else 1]:
            inputs = group[0].shape.inputs()
            for case in group[:: -1 if round_ % 2 else 1]:
                doing = f"{case.contender.title}, {mode}, {phase}, T = {length}"
                progress.step(f"round {round_ + 1} of {rounds}: {doing}")
                case.turn(inputs, round_, rounds, seconds)
    progress.end()
    return [{**case.key(), **summary(case.samples)} for case in cases]


def profile(call: Callable[[], object], device: torch.device, rows: int = 12) -> list[dict[str, Any]]:
    """Where the time of a call goes: the operations that take most of it, and what they allocate."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it writes about itself
    from torch.profiler import ProfilerActivity

    call()
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        call()
    events = profiler.key_averages()
    on_gpu = device.type == "cuda"
    times = [e.self_device_time_total if on_gpu else e.self_cpu_time_total for e in events]
    whole = sum(times) or 1.0
    ranked = sorted(zip(times, events, strict=True), key=lambda pair: -pair[0])[:rows]
    return [
        {
            "name": event.key,
            "calls": event.count,
            "self_s": spent / 1e6,
            "share": spent / whole,
            "allocated_bytes": event.self_device_memory_usage if on_gpu else event.self_cpu_memory_usage,
        }
        for spent, event in ranked
    ]
