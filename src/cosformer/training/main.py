"""Turning a run into a record: the one way anything here is trained, resumed and evaluated."""

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from cosformer import machine, tasks
from cosformer.lock import locked
from cosformer.models.loading import load_weights
from cosformer.tasks import Task
from cosformer.training import checkpoint, evaluation, files, model, record, record_file
from cosformer.training.arguments import arguments
from cosformer.training.clock import peak_memory
from cosformer.training.interrupt import Interrupt
from cosformer.training.loader import Collated
from cosformer.training.log import Log
from cosformer.training.order import Order
from cosformer.training.progress import Bar, Progress, chosen
from cosformer.training.resident import LIMIT, Resident, TooLarge, is_static
from cosformer.training.run import Run
from cosformer.training.status import Status, best
from cosformer.training.trainer import RunTrainer

_RUN, _RECORD = "run.json", "record.json"
_AGAIN = "start again in this one (resume=False; --fresh on the command line)"
_logger = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and left a checkpoint to go on from."""


def train(
    run: Run, folder: str | Path, *, resume: bool = True, progress: bool | Progress = True,
    results: str | Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Trains a run to its end and tests it once, at the step that was best on the validation split.

    Args:
        run: what to train.
        folder: where checkpoints, `log.jsonl` and `record.json` go; one run a folder.
        resume: go on from the newest whole checkpoint of the folder; False removes what is there and starts
            again.
        progress: True shows a bar with the time left; a function is called with a dict instead.
        results: the file the record is appended to; None: `results/<task>.jsonl`.

    Returns:
        The record. A run that is finished already is not trained again.

    Works unchanged under `torchrun` and `accelerate launch`: the batch is divided among the processes.
    """
    folder, commit = Path(folder), machine.commit()  # files may change while it trains
    results = Path("results") / f"{run.task}.jsonl" if results is None else Path(results)
    record_file.check(results)
    first = os.environ.get("RANK", "0") == "0"  # of several processes
    finished = _finished(run, folder) if resume else None
    if finished is not None:  # which is only read: it may lie on a disk that cannot be written to
        if first:
            _recorded(finished, results)
        return finished
    # Nothing is changed before the folder is held.
    with locked(folder, "trains") if first else nullcontext():
        return _train(run, folder, commit, resume=resume, progress=progress, results=results)


def _train(
    run: Run, folder: Path, commit: dict[str, Any], *, resume: bool, progress: bool | Progress, results: Path
) -> dict[str, Any]:
    settings = arguments(run, folder, device_of(run))
    with settings.main_process_first(desc="preparing the folder"):
        if settings.process_index == 0:
            _prepare(run, folder, resume)
    identity, _ = _begun(folder)
    start = checkpoint.newest(folder)
    status = Status() if start is None else Status.read(start)
    main = settings.process_index == 0
    task = tasks.build(run.task, **run.task_settings)
    sources = {split: source(run, task, split, settings.device) for split in ("train", "valid")}
    order = Order(
        len(sources["train"]), run.batch, run.accumulation, run.seed, settings.world_size,
        settings.process_index,
    )  # fmt: skip
    net = model.build(run, task)
    log = Log(folder) if main else None
    if log is not None:
        log.rewind(status.step, unscored=status.unscored)
        if start is not None:
            log.write(status.step, event="resumed")
    shown = chosen(progress if main else False, f"{run.task} · {run.mechanism}")
    with Interrupt() as interrupt, _left_tidy(folder, log, shown):
        trainer = RunTrainer(
            run, task, net, folder, settings, order=order, sources=sources, log=log, interrupt=interrupt,
            status=status, progress=shown,
        )  # fmt: skip
        # Each process has its own dropout.
        torch.manual_seed(run.seed * 1_000_003 + settings.process_index)
        trainer.progress({"step": status.step, "steps": run.steps})
        try:
            if start is not None and status.unscored:
                trainer.catch_up(start)
            if not _ended(run, status):
                trainer.train(resume_from_checkpoint=None if start is None else str(start))
            if trainer.interrupted:
                raise evaluation.Stopped
            trainer.load_best()
            trainer.sources["test"] = source(run, task, "test", trainer.device)
            test = trainer.score("test")
        except evaluation.Stopped:
            raise Interrupted(
                f"stopped at step {status.step} of {run.steps}: train in the same folder to go on from there"
            ) from None
    trainer.clock.note(status)
    status.peak_memory_bytes = max(status.peak_memory_bytes, peak_memory(trainer.device))
    made = record.new(
        run, task, status, test, identity=identity, parameters=net.num_parameters(),
        device=trainer.device, processes=settings.world_size, commit=commit,
    )  # fmt: skip
    with _left_tidy(folder, log, shown):
        if log is not None:
            log.write(status.step, event="test", **test)
            log.flush()
            log.close()
            files.write_json(folder / _RECORD, made)
            record.append(made, results)
    trainer.progress({"step": status.step, "steps": run.steps, "done": True, **test})
    trainer.accelerator.wait_for_everyone()
    return made


