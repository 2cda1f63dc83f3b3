"""The loop that trains: order, forward, backward, clip, step, log, evaluate, save."""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cosformer import atomic, machine, random_features
from cosformer.models.loading import load_weights
from cosformer.tasks import Task
from cosformer.training import checkpoint, parallel, schedules, states
from cosformer.training.clock import Clock
from cosformer.training.cuda_graph import GraphedBackward
from cosformer.training.evaluation import Stopped, score
from cosformer.training.interrupt import Interrupt
from cosformer.training.loader import Batch
from cosformer.training.log import Log
from cosformer.training.mesh import Mesh
from cosformer.training.objective import Objective
from cosformer.training.order import Order
from cosformer.training.pending import Diverged, PendingMetrics
from cosformer.training.progress import Progress
from cosformer.training.run import Run
from cosformer.training.status import Status, best_of

WEIGHTS, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class Loop:
    """Trains one run in one of its processes.

    Attributes:
        net: the model itself, which is saved and scored; `model` wraps it for training: see `parallel`.
        status: how far the run has come; a checkpoint of it was loaded into `net` already.
        interrupted: whether the run was left before its end, on request.
    """

    def __init__(
        self, run: Run, task: Task, net: Any, folder: Path, mesh: Mesh, *, sources: dict[str, Any],
        log: Log, progress: Progress, interrupt: Interrupt, status: Status,
    ):  # fmt: skip
        self.run, self.task, self.folder, self.mesh, self.sources = run, task, folder, mesh, sources
        self.log, self.progress, self.interrupt, self.status = log, progress, interrupt, status
        self.order = Order.of(run, sources["train"], mesh.data_size, mesh.data_rank)
        self.net, self.model = net, parallel.distributed(net, run, mesh)
        self.optimizer = parallel.adamw(net, run, mesh.device)
        self.objective = Objective(task, mesh, batch=run.batch_size, precision=run.precision)
        self.graphed = self._graphed() if run.cuda_graph else None
        self.pending, self.clock = PendingMetrics(mesh), Clock(mesh.device)
        self.has_random_features = any(isinstance(m, random_features.RandomFeatures) for m in net.modules())
        self.first_step = status.step
        self.interrupted = False
        self._latest: dict[str, float] = {}

    def train(self) -> None:
        """Update by update to the end of the run, or until it is asked to stop."""
        run, status, alone = self.run, self.status, self.mesh.alone
        parts = run.accumulation
        batches = self.sources["train"].training(self.order, status.step * parts, run.steps * parts)
        self.net.train()
        with closing(batches):
            while not self.ended:
                step = status.step + 1
                loss, tokens = self.backward(list(islice(batches, parts)))
                norm = self.clip()
                rate = self.update(step)
                status.step = step
                self.pending.add(step, loss, norm, tokens, rate)

                last = step == run.steps
                log, evaluate, save = (
                    last or step % n == 0 for n in (run.log_every, run.eval_every, run.save_every)
                )
                stop = self._asked_to_stop() if alone or log else False
                started = self.clock.started_after(step - self.first_step, run.steps)
                if log or evaluate or save or stop or started or (alone and self.mesh.device.type == "cpu"):
                    self.report(show=log)
                if started:
                    self.clock.start()
                if evaluate:
                    try:
                        save = self.evaluate() or save
                    except Stopped:
                        stop = status.unscored = True
                if save or stop or self.ended:
                    self.save()
                self.interrupted = stop

    @property
    def ended(self) -> bool:
        run, status = self.run, self.status
        out_of_patience = run.patience is not None and status.waited >= run.patience
        return status.step >= run.steps or out_of_patience or self.interrupted

    def backward(self, parts: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """The gradient of an update; its loss, and the real tokens in it."""
        items, tokens = self.objective.count(parts)
        if isinstance(self.model, DistributedDataParallel) and self.status.step == self.first_step:
            # After its first backward DDP regroups gradients by the order they came in. Made before the
            # first update, a run that is resumed sums them as one that is not.
            with torch.random.fork_rng([self.mesh.device] if self.mesh.device.type == "cuda" else []):
                self.objective.loss(self.model, parts[0], items).backward()
            self.optimizer.zero_grad()
        total = torch.zeros((), device=self.mesh.device)
        # Replicas exchange gradients with the last part. Shards do so with each: what they would keep until
        # then is as large as all weights.
        without = getattr(self.model, "no_sync", nullcontext)
        for number, part in enumerate(parts, 1):
            if self.graphed is not None:
                total += self.graphed(part, items)
                continue
            with nullcontext() if number == len(parts) else without():
                loss = self.objective.loss(self.model, part, items)
                loss.backward()
            total += loss.detach()
        return total, tokens

    def _graphed(self) -> GraphedBackward:
        if not self.mesh.alone:
            raise ValueError(
                f"cuda_graph is for one process, but there are {self.mesh.size}: leave it out, because what "
                "they send each other cannot be captured."
            )
        wanted = [p for p in self.net.parameters() if p.requires_grad]
        return GraphedBackward(lambda part, items: self.objective.loss(self.model, part, items), wanted)

    def clip(self) -> Tensor:
        """Clips the gradient; returns its norm before."""
        most = float("inf") if self.run.max_grad_norm is None else self.run.max_grad_norm
        return states.whole(torch.nn.utils.clip_grad_norm_(self.net.parameters(), most))

    def update(self, step: int) -> float:
        """Updates the weights; returns the learning rate."""
        run = self.run
        rate = run.learning_rate * schedules.factor(
            run.schedule, step, warmup=run.warmup, steps=run.steps, end=run.end, power=run.power
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.graphed is None)
        if self.has_random_features:
            with torch.random.fork_rng([]):  # the same numbers in every process, whatever was sampled before
                torch.default_generator.manual_seed(run.seed * 1_000_003 + step)
                random_features.resample(self.net, step)
        return rate

    def _asked_to_stop(self) -> bool:
        """Whether any process was: all have to leave the loop after the same step."""
        if self.mesh.alone:
            return self.interrupt.asked  # without making the device wait
        return bool(self.mesh.sum(torch.tensor(float(self.interrupt.asked), device=self.mesh.device)))

    def report(self, *, show: bool) -> None:
        """Reads the metrics of the steps since the last report, and logs them."""
        for taken in self.pending.take():
            try:
                taken.check()
            except Diverged as error:
                self.log.write(taken.step, event="diverged", reason=str(error))
                self.log.flush()
                raise
            self.status.tokens += taken.tokens
            self.clock.tokens += taken.tokens
            self._latest.update(loss=taken.loss, learning_rate=taken.learning_rate)
            self.log.write(
                taken.step, epoch=self.order.epoch(taken.step), loss=taken.loss,
                grad_norm=taken.grad_norm, learning_rate=taken.learning_rate,
            )  # fmt: skip
        if show:
            tokens, seconds = self.clock.timed(self.status)
            if tokens:
                self._latest["tokens_per_s"] = tokens / seconds
                self.log.write(
                    self.status.step, event="speed", tokens_per_s=tokens / seconds, tokens=self.status.tokens,
                    seconds=seconds,
                )  # fmt: skip
            self._show()

    def _show(self, **doing: str) -> None:
        where: dict[str, Any] = {"step": self.status.step, "steps": self.run.steps}
        made = self.status.step - self.first_step
        if made:
            where["seconds_left"] = self.clock.seconds_left(made, self.run.steps - self.status.step)
        self.progress({**where, **self._latest, **doing})

    def evaluate(self) -> bool:
        """Scores the validation split; whether it was never better."""
        with self.clock.paused():
            scores = self.score("valid")
        better = self.status.judge(scores, self.task.metric)
        self._latest[self.task.metric.name] = scores[self.task.metric.name]
        self.log.write(self.status.step, event="valid", **scores)
        self._show()
        return better

    def score(self, split: str) -> dict[str, float]:
        """Of all samples of a split; raises `Stopped` where the run is asked to stop meanwhile."""

        def watch(share: float) -> None:
            # Of several processes none may leave alone: the others would wait for it.
            if self.interrupt.asked and self.mesh.alone:
                raise Stopped
            self._show(evaluating=f"{split} {share:.0%}")

        return score(
            self.net, self.task, self.sources[split], batch=self.run.eval_batch_size,
            precision=self.run.precision, mesh=self.mesh, watch=watch,
        )  # fmt: skip

    def save(self) -> None:
        """Writes a checkpoint of this step: see `cosformer.training.checkpoint`."""
        main = self.mesh.is_main
        with self.clock.paused():
            self.clock.note(self.status)
            peak = machine.peak_memory(self.mesh.device)
            self.status.peak_memory_bytes = max(self.status.peak_memory_bytes, peak)
            self.log.flush()
            path = checkpoint.aside(self.folder, self.status.step)
            if main:
                checkpoint.sweep(self.folder)
                path.mkdir(parents=True)
            self.mesh.wait()
            states.save_random(path / _random(self.mesh.rank), self.mesh.device)
            states.save_weights(path, self.net, writes=main)
            states.save_optimizer(path / _OPTIMIZER, self.optimizer, writes=main)
            if main:
                if (tokenizer := self.task.tokenizer) is not None:
                    tokenizer.save_pretrained(path)
                self.status.write(path)
                atomic.write_json(path / "run.json", self.run.to_dict())
            self.mesh.wait()
            if main:
                checkpoint.finish(path)
                checkpoint.prune(self.folder, self.run.save_total_limit, best_of)
            self.mesh.wait()

    def resume(self, start: Path) -> None:
        """Goes on from a checkpoint, whose weights the model has; makes the evaluation that was stopped
        before it was left, and writes the checkpoint again."""
        states.load_optimizer(start / _OPTIMIZER, self.optimizer)
        random = start / _random(self.mesh.rank)
        if random.is_file():  # else there were fewer processes: the others start from the run's seed
            states.load_random(random, self.mesh.device)
        if self.status.unscored:
            self.evaluate()
            self.status.unscored = False
            self.save()

    def test(self) -> dict[str, float]:
        """Of the weights that were best on the validation split."""
        assert self.status.best_step is not None
        load_weights(self.net, self.folder / checkpoint.name(self.status.best_step) / WEIGHTS)
        return self.score("test")


def _random(process: int) -> str:
    return f"random-{process}.safetensors"
