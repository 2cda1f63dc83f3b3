"""What a person at the terminal sees: one progress line, plain tables, one sentence for a mistake."""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from typing import NoReturn, TextIO


class Parser(argparse.ArgumentParser):
    """A mistake is answered by one sentence and exit code 2, not by a page of usage."""

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:].rstrip(".")
        self.exit(2, f"{self.prog}: {sentence}. See --help.\n")

    def need_cosformer(self) -> None:
        if importlib.util.find_spec("cosformer") is None:
            self.error("the package cosformer is not installed; run `pip install -e .` in the repository")


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


def plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under one another: the first to the left, the others, being figures, to the right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = []
    for row in table:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = True) -> str:
    rule = ["---"] + ["---:" if figures else "---"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


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
