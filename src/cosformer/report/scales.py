"""Axes: where a value lies, which ticks to draw, and how a figure is written in its unit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cosformer.terminal import seconds, size


def written(value: float, unit: str) -> str:
    """A figure as a reader wants it: 4K tokens, 12.3 ms, 520 KiB, 2.31."""
    if unit == "tokens":
        return f"{value / 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"
    if unit == "seconds":
        return f"{value * 1e6:.3g} µs" if 0 < value < 1e-4 else _short(seconds(value))
    if unit == "bytes":
        return _short(size(value))
    if unit == "count":
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _short(words: str) -> str:
    """10.0 ms -> 10 ms."""
    figure, _, unit = words.partition(" ")
    return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit}"


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to pixels [begin, end]."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high, x = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        share = (x - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)


def fitted(values: Sequence[float], begin: float, end: float, log: bool, room: float = 0.06) -> Scale:
    """A scale around the values with a little room."""
    low, high = min(values), max(values)
    if log:
        span = max(math.log(high / low), 0.7)
        return Scale(low / math.exp(room * span), high * math.exp(room * span), begin, end, True)
    span = (high - low) or abs(high) or 1.0
    return Scale(low - room * span, high + room * span, begin, end, False)


def ticks(scale: Scale, most: int, unit: str) -> list[float]:
    """Round values inside the scale, at most so many."""
    if not scale.log:
        return _linear(scale.low, scale.high, most)
    base = 2.0 if unit in ("tokens", "bytes") else 10.0
    first, last = (math.log(v, base) for v in (scale.low, scale.high))
    powers = [base**n for n in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
    if base == 10.0 and len(powers) < 3:
        fine = [m * 10.0**n for n in range(math.floor(first), math.ceil(last) + 1) for m in (1, 2, 5)]
        powers = [v for v in fine if scale.low <= v <= scale.high]
    if len(powers) < 3:  # so narrow that it is nearly straight
        return _linear(scale.low, scale.high, most)
    step = -(-len(powers) // most)
    return powers[::-1][::step][::-1] if step > 1 else powers


def _linear(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]
