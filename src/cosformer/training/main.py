"""Trains, resumes and evaluates a run, and writes its record."""

import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed  # type: ignore[import-untyped]

from cosformer import atomic, machine, reading, record_file, tasks
from cosformer.lock import locked
from cosformer.models.loading import load_weights
from cosformer.peers import Peers
from cosformer.tasks import Task
from cosformer.training import checkpoint, evaluation, model, record
from cosformer.training import folder as folders
from cosformer.training.cuda_graph import MAX_GRAPHS
from cosformer.training.device_dataset import LIMIT, DeviceDataset, TooLarge, is_static
from cosformer.training.fingerprint import fingerprint
from cosformer.training.interrupt import Interrupt
from cosformer.training.loader import LoaderDataset
from cosformer.training.log import Log
from cosformer.training.loop import WEIGHTS, Loop
from cosformer.training.mesh import Mesh
from cosformer.training.progress import Bar, Progress
from cosformer.training.run import Run
from cosformer.training.status import Status, best

_logger = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and wrote a checkpoint to continue from."""


def train(
    run: Run, folder: str | Path, *, resume: bool = True, progress: bool | Progress = True,
    results: str | Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Trains a run to its end and tests it once, at the step that was best on the validation split.

    Args:
        run: what to train.
        folder: where checkpoints, `log.jsonl` and `record.json` go; one run a folder.
        resume: continue from the newest complete checkpoint of the folder; False removes what is there and
            starts again.
        progress: True shows a bar with the time left; a function is called with a dict instead.
        results: the file the record is appended to; None: `results/<task>.jsonl`.

    Returns:
        The record. A run that is finished already is not trained again.

    Works unchanged under `torchrun` and `accelerate launch`: the batch is divided among the processes.
    """
    if not isinstance(run, Run):
        raise TypeError(
            f"run must be a Run, as recipes.build(...) makes, but got {type(run).__name__}: a recipe by name "
            'or path is train(recipes.build("mqar", scale="tiny"), folder).'
        )
    path, commit = Path(folder), machine.commit()  # before files can change
    results = Path("results") / f"{run.task}.jsonl" if results is None else Path(results)
    record_file.check(results)
    first = os.environ.get("RANK", "0") == "0"  # of several processes
    finished = folders.finished(run, path) if resume else None
    if finished is not None:  # only read: it may be on a read-only disk
        if first:
            _recorded(finished, results)
        return finished
    # Nothing is changed before the folder is locked.
    with locked(path, "trains") if first else nullcontext(), Peers():
        mesh = Mesh(device_of(run, trains=True), run.sequence_parallel)
        return _train(run, path, mesh, commit, resume=resume, progress=progress, results=results)


def _train(
    run: Run, path: Path, mesh: Mesh, commit: dict[str, Any], *, resume: bool, progress: bool | Progress,
    results: Path,
) -> dict[str, Any]:  # fmt: skip
    mesh.refuse_others(json.dumps(run.to_dict(), sort_keys=True))
    if mesh.is_main:
        folders.prepare(run, path, resume)
    mesh.wait()
    identity, _ = folders.begun(path)
    start = checkpoint.newest(path)
    status = Status() if start is None else Status.read(start)
    task = tasks.build(run.task, **run.task_settings)
    sources = {split: source(run, task, split, mesh.device) for split in ("train", "valid")}
    if mesh.is_main:
        told = {split: made.fingerprint for split, made in sources.items()}
        folders.refuse_other_data(path, told, start is not None)
    net = model.build(run, task)
    if start is not None:
        load_weights(net, start / WEIGHTS)
    log = Log(path, writes=mesh.is_main)
    log.rewind(status.step, unscored=status.unscored)
    if start is not None:
        log.write(status.step, event="resumed")
    if not mesh.is_main or progress is False:
        shown: Progress = lambda event: None  # noqa: E731
    else:
        shown = Bar(f"{run.task} · {run.mechanism}") if progress is True else progress
    with Interrupt() as interrupt, _left_tidy(path, log, shown):
        set_seed(run.seed)
        torch.manual_seed(run.seed * 1_000_003 + mesh.rank)  # each process has its own dropout
        loop = Loop(
            run, task, net, path, mesh, sources=sources, log=log, progress=shown, interrupt=interrupt,
            status=status,
        )  # fmt: skip
        shown({"step": status.step, "steps": run.steps})
        try:
            if start is not None:
                loop.resume(start)
            loop.train()
            if loop.interrupted:
                raise evaluation.Stopped
            sources["test"] = source(run, task, "test", mesh.device)
            test = loop.test()
        except evaluation.Stopped:
            raise Interrupted(
                f"stopped at step {status.step} of {run.steps}: train in the same folder to continue"
            ) from None
    loop.clock.note(status)
    status.peak_memory_bytes = max(status.peak_memory_bytes, machine.peak_memory(mesh.device))
    made = record.new(
        run, task, status, test, identity=identity, parameters=net.num_parameters(),
        device=mesh.device, processes=mesh.size, commit=commit,
    )  # fmt: skip
    with _left_tidy(path, log, shown):
        log.write(status.step, event="test", **test)
        log.flush()
        log.close()
        if mesh.is_main:
            atomic.write_json(path / folders.RECORD, made)
            record_file.append_once(results, made, "id")
    shown({"step": status.step, "steps": run.steps, "done": True, **test})
    mesh.wait()
    return made


