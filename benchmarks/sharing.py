"""Runs that share a GPU: how fast they are together, and when each would end."""

from collections.abc import Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """`left`: seconds that a run still takes alone. `load`: the share of the GPU that it keeps busy then."""

    left: float
    load: float


def slowdown(loads: Sequence[float]) -> float:
    """How much longer than alone runs take beside each other."""
    return max(1.0, sum(loads))


def ends(runs: Sequence[Share]) -> list[float]:
    """Seconds from now at which each run ends, if nothing else is begun."""
    found, now, done = [0.0] * len(runs), 0.0, 0.0
    order = sorted(range(len(runs)), key=lambda i: runs[i].left)
    for place, i in enumerate(order):
        now += (runs[i].left - done) * slowdown([runs[j].load for j in order[place:]])
        done, found[i] = runs[i].left, now
    return found
