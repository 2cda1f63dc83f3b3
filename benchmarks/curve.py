"""The course of a run in a few points, for its record in a plan: its log holds every step."""

from pathlib import Path
from typing import Any

from cosformer import reading


def read(folder: str | Path, metric: str, points: int = 50) -> dict[str, Any]:
    """Of a run's folder.

    Returns:
        `train`: at most `points` of [step, tokens, seconds, loss], the loss being the mean over the steps
        since the point before, in nats; tokens and seconds count from the beginning, seconds without the
        first steps, evaluations and checkpoints. `valid`: [step, score] of every evaluation.
    """
    lines = reading.json_lines(Path(folder) / "log.jsonl")
    losses = {line["step"]: line["loss"] for line in lines if "event" not in line}
    speeds = {line["step"]: line for line in lines if line.get("event") == "speed"}
    marks = sorted(speeds)
    chosen = sorted({marks[-(-len(marks) * i // points) - 1] for i in range(1, points + 1)}) if marks else []
    train, before = [], 0
    for step in chosen:
        own = [losses[s] for s in range(before + 1, step + 1) if s in losses]
        speed = speeds[step]
        loss = round(sum(own) / len(own), 5) if own else None
        train.append([step, speed["tokens"], round(speed["seconds"], 2), loss])
        before = step
    valid = [[line["step"], round(line[metric], 6)] for line in lines if line.get("event") == "valid"]
    return {"train": train, "valid": valid}
