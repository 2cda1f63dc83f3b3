"""The progress of a run beside its weights: what early stopping and the record need."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer import atomic, reading
from cosformer.tasks import Metric
from cosformer.training.checkpoint import MANIFEST, damage, name, newest

FILE = "status.json"
_KINDS: dict[str, Any] = {
    "step": int, "best_step": int | None, "best": dict | None, "waited": int, "unscored": bool, "tokens": int,
    "wall_s": int | float, "timed_tokens": int, "timed_s": int | float, "peak_memory_bytes": int,
}  # fmt: skip


@dataclass
class Status:
    """Saved in every checkpoint.

    Attributes:
        step: updates made.
        best_step, best: where the validation metric was best, and all its figures there.
        waited: evaluations since then.
        unscored: whether the evaluation due at this step was stopped, and is still to be made.
        tokens: real tokens trained on.
        wall_s: seconds of training, without the time between two stretches.
        timed_tokens, timed_s: those of them, and the time they took, that count for the throughput: without
            the first steps of a stretch (which compile and warm up), evaluations and checkpoints.
        peak_memory_bytes: the most that any stretch has used.
    """

    step: int = 0
    best_step: int | None = None
    best: dict[str, float] | None = None
    waited: int = 0
    unscored: bool = False
    tokens: int = 0
    wall_s: float = 0.0
    timed_tokens: int = 0
    timed_s: float = 0.0
    peak_memory_bytes: int = 0

    def judge(self, scores: dict[str, float], metric: Metric) -> bool:
        """Records an evaluation; returns whether it was the best so far. NaN never is."""
        new, old = scores[metric.name], None if self.best is None else self.best[metric.name]
        better = new == new and (old is None or (new > old if metric.higher_is_better else new < old))
        if better:
            self.best_step, self.best, self.waited = self.step, scores, 0
        else:
            self.waited += 1
        return better

    def write(self, checkpoint: Path) -> None:
        atomic.write_json(checkpoint / FILE, dataclasses.asdict(self))

    @classmethod
    def read(cls, checkpoint: Path) -> "Status":
        found = reading.json_file(checkpoint / FILE)
        if not isinstance(found, dict) or not all(
            name in _KINDS and isinstance(value, _KINDS[name]) for name, value in found.items()
        ):
            raise ValueError(f"{checkpoint / FILE} is damaged: it does not say how far the run had come.")
        return cls(**found)


def best_of(checkpoint: Path) -> int | None:
    """The best step a checkpoint knows of; None where it cannot be read."""
    try:
        found: Any = reading.json_file(checkpoint / FILE)["best_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def best(folder: str | Path) -> Path:
    """The best checkpoint of a run's folder, or the checkpoint that is given: a folder that `from_pretrained`
    takes."""
    folder = Path(folder)
    if (folder / MANIFEST).is_file():
        wrong = damage(folder)
        if wrong is not None:
            raise ValueError(f"{folder} is damaged: {wrong}. Give the run's folder, {folder.parent}.")
        return folder
    last = newest(folder)
    if last is None and not (folder / "run.json").is_file():
        raise FileNotFoundError(f"{folder} is not the folder of a run: there is no run.json in it.")
    if last is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint that is whole: train the run first.")
    step = Status.read(last).best_step
    if step is not None and damage(folder / name(step)) is None:
        return folder / name(step)
    return last
