"""What the folder of a run may hold when training starts: nothing, the same run, or another one."""

import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

from cosformer import atomic, reading
from cosformer.training import checkpoint, record
from cosformer.training.run import Run

RUN, RECORD = "run.json", "record.json"
_AGAIN = "start again in this one (resume=False; --fresh on the command line)"
_logger = logging.getLogger(__name__)


def prepare(run: Run, folder: Path, resume: bool) -> None:
    """Makes sure that the folder holds this run and nothing else of ours."""
    path = folder / RUN
    if (folder / checkpoint.MANIFEST).is_file():
        raise FileExistsError(f"{folder} is a checkpoint of a run. Give the run's folder, {folder.parent}.")
    if path.is_file():
        changed = begun(folder)[1].differences(run) if resume else []
        # A run that failed before its first checkpoint has nothing to lose.
        kept = checkpoint.steps(folder) or (folder / RECORD).is_file()
        if changed and kept:
            raise ValueError(
                f"{folder} holds another run: {', '.join(changed)} differ. Give another folder, or {_AGAIN}."
            )
        if changed or not resume:
            _clear(folder)
    checkpoint.sweep(folder)
    if not path.is_file():
        if checkpoint.steps(folder):
            raise FileExistsError(
                f"{folder} holds checkpoints but no {RUN}: they are not of such a run. Give another folder."
            )
        atomic.write_json(path, {"id": uuid.uuid4().hex, "run": run.to_dict()})
        return
    if (folder / RECORD).is_file():
        return
    found, start = checkpoint.steps(folder), checkpoint.newest(folder)
    if found and start is None:
        _logger.warning("No checkpoint in %s is whole: the run starts again from step 0.", folder)
    for step in found:
        if start is None or step > int(start.name.rpartition("-")[2]):
            checkpoint.discard(folder / checkpoint.name(step))  # damaged; the run will write it again


def refuse_other_data(folder: Path, found: dict[str, Any], resumed: bool) -> None:
    """Keeps what tells the data of a run, and raises where it goes on with others. A folder of an earlier
    version has nothing to compare with."""
    saved = reading.json_file(folder / RUN)
    before = saved.get("data", {})
    changed = [split for split, own in found.items() if before.get(split, own) != own]
    if resumed and changed:
        counts = [f"{one[changed[0]]['samples']:,}" for one in (before, found)]
        now = f"{counts[1]} other ones" if counts[0] == counts[1] else counts[1]
        raise ValueError(
            f"the data have changed since {folder} was begun: the {changed[0]} split had {counts[0]} "
            f"samples, and has {now}. Put the data back, give another folder, or {_AGAIN}."
        )
    if before != found:
        atomic.write_json(folder / RUN, {**saved, "data": found})


def begun(folder: Path) -> tuple[str, Run]:
    """The identity of a folder's run, and the run."""
    saved = reading.json_file(folder / RUN, f"Put a copy of it back, give another folder, or {_AGAIN}.")
    try:
        return saved["id"], Run.from_dict(saved["run"])
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder / RUN} holds no run. Give another folder, or {_AGAIN}.") from None


def finished(run: Run, folder: Path) -> dict[str, Any] | None:
    """The record of this run, where the folder holds it finished."""
    if not (folder / RECORD).is_file() or not (folder / RUN).is_file():
        return None
    identity, own = begun(folder)
    return None if own.differences(run) else record.read(folder / RECORD, identity)


def _clear(folder: Path) -> None:
    """Removes what a run has left."""
    for step in checkpoint.steps(folder):
        checkpoint.discard(folder / checkpoint.name(step))
    for name in (RECORD, "log.jsonl", RUN):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
