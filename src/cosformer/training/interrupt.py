"""Ctrl-C and SIGTERM stop a run between two steps, or two batches of an evaluation, with a checkpoint."""

import signal
import sys
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """Inside the context, the first signal is only recorded; a second one stops at once."""

    signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():  # handlers are set there alone
            for number in self.signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print(
            "\nstopping after this step or batch, with a checkpoint; once more stops at once, without one.",
            file=sys.stderr,
        )
