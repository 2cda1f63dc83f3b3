"""The progress of a run: steps done and time left."""

import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

Progress = Callable[[dict[str, Any]], None]


class Bar:
    """A progress bar over the steps; where the output is no terminal, a line every half minute."""

    def __init__(self, title: str):
        self.title = title
        self._bar: Any = None
        self._drawn = 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        """`event`: step, steps; seconds_left, loss, learning_rate, tokens_per_s and the metric as far as they
        are known; `evaluating`, the split and how much of it is done, in words; `done` at the end."""
        if self._bar is None:
            quiet = not sys.stderr.isatty()
            self._bar = tqdm(
                desc=self.title, total=event["steps"], initial=event["step"], unit="step",
                mininterval=30 if quiet else 0.2, dynamic_ncols=not quiet, file=sys.stderr,
            )  # fmt: skip
        self._bar.update(event["step"] - self._bar.n)
        shown = {k: v for k, v in event.items() if k not in ("step", "steps", "done", "seconds_left")}
        words = {k: v if isinstance(v, str) else f"{v:.4g}" for k, v in shown.items()}
        self._bar.set_postfix(words, refresh=False)
        if "evaluating" in event and time.monotonic() - self._drawn >= self._bar.mininterval:
            self._bar.refresh()  # the bar itself refreshes only after a step
            self._drawn = time.monotonic()
        if event.get("done"):
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
