"""Trains both models on the same windows of text in the same order, one after the other, for as many steps as
fit into the time."""

import math
import time
from pathlib import Path
from typing import Any

import torch

from cosformer import tasks
from cosformer.demo.settings import Settings
from cosformer.reading import json_lines
from cosformer.report.sections.demo import MECHANISMS
from cosformer.terminal import Progress
from cosformer.training import best
from cosformer.training import train as train_run
from cosformer.training.model import build

TRIALS = 3
RUNS, RESULTS = "runs", "results.jsonl"


def affordable(settings: Settings) -> int:
    """The number of steps of both models that fit into the time, estimated from passes over one batch; a
    tenth is reserved for the rest of a step."""
    each = 0.0
    for mechanism in MECHANISMS:
        run = settings.run(mechanism)
        batch = torch.randint(256, (run.batch_size, run.task_settings["length"]))
        model = build(run, tasks.build(run.task, **run.task_settings))
        times = []
        for _ in range(TRIALS):
            began = time.perf_counter()
            model(batch, labels=batch).loss.backward()
            times.append(time.perf_counter() - began)
        each += 1.1 * min(times)
    return max(10, min(settings.steps, int(settings.seconds / each)))


def train(settings: Settings, steps: int, folder: Path, progress: Progress) -> dict[str, Any]:
    """Trains both, or continues; returns plain data: {mechanism: {curve, bits, ...}} and steps."""
    found: dict[str, Any] = {}
    progress.start(2 * steps)
    for number, (mechanism, title) in enumerate(MECHANISMS.items()):

        def tell(event: dict[str, Any], title: str = title, before: int = number * steps) -> None:
            loss = f": {event['loss'] / math.log(2):.2f} bits per character" if "loss" in event else ""
            doing = f"training {title}, step {event['step']:,} of {event['steps']:,}{loss}"
            progress.step(doing, before + event["step"])

        run, at = settings.run(mechanism, steps), folder / RUNS / mechanism
        record = train_run(run, at, progress=tell, results=folder / RESULTS)
        found[mechanism] = {
            "curve": curve(at / "log.jsonl", record["wall_time_s"] / steps),
            "bits": record["metric"]["test"][record["metric"]["name"]],
            "tokens_per_s": record["tokens_per_s"] or record["tokens"] / record["wall_time_s"],
            "parameters": record["parameters"],
            "best": str(best(at).relative_to(folder)),
        }
    progress.end()
    tokens = steps * run.batch_size * run.task_settings["length"]
    return {"steps": steps, "tokens": tokens, "models": found}


def curve(log: Path, seconds_a_step: float, points: int = 60) -> list[tuple[int, float, float]]:
    """(step, seconds, bits per character) along a run, means over stretches of steps."""
    losses = [(line["step"], line["loss"]) for line in json_lines(log) if "loss" in line]
    stretch = max(1, len(losses) // points)
    found = []
    for i in range(0, len(losses) - stretch + 1, stretch):
        part = losses[i : i + stretch]
        step = part[-1][0]
        found.append((step, step * seconds_a_step, sum(x for _, x in part) / len(part) / math.log(2)))
    return found
