"""Learning rates over the steps of a run, as pure functions of the step.

With W the steps of warm-up, S all steps, s = 1, 2, ... the step, every schedule begins with s / W and goes
on with

    constant      1
    cosine        e + (1 - e) (1 + cos(pi (s - W) / (S - W))) / 2
    polynomial    e + (1 - e) (1 - (s - W) / (S - W))^power
    inverse_sqrt  sqrt(W / s)
    rsqrt         1 / sqrt(s), the warm-up being s / W / sqrt(W)

times the learning rate; e is `end`, the share of it that is left after S steps. `rsqrt` is that of the Long
Range Arena's original code: there the learning rate given is sqrt(W) times the highest one reached.
"""

import math

NAMES = ("constant", "cosine", "polynomial", "inverse_sqrt", "rsqrt")


def factor(name: str, step: int, *, warmup: int, steps: int, end: float = 0.0, power: float = 1.0) -> float:
    """What the learning rate is multiplied by at a step, counted from 1."""
    rise = min(1.0, step / warmup) if warmup else 1.0
    if name == "rsqrt":
        return rise / math.sqrt(max(step, warmup, 1))
    if name == "constant" or step <= warmup:
        return rise
    if name == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / step)
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    fall = (1 + math.cos(math.pi * done)) / 2 if name == "cosine" else (1 - done) ** power
    return end + (1 - end) * fall
