"""The JSON record of a finished run, from which every table and plot is rendered."""

import datetime
from pathlib import Path
from typing import Any

import torch

from cosformer import machine, reading
from cosformer.record_format import FORMAT, wrong
from cosformer.tasks import Task
from cosformer.training.run import Run
from cosformer.training.status import Status


def new(
    run: Run, task: Task, status: Status, test: dict[str, float], *, identity: str, parameters: int,
    device: torch.device, processes: int, commit: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The record of a run that has been tested at its best step."""
    speed = status.timed_tokens / status.timed_s if status.timed_s else None
    return {
        "format": FORMAT,
        "id": identity,
        "task": run.task,
        "mechanism": run.mechanism,
        "recipe": run.recipe,
        "scale": run.scale,
        "settings": run.to_dict(),
        "seed": run.seed,
        "metric": {
            "name": task.metric.name,
            "higher_is_better": task.metric.higher_is_better,
            "best_step": status.best_step,
            "valid": status.best,
            "test": test,
        },
        "steps": status.step,
        "stopped_early": status.step < run.steps,
        "tokens": status.tokens,
        "wall_time_s": round(status.wall_s, 3),
        "tokens_per_s": None if speed is None else round(speed, 1),
        "peak_memory_bytes": status.peak_memory_bytes,
        "peak_memory_of": "tensors on the GPU" if device.type == "cuda" else "the process",
        "parameters": parameters,
        "device": device.type,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "hardware": machine.hardware(device),
        "versions": machine.versions(),
        "commit": commit,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def read(path: Path, identity: str) -> dict[str, Any]:
    """The record that a finished run has left in its folder."""
    advice = "Remove it: the run is then tested again, but not trained."
    found = reading.json_object(path, advice)
    other = None if found.get("id") == identity else "is the record of another run"
    said = other or wrong(found, complete=True)
    if said is not None:
        raise ValueError(f"{path} is damaged: it {said}. {advice}")
    return found
