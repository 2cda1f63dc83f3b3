"""Ctrl-C while modules are imported: some of them catch it, and go on without a part of themselves."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

OTHERS = ("run", "serve")  # commands that start programs with a handler of their own


@contextmanager
def ending_imports(command: str) -> Iterator[None]:
    """Inside the context Ctrl-C raises KeyboardInterrupt as usual, but ends the process at once where it
    comes during an import. A handler that is not Python's own stays."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if command in OTHERS or not usual or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                os.write(2, f"cosformer {command}: Stopped.\n".encode())
                os._exit(130)
            frame = frame.f_back
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)