@contextmanager
def _left_tidy(folder: Path, log: Log | None, shown: Progress) -> Iterator[None]:
    """A run that ends early leaves no bar in the line, and no half checkpoint on a disk that may be full."""
    try:
        yield
    except BaseException:
        if log is not None:
            log.abandon()
            checkpoint.sweep(folder)
        if isinstance(shown, Bar):
            shown.close()
        raise


def _finished(run: Run, folder: Path) -> dict[str, Any] | None:
    """The record of this run, where the folder holds it to its end."""
    if not (folder / _RECORD).is_file() or not (folder / _RUN).is_file():
        return None
    identity, begun = _begun(folder)
    return None if begun.differences(run) else record.read(folder / _RECORD, identity)


def _recorded(made: dict[str, Any], results: Path) -> None:
    """Adds the record of a finished run to the results, where it is not there and they can be written."""
    if record_file.holds(results, made, "id"):
        return
    try:
        record.append(made, results)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        _logger.warning("%s cannot be written to: the record is in the run's folder alone.", results)


def evaluate(folder: str | Path, split: str = "test", batch: int | None = None) -> dict[str, float]:
    """Scores a split with the best weights of a run's folder, or with those of the checkpoint that is given;
    the batch size does not change the score."""
    task, rows = statistics(folder, split, batch)
    return task.metric.score(rows)


def statistics(
    folder: str | Path, split: str = "test", batch: int | None = None
) -> tuple[Task, torch.Tensor]:
    """The task of a run's folder, and what its metric keeps of each sample of a split, with the best
    weights: float64 [samples, k] on the CPU."""
    weights = best(folder)
    run = Run.from_dict(files.read_json(weights / _RUN))
    task = tasks.build(run.task, **run.task_settings)
    device = torch.device(device_of(run))
    net = model.HEADS[task.head](model.configuration(run, task))
    load_weights(net, weights / "model.safetensors")
    samples = source(run, task, split, device)
    batches = samples.evaluation(range(len(samples)), batch or run.eval_batch)
    rows = evaluation.statistics(net.to(device).eval(), task, batches, precision=run.precision, device=device)
    return task, rows.cpu()


def _prepare(run: Run, folder: Path, resume: bool) -> None:
    """Makes sure that the folder holds this run and nothing else of ours."""
    path = folder / _RUN
    if (folder / checkpoint.MANIFEST).is_file():
        raise FileExistsError(f"{folder} is a checkpoint of a run. Give the run's folder, {folder.parent}.")
    if path.is_file():
        changed = _begun(folder)[1].differences(run) if resume else []
        # What failed before its first checkpoint is nothing that could be lost.
        kept = checkpoint.steps(folder) or (folder / _RECORD).is_file()
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
                f"{folder} holds checkpoints but no {_RUN}: they are not of such a run. Give another folder."
            )
        files.write_json(path, {"id": uuid.uuid4().hex, "run": run.to_dict()})
        return
    if (folder / _RECORD).is_file():
        return
    found, start = checkpoint.steps(folder), checkpoint.newest(folder)
    if found and start is None:
        _logger.warning("No checkpoint in %s is whole: the run starts again from step 0.", folder)
    for step in found:
        if start is None or step > int(start.name.rpartition("-")[2]):
            checkpoint.discard(folder / checkpoint.name(step))  # damaged; the run will come by there again


def _begun(folder: Path) -> tuple[str, Run]:
    """The identity of a folder's run, and the run."""
    saved = files.read_json(folder / _RUN, f"Put a copy of it back, give another folder, or {_AGAIN}.")
    try:
        return saved["id"], Run.from_dict(saved["run"])
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{folder / _RUN} holds no run. Give another folder, or {_AGAIN}.") from None


def _clear(folder: Path) -> None:
    """Removes what a run has left."""
    for step in checkpoint.steps(folder):
        checkpoint.discard(folder / checkpoint.name(step))
    for name in (_RECORD, "log.jsonl", _RUN):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)


def _ended(run: Run, status: Status) -> bool:
    return status.step >= run.steps or (run.patience is not None and status.waited >= run.patience)


def device_of(run: Run) -> str:
    if run.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError('device "cuda" was asked for, but PyTorch sees no GPU here: give "cpu" or "auto".')
    return "cuda" if run.device == "auto" and torch.cuda.is_available() else run.device.replace("auto", "cpu")


def source(run: Run, task: Task, split: Any, device: torch.device) -> Any:
    """The samples of a split, kept on the device where the run allows it."""
    dataset = task.dataset(split)
    if not len(dataset):
        raise ValueError(
            f"the {split} split of {run.task} has no rows: there is nothing to train on or to score."
        )
    chosen = run.data == "device"
    if chosen or (run.data == "auto" and not run.workers and is_static(dataset)):
        whole, limit = run.compile and split == "train", None if chosen else LIMIT
        with suppress(TooLarge):
            return Resident(task, dataset, device=device, whole=whole, limit=limit)
    return Collated(task, dataset, workers=run.workers if split == "train" else 0, device=device)
