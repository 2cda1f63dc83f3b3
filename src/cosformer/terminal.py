"""What a person at the terminal sees: one progress line, plain tables, figures in the unit that suits."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO


class Progress:
    """One line that is written over, with the time left; where nobody watches, a line now and then."""

    def __init__(self, stream: TextIO | None = None, every: float = 20.0):
        self.stream = stream or sys.stderr
        self.watched = self.stream.isatty()
        self.every = 0.1 if self.watched else every
        self.steps = self.done = 0
        self.began = self.shown = time.monotonic()

    def start(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self.began = time.monotonic()

    def step(self, doing: str) -> None:
        """Called before each step with what it is about to do."""
        now = time.monotonic()
        if now - self.shown >= self.every:
            share = self.done / max(self.steps, 1)
            left = (now - self.began) * (1 - share) / share if share > 0.02 else None
            text = f"{share:4.0%}  {_minutes(left) + ' left' if left is not None else '':>10}  {doing}"
            self.stream.write(f"\r{text[:118]:<118}" if self.watched else text + "\n")
            self.stream.flush()
            self.shown = now
        self.done += 1

    def end(self) -> None:
        if self.watched:
            self.stream.write("\r" + " " * 118 + "\r")
            self.stream.flush()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def plain(header: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = True) -> str:
    """Columns under one another: the first to the left, the others, where they are figures, to the right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = []
    for row in table:
        cells = [c.rjust(w) if figures else c.ljust(w) for c, w in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Three figures in the unit that suits: 0.123 ms, 12.3 ms, 1.23 s."""
    return f"{_three(value)} s" if value >= 1 else f"{_three(value * 1e3)} ms"


def size(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{_three(value)} {unit}"
        value /= 1024
    return f"{_three(value)} GiB"


def _three(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.3f}"


def times(value: float) -> str:
    """A ratio: 0.85x, 12.3x."""
    return _three(value) + "x"
