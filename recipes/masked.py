"""Holes in the inputs of another task: what its model can learn before it sees a label.

    build("small", task_settings={"of": "text"})

The model, and all else but the task, is that of the other task's recipe at the same scale; a run of that then
starts from the weights (`initial`). `cosformer train NAME --pretrain STEPS` does both.
"""

from collections.abc import Mapping
from typing import Any

from cosformer import tasks
from cosformer.training import Run, pretraining, recipes


def build(
    scale: str = "small",
    attention: str | list[str] = "cosformer",
    *,
    steps: int | None = None,
    model: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Run:
    """`task_settings` are those of `cosformer.tasks.Masked`; without `steps`, as many as the other recipe."""
    holes = dict(task_settings or {})
    of, own = holes.pop("of", tasks.Masked.of), holes.pop("settings", {})
    run = recipes.build(of, scale=scale, attention=attention, model=dict(model or {}), task_settings=own)
    made = pretraining(run, steps=steps or run.steps, task_settings=holes, **overrides)
    return made.replace(recipe=tasks.Masked.name)
