"""Throughput of a run, of training alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cosformer import machine
from cosformer.training.status import Status


class Clock:
    """Runs while a stretch trains: not in its first steps, in evaluations or while a checkpoint is written.

    Attributes:
        tokens: those trained on while it ran, and not noted yet.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.tokens = 0
        self._spent = 0.0
        self._since: float | None = None
        self._began = self._stretch = time.monotonic()
        machine.forget_peak(device)

    def started_after(self, steps: int, planned: int) -> bool:
        """Whether warm-up ends after this number of steps of this stretch."""
        return steps == min(10, max(1, planned // 10))

    def start(self) -> None:
        """Starts counting from zero."""
        self.tokens, self._spent = 0, 0.0
        self._since = self._now()

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = self._since is not None
        if running:
            self._spent = self.seconds()
            self._since = None
        yield
        if running:
            self._since = self._now()

    def seconds(self) -> float:
        return self._spent + (0.0 if self._since is None else self._now() - self._since)

    def timed(self, status: Status) -> tuple[int, float]:
        """Tokens and seconds that count for a run's throughput, of all its stretches so far."""
        seconds = self.seconds()
        return status.timed_tokens + (self.tokens if seconds else 0), status.timed_s + seconds

    def seconds_left(self, done: int, left: int) -> float:
        """The estimated time left, evaluations and checkpoints included."""
        return (time.monotonic() - self._stretch) / done * left

    def note(self, status: Status) -> None:
        """Adds the time and tokens since the last note to the run's figures. Called while paused."""
        now = time.monotonic()
        status.wall_s += now - self._began
        self._began = now
        if self._spent:  # it has run
            status.timed_tokens, status.timed_s = self.timed(status)
            self.tokens, self._spent = 0, 0.0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()
