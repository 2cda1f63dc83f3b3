"""Both models learn from the same windows in the same order, one after the other, for as many steps as the
machine has time for."""

import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from cosformer import tasks
from cosformer.demo.settings import MECHANISMS, Settings
from cosformer.terminal import Progress
from cosformer.training import Run, best
from cosformer.training import train as train_run
from cosformer.training.model import build

TRIALS = 3
RUNS, RESULTS = "runs", "results.jsonl"


def attention_of(settings: Settings, mechanism: str) -> dict[str, Any]:
    """What of the model is the mechanism's own: windows tell a cosFormer's heads where to look, and rotary
    positions softmax's. Neither has parameters."""
    if mechanism == "softmax":
        return {"position": "rotary"}
    of_layers = [{"windows": list(windows)} for windows in settings.windows]
    return {"position": "none", "attention_parameters": of_layers}


def run_of(settings: Settings, mechanism: str, steps: int) -> Run:
    """The same for both mechanisms but for the attention."""
    return Run(
        task="python",
        task_settings={"length": settings.length, "held_out": settings.held_out},
        attention=mechanism,
        model={
            "hidden_size": settings.hidden_size,
            "num_hidden_layers": settings.layers,
            "num_attention_heads": settings.heads,
            "max_position_embeddings": settings.longest,
            **attention_of(settings, mechanism),
            "initializer_range": 0.06,  # larger than usual: so few steps cannot make up for a slow start
        },
        steps=steps,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        warmup=max(1, steps // 10),
        weight_decay=0.01,
        eval_every=steps,
        save_every=max(1, steps // 4),
        eval_batch=8,
        log_every=10,
        seed=settings.seed,
        device="cpu",
        data="loader",
    )


def affordable(settings: Settings) -> int:
    """How many steps of both models fit into the time, from passes over one batch; a tenth is left for the
    rest of a step."""
    task = tasks.build("python", length=settings.length)
    batch = torch.randint(256, (settings.batch, settings.length))
    each = 0.0
    for mechanism in MECHANISMS:
        model = build(run_of(settings, mechanism, 1), task)
        times = []
        for _ in range(TRIALS):
            began = time.perf_counter()
            model(batch, labels=batch).loss.backward()
            times.append(time.perf_counter() - began)
        each += 1.1 * min(times)
    return max(10, min(settings.steps, int(settings.seconds / each)))


def train(settings: Settings, steps: int, folder: Path, progress: Progress) -> dict[str, Any]:
    """Trains both, or goes on; what was learned, as plain data: {mechanism: {curve, bits, ...}} and steps."""
    found: dict[str, Any] = {}
    progress.start(2 * steps)
    for number, (mechanism, title) in enumerate(MECHANISMS.items()):

        def tell(event: dict[str, Any], title: str = title, before: int = number * steps) -> None:
            loss = f": {event['loss'] / math.log(2):.2f} bits per character" if "loss" in event else ""
            doing = f"training {title}, step {event['step']:,} of {event['steps']:,}{loss}"
            progress.step(doing, before + event["step"])

        run, at = run_of(settings, mechanism, steps), folder / RUNS / mechanism
        record = train_run(run, at, progress=tell, results=folder / RESULTS)
        found[mechanism] = {
            "curve": curve(at / "log.jsonl", record["wall_time_s"] / steps),
            "bits": record["metric"]["test"][record["metric"]["name"]],
            "tokens_per_s": record["tokens_per_s"] or record["tokens"] / record["wall_time_s"],
            "parameters": record["parameters"],
            "best": str(best(at).relative_to(folder)),
        }
    progress.end()
    return {"steps": steps, "tokens": steps * settings.batch * settings.length, "models": found}


def curve(log: Path, seconds_a_step: float, points: int = 60) -> list[tuple[int, float, float]]:
    """(step, seconds, bits per character) along a run, means over stretches of steps."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    stretch = max(1, len(losses) // points)
    found = []
    for i in range(0, len(losses) - stretch + 1, stretch):
        part = losses[i : i + stretch]
        step = part[-1][0]
        found.append((step, step * seconds_a_step, sum(x for _, x in part) / len(part) / math.log(2)))
    return found
