"""Output for the terminal: a progress line, plain tables, numbers in readable units."""

import sys
from collections.abc import Sequence
from typing import Any


class Progress:
    """A progress bar with the time left and the current step, which is removed at the end. Where the output
    is no terminal: a line every `every` seconds. `options` of tqdm replace this form."""

    def __init__(self, every: float = 20.0, **options: Any):
        watched = sys.stderr.isatty()
        often = 0.1 if watched else every
        form = "{percentage:3.0f}%  {remaining} left  {desc}"
        options = options or {"delay": often, "leave": False, "bar_format": form}
        self.options = {"mininterval": often, "dynamic_ncols": watched, **options}
        self.bar: Any = None

    def start(self, steps: int, done: int = 0) -> None:
        from tqdm import tqdm

        self.end()
        self.bar = tqdm(total=steps, initial=done, file=sys.stderr, **self.options)

    def step(self, doing: str, done: int | None = None) -> None:
        """Called before each step with a description of it and, unless it is the next one, with the number of
        steps done."""
        self.bar.set_description_str(doing, refresh=False)
        self.bar.update(1 if done is None else done - self.bar.n)

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()


def plain(header: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = True) -> str:
    """Aligned columns: the first to the left, the others, where they are figures, to the right."""
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
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{_three(value)} {unit}"
        value /= 1024
    return f"{_three(value)} PiB"


def _three(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.3f}"


def times(value: float) -> str:
    """A ratio: 0.85x, 12.3x."""
    return _three(value) + "x"
