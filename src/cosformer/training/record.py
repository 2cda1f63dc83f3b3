"""The JSON record of a finished run, from which every table and plot is rendered."""

import datetime
from pathlib import Path
from typing import Any

import torch

from cosformer import machine, reading
from cosformer.record_format import FORMAT
from cosformer.tasks import Task
from cosformer.training.run import Run
from cosformer.training.status import Status

_KINDS: dict[str, Any] = {
    "task": str, "mechanism": str, "settings": dict, "metric": dict, "steps": int, "wall_time_s": int | float,
    "tokens": int, "tokens_per_s": int | float | None, "peak_memory_bytes": int, "parameters": int,
}  # fmt: skip


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
    found = reading.json_file(path, advice)
    wrong = _wrong(found, identity)
    if wrong is not None:
        raise ValueError(f"{path} is damaged: {wrong}. {advice}")
    made: dict[str, Any] = found
    return made


def _wrong(found: Any, identity: str) -> str | None:
    if not isinstance(found, dict):
        return "it holds no record"
    if found.get("id") != identity:
        return "it is the record of another run"
    for name, kind in _KINDS.items():
        if not isinstance(found.get(name), kind):
            return f"{name} is {found.get(name)!r:.60}"
    metric = found["metric"]
    name = metric.get("name")
    scores = [metric.get(split) for split in ("valid", "test")]
    if not all(isinstance(s, dict) and isinstance(s.get(name), int | float) for s in scores):
        return "it has no scores"
    return None if isinstance(metric.get("best_step"), int) else "it does not say which step was best"
