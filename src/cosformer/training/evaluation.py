"""Scoring a split: every sample once, whatever the batch size and the number of processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from cosformer.models.split import with_whole_sequences
from cosformer.tasks import Task
from cosformer.training.mesh import Mesh


class Stopped(Exception):
    """An evaluation was left between two batches, on request."""


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Around every forward pass of a run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def score(
    model: Any, task: Task, source: Any, *, batch: int, precision: str, mesh: Mesh,
    watch: Callable[[float], None],
) -> dict[str, float]:  # fmt: skip
    """The metric over all samples of a source.

    Each process scores one range of the samples, as whole texts (which take less memory here than in
    training, where several processes may have to share them); their statistics are gathered in the order of
    the split, so the score is that of one process. `watch` is called before each batch with the share of this
    process's samples that is done.
    """
    stretch = -(-len(source) // mesh.size)
    first = min(mesh.rank * stretch, len(source))
    own = range(first, min(first + stretch, len(source)))
    # Where processes share the weights, all have to call the model equally often.
    lacking = -(-stretch // batch) - -(-len(own) // batch)
    share = batch / max(len(own), 1)
    rows = statistics(
        model, task, source, own, batch=batch, precision=precision, device=mesh.device, more=lacking,
        watch=lambda done: watch(done * share),
    )  # fmt: skip
    if not mesh.alone:
        rows = _gathered(rows, stretch, mesh)[: len(source)]
    if len(rows) != len(source):
        raise RuntimeError(f"{len(rows)} of {len(source)} samples were scored: the task's metric lost some.")
    return task.metric.score(rows.cpu())


def statistics(
    model: Any, task: Task, source: Any, indices: Sequence[int], *, batch: int, precision: str,
    device: torch.device, more: int = 0, watch: Callable[[int], None] = lambda done: None,
) -> Tensor:  # fmt: skip
    """What the metric keeps of some samples of a source, float64 [samples, k], in the order of their indices:
    a score, or its error, is made of these. Texts of similar length are read together, where their lengths
    are known. `watch` is called with the number of batches before each. `more`: calls of the model beyond
    those, whose outcome is not used."""
    extra = {"use_cache": False} if task.head == "causal_lm" else {}  # a state that nobody would read
    # A decoder reads its target, behind the start token; the others would only compute a loss.
    hidden = () if task.head == "conditional_generation" else ("labels",)
    order, found = source.by_length(indices), []
    batches = chain(source.evaluation([indices[i] for i in order], batch), source.evaluation(range(more), 1))
    with (
        _undisturbed(model, device),
        with_whole_sequences(model),
        torch.no_grad(),
        autocast(precision, device),
    ):
        for number, inputs in enumerate(batches):
            watch(number)
            given = {name: x for name, x in inputs.items() if name not in hidden}
            found.append(task.metric.rows(model(**given, **extra).logits.float(), inputs))
    if not found:
        return torch.empty(0, 0, dtype=torch.float64, device=device)
    rows = torch.cat(found)[: len(indices)]
    places = torch.tensor(order, dtype=torch.int64, device=rows.device)
    return torch.empty_like(rows).index_copy_(0, places, rows)


def _gathered(rows: Tensor, stretch: int, mesh: Mesh) -> Tensor:
    """Rows of all processes [size · stretch, k]; only the last ones may be filled up with zeros."""
    wide = int(mesh.gather(torch.tensor(rows.shape[1], device=mesh.device)).max())
    full = torch.zeros(stretch, wide, dtype=torch.float64, device=mesh.device)
    full[: len(rows), : rows.shape[1]] = rows
    return mesh.gather(full).flatten(0, 1)


@contextmanager
def _undisturbed(model: Any, device: torch.device) -> Iterator[None]:
    """The model in evaluation mode, not compiled (for a few batches, of other sizes, it would cost more than
    it gains); afterwards the mode and the random numbers are as they were, so that how often a run is
    evaluated does not change what it learns."""
    training = model.training
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with forked, torch.compiler.set_stance("force_eager"):
        model.eval()
        try:
            yield
        finally:
            model.train(training)
