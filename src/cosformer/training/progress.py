"""The progress of a run: steps done and time left."""

import time
from collections.abc import Callable
from typing import Any

from cosformer import terminal

Progress = Callable[[dict[str, Any]], None]


class Bar(terminal.Progress):
    """A progress bar over the steps, which stays at the end; where the output is no terminal, a line every
    half minute."""

    def __init__(self, title: str):
        super().__init__(30.0, desc=title, unit="step")
        self._drawn = 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        """`event`: step, steps; seconds_left, loss, learning_rate, tokens_per_s and the metric as far as they
        are known; `evaluating`, the split and how much of it is done, in words; `done` at the end."""
        if self.bar is None:
            self.start(event["steps"], event["step"])
        self.bar.update(event["step"] - self.bar.n)
        shown = {k: v for k, v in event.items() if k not in ("step", "steps", "done", "seconds_left")}
        words = {k: v if isinstance(v, str) else f"{v:.4g}" for k, v in shown.items()}
        self.bar.set_postfix(words, refresh=False)
        if "evaluating" in event and time.monotonic() - self._drawn >= self.bar.mininterval:
            self.bar.refresh()  # the bar itself refreshes only after a step
            self._drawn = time.monotonic()
        if event.get("done"):
            self.end()
