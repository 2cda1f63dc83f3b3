"""What the writers and readers of records of runs share. Imports nothing heavy."""

from collections.abc import Iterable, Mapping
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

# Fields that a run got after the first records were made, and what they are where a record lacks them.
ADDED_FIELDS = {"group_by_length": False}


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run with today's names of the fields."""
    for old, new in RENAMED_FIELDS.items():
        if old in settings and new in settings:
            raise ValueError(f"{old} is the old name of {new}: give one of them, not both.")
    return {RENAMED_FIELDS.get(name, name): value for name, value in settings.items()}


def wrong(record: Mapping[str, Any], *, complete: bool = False) -> str | None:
    """What is wrong with a record of a run, or None. One that was made elsewhere may lack what no table
    needs; a `complete` one is as training writes it."""
    figures = ("steps", "parameters", "peak_memory_bytes", "tokens", "wall_time_s")
    needed = ("task", "mechanism", "metric", *(("settings", "tokens_per_s", *figures) if complete else ()))
    missing = [key for key in needed if key not in record]
    if missing:
        return f"lacks {', '.join(missing)}"
    metric = _object(record["metric"])
    name = metric.get("name")
    for split in ("valid", "test") if complete else ("test",):
        if not isinstance(name, str) or name not in _object(metric.get(split)):
            return f"has no score on the {split} split"
    if complete and "best_step" not in metric:
        return "does not say which step was best"
    parts = ("settings", "hardware", "versions", "commit", "chance")
    settings, hardware, _, commit, chance = (_object(record.get(key)) for key in parts)
    valid, test = _object(metric.get("valid")), metric["test"]
    checks: list[tuple[Mapping[str, Any], Iterable[str], Any, str]] = [
        (test, test, int | float, "a number"),
        (valid, valid, int | float, "a number"),
        (chance, chance, int | float, "a number"),
        (metric, ("best_step",), int if complete else int | None, "a step"),
        (record, ("task", "mechanism", "date"), str, "text"),
        (record, ("scale",), str | None, "text"),
        (record, parts, dict, "an object"),
        (record, figures, int | float if complete else int | float | None, "a number"),
        (record, ("tokens_per_s",), int | float | None, "a number"),
        (settings, ("model", "task_settings"), dict, "an object"),
        (hardware, ("cpu", "gpu"), str | None, "text"),
        (commit, ("id",), str | None, "text"),
    ]
    for where, keys, kind, wanted in checks:
        for key in keys:
            if key in where and not isinstance(where[key], kind):
                return f"has {where[key]!r:.60} for {key}, where {wanted} is expected"
    return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
