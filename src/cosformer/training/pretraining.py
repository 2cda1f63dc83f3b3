"""Pretraining on a run's own data: the run before it."""

from typing import Any

from cosformer import tasks
from cosformer.training.run import Run

_EVALUATIONS = 4
_OF_CLASSIFIERS = ("pooling", "pair_difference", "classifier_dropout")


def pretraining(run: Run, *, steps: int, **changes: Any) -> Run:
    """The run that pretrains the model of another: it fills holes in the inputs of the same task
    (`cosformer.tasks.Masked`), and looks at no label. Its folder is what the other takes as `initial`.

    Args:
        run: what is trained afterwards, of a task that classifies texts or pairs of them.
        steps: of pretraining; a twentieth of them warms up.
        changes: fields of the run that differ otherwise; `task_settings` those of `Masked`.
    """
    settings = {"of": run.task, "settings": run.task_settings, **changes.pop("task_settings", {})}
    tasks.build(tasks.Masked.name, **settings)  # raises where the task has no such inputs
    every = -(-steps // _EVALUATIONS)
    own = {
        "task": tasks.Masked.name, "task_settings": settings, "steps": steps, "warmup": steps // 20,
        "eval_every": every, "save_every": every, "patience": None, "initial": None,
        "model": {name: x for name, x in run.model.items() if name not in _OF_CLASSIFIERS},
        "group_by_length": False,  # holes change from epoch to epoch
    }  # fmt: skip
    return run.replace(**{**own, **changes})
