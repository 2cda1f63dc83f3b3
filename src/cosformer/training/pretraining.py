"""Pretraining on a run's own data: the run before it, and how it then begins."""

from pathlib import Path
from typing import Any

from cosformer import tasks
from cosformer.training.run import Run

_EVALUATIONS = 4


def pretraining(run: Run, *, steps: int, **changes: Any) -> Run:
    """The run that pretrains the model of another: it fills holes in the inputs of the same task
    (`cosformer.tasks.Masked`), and looks at no label.

    Args:
        run: what is trained afterwards, of a task that classifies texts or pairs of them.
        steps: of pretraining; a twentieth of them warms up.
        changes: fields of the run that differ otherwise; `task_settings` those of `Masked`.
    """
    settings = {"of": run.task, "settings": run.task_settings, **changes.pop("task_settings", {})}
    every = -(-steps // _EVALUATIONS)
    own = {
        "task": tasks.Masked.name, "task_settings": settings, "model": _model(run), "steps": steps,
        "warmup": steps // 20, "eval_every": every, "save_every": every, "patience": None, "initial": None,
    }  # fmt: skip
    return run.replace(**{**own, **changes})


def pretrained(run: Run, folder: str | Path) -> Run:
    """The run, from the best weights of the folder that `pretraining` was trained in. Its model has the
    tokens of both tasks."""
    return run.replace(initial=str(folder), model=_model(run))


def _model(run: Run) -> dict[str, Any]:
    masked = tasks.Masked(of=run.task, settings=run.task_settings)
    return {**run.model, "vocab_size": masked.vocab_size}
