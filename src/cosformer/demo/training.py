"""Both models learn from the same windows in the same order, a step each in turn: whatever else the machine
does meanwhile slows both down alike."""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cosformer.demo.corpus import windows
from cosformer.demo.settings import MECHANISMS, Settings
from cosformer.terminal import Progress

TRIAL = 3  # steps that say how long a step takes
EVERY = 10  # steps between points of the curves
JUDGED = 32  # windows of the held-out text


def train(
    models: Mapping[str, Any], text: Tensor, held_out: Tensor, settings: Settings, progress: Progress
) -> dict[str, Any]:
    """Trains in place; what was learned, as plain data: {mechanism: {curve, bits, seconds, ...}}, steps."""
    draw = torch.Generator().manual_seed(settings.seed)
    judged = windows(held_out, settings.length, JUDGED, torch.Generator().manual_seed(settings.seed + 1))
    optimizers = {
        name: torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
        for name, model in models.items()
    }
    clocks = dict.fromkeys(models, 0.0)
    recent: dict[str, list[float]] = {name: [] for name in models}
    curves: dict[str, list[tuple[int, float, float]]] = {name: [] for name in models}
    steps, step, began = settings.steps, 0, time.perf_counter()
    progress.start(steps)
    while step < steps:
        batch = windows(text, settings.length, settings.batch, draw)
        for name, model in models.items():
            for group in optimizers[name].param_groups:
                group["lr"] = settings.learning_rate * _schedule(step, steps)
            at = time.perf_counter()
            loss = model(batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad()
            recent[name].append(loss.item())
            clocks[name] += time.perf_counter() - at
        step += 1
        if step == TRIAL and settings.seconds > 0:
            # The first steps are slower than the rest; the schedule has to know its end early.
            each = (time.perf_counter() - began) / TRIAL
            steps = min(steps, max(TRIAL, int(settings.seconds / each)))
            progress.steps = steps
        if step % EVERY == 0 or step == steps:
            for name in models:
                bits = sum(recent[name]) / len(recent[name]) / math.log(2)
                curves[name].append((step, clocks[name], bits))
                recent[name] = []
        said = ", ".join(f"{MECHANISMS[n]} {c[-1][2]:.2f}" for n, c in curves.items() if c)
        progress.step(f"training, step {step} of {steps}: {said or '...'} bits per character")
    progress.end()
    tokens = step * settings.batch * settings.length
    return {
        "steps": step,
        "tokens": tokens,
        "models": {
            name: {
                "curve": curves[name],
                "bits": bits_per_character(model, judged),
                "tokens_per_s": tokens / clocks[name],
                "parameters": model.num_parameters(),
            }
            for name, model in models.items()
        },
    }


def _schedule(step: int, steps: int) -> float:
    """Up over the first tenth, then down along a cosine."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def bits_per_character(model: Any, text: Tensor) -> float:
    """Of windows [count, length] that were never trained on."""
    model.eval()
    with torch.inference_mode():
        losses = [model(part, labels=part).loss.item() * len(part) for part in text.split(8)]
    model.train()
    return sum(losses) / len(text) / math.log(2)