@contextmanager
def _left_tidy(folder: Path, log: Log, shown: Progress) -> Iterator[None]:
    """If a run ends early, closes the progress bar, and removes a half-written checkpoint from a disk that
    may be full."""
    try:
        yield
    except BaseException:
        log.abandon()
        if log.writes:
            checkpoint.sweep(folder)
        if isinstance(shown, Bar):
            shown.end()
        raise


def _recorded(made: dict[str, Any], results: Path) -> None:
    """Adds the record of a finished run to the results, unless it is there or they cannot be written."""
    if record_file.holds(results, made, "id"):
        return
    try:
        record_file.append_once(results, made, "id")
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        _logger.warning("%s cannot be written to: the record is in the run's folder alone.", results)


def evaluate(folder: str | Path, split: str = "test", batch_size: int | None = None) -> dict[str, float]:
    """Scores a split with the best weights of a run's folder, or with those of the checkpoint that is given;
    the batch size does not change the score."""
    task, rows = statistics(folder, split, batch_size)
    return task.metric.score(rows)


def statistics(
    folder: str | Path, split: str = "test", batch_size: int | None = None
) -> tuple[Task, torch.Tensor]:
    """The task of a run's folder, and what its metric keeps of each sample of a split, with the best
    weights: float64 [samples, k] on the CPU."""
    weights = best(folder)
    run = Run.from_dict(reading.json_file(weights / folders.RUN))
    task = tasks.build(run.task, **run.task_settings)
    device = torch.device(device_of(run))
    net = model.HEADS[task.head](model.configuration(run, task))
    load_weights(net, weights / WEIGHTS)
    samples = source(run, task, split, device)
    rows = evaluation.statistics(
        net.to(device).eval(), task, samples, range(len(samples)), batch=batch_size or run.eval_batch_size,
        precision=run.precision, device=device,
    )  # fmt: skip
    return task, rows.cpu()


def device_of(run: Run, *, trains: bool = False) -> str:
    """cpu or cuda; raises where the run needs a GPU, to be trained as it says or at all, and has none."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = found if run.device == "auto" else run.device
    if trains and run.cuda_graph and chosen == "cpu":
        raise RuntimeError("cuda_graph was asked for, but this run is on the CPU: leave it out.")
    if run.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError('device "cuda" was asked for, but PyTorch sees no GPU here: give "cpu" or "auto".')
    return chosen


def source(run: Run, task: Task, split: Any, device: torch.device) -> Any:
    """The samples of a split, kept on the device where the run allows it."""
    dataset = task.dataset(split)
    if not len(dataset):
        raise ValueError(
            f"the {split} split of {run.task} has no rows: there is nothing to train on or to score."
        )
    if run.group_by_length and split == "train" and not is_static(dataset):
        raise ValueError(
            f"group_by_length must be false: the samples of {run.task} change from epoch to epoch, and their "
            "lengths may, too."
        )
    made: Any
    own, chosen = fingerprint(task, dataset), run.data == "device"
    if chosen or (run.data == "auto" and not run.workers and is_static(dataset)):
        shapes = _shapes(run) if split == "train" else None
        limit = None if chosen else LIMIT
        with suppress(TooLarge):
            made = DeviceDataset(task, dataset, device=device, shapes=shapes, limit=limit)
            made.fingerprint = own
            return made
    made = LoaderDataset(task, dataset, workers=run.workers if split == "train" else 0, device=device)
    made.fingerprint = own
    return made


def _shapes(run: Run) -> int | None:
    """How many shapes the batches of training may have; None: any number."""
    if not (run.compile or run.cuda_graph):
        return None
    return MAX_GRAPHS if run.group_by_length else 1
