"""Constants shared by the writers and readers of records of runs. Imports nothing heavy."""

from collections.abc import Mapping
from typing import Any

FORMAT = "cosformer run 1"

# Settings of a run that change where and how fast it runs, not its result: they may change when it is
# resumed, and two runs that differ in nothing else are the same experiment.
NON_SEMANTIC_FIELDS = ("device", "data", "workers", "save_total_limit", "log_every", "save_every",
                       "sequence_parallel", "shard")  # fmt: skip

# Fields of a run that had another name before. Records, folders of runs and recipes with the old names are
# read.
RENAMED_FIELDS = {
    "batch": "batch_size",
    "eval_batch": "eval_batch_size",
    "clip": "max_grad_norm",
    "keep": "save_total_limit",
}


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run with today's names of the fields."""
    for old, new in RENAMED_FIELDS.items():
        if old in settings and new in settings:
            raise ValueError(f"{old} is the old name of {new}: give one of them, not both.")
    return {RENAMED_FIELDS.get(name, name): value for name, value in settings.items()}
