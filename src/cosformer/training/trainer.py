"""`transformers.Trainer`, with what it leaves open closed: the order of the samples, the weights of the
parts of a batch, evaluation, checkpoints, and steps that do not wait for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging as hf_logging

from cosformer import drawn
from cosformer.models.layout import unpredictable
from cosformer.models.loading import load_weights
from cosformer.tasks import Task
from cosformer.training import checkpoint, files, schedules, states
from cosformer.training.clock import Clock, peak_memory
from cosformer.training.evaluation import Stopped, autocast, score
from cosformer.training.interrupt import Interrupt
from cosformer.training.loader import Batch
from cosformer.training.log import Log
from cosformer.training.order import Order
from cosformer.training.progress import Progress
from cosformer.training.run import Run
from cosformer.training.status import Status, best_of
from cosformer.training.steps import Diverged, Steps

_WEIGHTS, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class RunTrainer(Trainer):
    """Trains one run.

    Differences from the class it stands on, each with its reason:

    - Samples come from an `Order`, so that a resumed run, or one of several processes, sees the same.
    - The loss of a part of a batch counts by its items (tokens asked for, or samples): the base class would
      add up means for heads that do not take `num_items_in_batch`.
    - Losses of all steps are logged, and fetched from the device only every `log_every` steps. The base class
      logs means over stretches that a resumed run cuts differently, and looks at each loss.
    - Checkpoints hold no pickles, are whole or not there, and are verified before they are used.
    - Evaluation scores every sample once, and disturbs neither the random numbers nor the clock.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self, run: Run, task: Task, model: Any, folder: Path, arguments: TrainingArguments, *,
        order: Order, sources: dict[str, Any], log: Log | None, progress: Progress, interrupt: Interrupt,
        status: Status,
    ):  # fmt: skip
        carries_state = model.config.use_cache
        super().__init__(model, arguments)
        model.config.use_cache = carries_state  # which the base class turns off, also in what is saved
        self.remove_callback(PrinterCallback)
        self.run, self.task, self.folder, self.order, self.sources = run, task, folder, order, sources
        self.journal, self.progress, self.interrupt, self.status = log, progress, interrupt, status
        self.device = self.args.device
        self.model_accepts_loss_kwargs = True  # losses come weighted from compute_loss: see there
        self.counts_tokens = task.head in ("causal_lm", "masked_lm", "conditional_generation")
        self.optimizer: Any = None
        self.lr_scheduler: Any = None
        self.steps = Steps(self.accelerator)
        self.clock = Clock(self.device)
        self.first_step = status.step
        self.interrupted = False
        self._nothing = torch.zeros((), device=self.device)
        self._loss = self._tokens = self._nothing
        self._latest: dict[str, float] = {}

    def get_train_dataloader(self) -> Any:
        return _Stream(self)

    def floating_point_ops(self, inputs: Batch) -> int:
        return 0  # the base class walks over all parameters at every step, for a figure nobody reads

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor | int]:
        """The parts of an update, and the number of items in it, over all processes."""
        parts = [part for _, part in zip(range(num_batches), epoch_iterator, strict=False)]
        self._loss, self._tokens = self._nothing, sum(map(_tokens, parts), self._nothing)
        if not self.counts_tokens:
            return parts, self.run.batch
        items = sum((self._items(part) for part in parts), self._nothing)
        return parts, self.accelerator.reduce(items, "sum").clamp_min(1)

    def _items(self, batch: Batch) -> Tensor:
        """Tokens of a part that the model is asked for."""
        labels = batch["labels"]
        if self.task.head != "causal_lm":
            return (labels != -100).sum()
        hidden = unpredictable(
            labels, batch.get("attention_mask"), batch.get("position_ids"), batch.get("cu_seqlens")
        )
        asked = labels if hidden is None else labels.masked_fill(hidden, -100)
        return (asked[:, 1:] != -100).sum()

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """A part's share of the mean over the whole update, times the number of processes, over which the
        gradients are averaged: sum over its items / items of the update · processes."""
        with autocast(self.run.precision, self.device):
            if self.counts_tokens:
                loss = model(**inputs, num_items_in_batch=num_items_in_batch)["loss"]
            else:
                loss = model(**inputs)["loss"] * (len(inputs["labels"]) / num_items_in_batch)
        return loss * self.accelerator.num_processes

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._loss = self._loss + loss
        return loss

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            run = self.run
            wanted = [p for p in self.model.parameters() if p.requires_grad]
            groups = [
                {"params": [p for p in wanted if p.dim() >= 2], "weight_decay": run.weight_decay},
                {"params": [p for p in wanted if p.dim() < 2], "weight_decay": 0.0},
            ]
            self.optimizer = torch.optim.AdamW(
                groups, lr=run.learning_rate, betas=(run.beta1, run.beta2), eps=run.epsilon,
                fused=self.device.type == "cuda",
            )  # fmt: skip
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            run = self.run
            factor = schedules.schedule(
                run.schedule, warmup=run.warmup, steps=run.steps, end=run.end, power=run.power
            )
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, epoch: Any, ignore_keys_for_eval: Any,
        start_time: Any, learning_rate: float | None = None,
    ) -> None:  # fmt: skip
        """After every update: what is due."""
        run, step = self.run, self.state.global_step
        if step == self.status.step:  # the base class comes here once more when it leaves its loop
            return
        self.status.step = step
        with torch.random.fork_rng([]):  # the same numbers in every process, whatever else was drawn
            torch.manual_seed(run.seed * 1_000_003 + step)
            drawn.redraw(self.model, step)
        norm = torch.as_tensor(grad_norm, device=self.device)
        self.steps.add(step, self._loss, norm, self._tokens, learning_rate or 0.0)
        last = step >= run.steps
        log, evaluate, save = (last or step % n == 0 for n in (run.log_every, run.eval_every, run.save_every))
        alone = self.accelerator.num_processes == 1
        stop = self._asked_to_stop() if alone or log else False
        started = self.clock.started_after(step - self.first_step, run.steps)
        if log or evaluate or save or stop or started or (alone and self.device.type == "cpu"):
            self._report(show=log)
        if started:
            self.clock.start()
        if evaluate:
            try:
                save = self._evaluated() or save
            except Stopped:
                stop = self.status.unscored = True
            if run.patience is not None and self.status.waited >= run.patience:
                save = self.control.should_training_stop = True
        if save or stop:
            self.save()
        if stop:
            self.interrupted = self.control.should_training_stop = True

    def _asked_to_stop(self) -> bool:
        """Whether any process was: all have to leave the loop after the same step."""
        if self.accelerator.num_processes == 1:
            return self.interrupt.asked
        asked = torch.tensor(float(self.interrupt.asked), device=self.device)
        return bool(self.accelerator.reduce(asked, "sum"))

    def _report(self, *, show: bool) -> None:
        """Looks at the steps since the last time, and writes them down."""
        for taken in self.steps.take():
            try:
                taken.check()
            except Diverged as error:
                if self.journal is not None:
                    self.journal.write(taken.step, event="diverged", reason=str(error))
                    self.journal.flush()
                raise
            self.status.tokens += taken.tokens
            self.clock.tokens += taken.tokens
            self._latest.update(loss=taken.loss, learning_rate=taken.learning_rate)
            if self.journal is not None:
                self.journal.write(
                    taken.step, epoch=self.order.epoch(taken.step), loss=taken.loss,
                    grad_norm=taken.grad_norm, learning_rate=taken.learning_rate,
                )  # fmt: skip
        if show:
            speed = self.clock.tokens_per_s()
            if speed is not None:
                self._latest["tokens_per_s"] = speed
                if self.journal is not None:
                    self.journal.write(
                        self.status.step, event="speed", tokens_per_s=speed, tokens=self.status.tokens,
                        seconds=self.clock.seconds_of(self.status),
                    )  # fmt: skip
            self._show()

    def _show(self, **doing: str) -> None:
        where: dict[str, Any] = {"step": self.status.step, "steps": self.run.steps}
        made = self.status.step - self.first_step
        if made:
            where["seconds_left"] = self.clock.seconds_left(made, self.run.steps - self.status.step)
        self.progress({**where, **self._latest, **doing})

    def _evaluated(self) -> bool:
        """Scores the validation split; whether it was never better."""
        with self.clock.paused():
            scores = self.score("valid")
        better = self.status.judge(scores, self.task.metric)
        self._latest[self.task.metric.name] = scores[self.task.metric.name]
        if self.journal is not None:
            self.journal.write(self.status.step, event="valid", **scores)
        self._show()
        return better

    def score(self, split: str) -> dict[str, float]:
        """Of all samples of a split; raises `Stopped` where the run is asked to stop meanwhile."""

        def watch(share: float) -> None:
            # Of several processes none may leave alone: the others would wait for it.
            if self.interrupt.asked and self.accelerator.num_processes == 1:
                raise Stopped
            self._show(evaluating=f"{split} {share:.0%}")

        return score(
            self.model, self.task, self.sources[split], batch=self.run.eval_batch,
            precision=self.run.precision, device=self.device, accelerator=self.accelerator, watch=watch,
        )  # fmt: skip

    def catch_up(self, start: Path) -> None:
        """Makes the evaluation that was stopped before a checkpoint was left, and notes it there."""
        load_weights(self.model, start / _WEIGHTS)
        self._evaluated()
        self.status.unscored = False
        if self.accelerator.is_main_process:
            checkpoint.amend(start, self.status.write)
            checkpoint.prune(self.folder, self.run.keep, best_of)
        self.accelerator.wait_for_everyone()

    def save(self) -> None:
        """Leaves a checkpoint of this step: see `cosformer.training.checkpoint`."""
        everyone, main = self.accelerator.wait_for_everyone, self.accelerator.is_main_process
        with self.clock.paused():
            self.clock.note(self.status)
            self.status.peak_memory_bytes = max(self.status.peak_memory_bytes, peak_memory(self.device))
            if self.journal is not None:
                self.journal.flush()
            path = checkpoint.aside(self.folder, self.status.step)
            if main:
                checkpoint.begin(path)
            everyone()
            states.save_random(path / _random(self.accelerator.process_index), self.device)
            if main:
                with _without_bars():
                    self.model.save_pretrained(path, max_shard_size="1TB")
                if (tokenizer := self.task.tokenizer) is not None:
                    tokenizer.save_pretrained(path)
                states.save_optimizer(path / _OPTIMIZER, self.optimizer, self.lr_scheduler)
                self.status.write(path)
                files.write_json(path / "run.json", self.run.to_dict())
                # What the base class wants to find.
                own = {"global_step": self.status.step, "train_batch_size": self._train_batch_size}
                files.write_json(path / "trainer_state.json", own)
            everyone()
            if main:
                checkpoint.finish(path)
                checkpoint.prune(self.folder, self.run.keep, best_of)
            everyone()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(self.model, Path(resume_from_checkpoint) / _WEIGHTS)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            states.load_optimizer(Path(checkpoint) / _OPTIMIZER, self.optimizer, self.lr_scheduler)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            path = Path(checkpoint) / _random(self.accelerator.process_index)
            if path.is_file():  # else there were fewer processes: the others go on from the run's seed
                states.load_random(path, self.device)

    def load_best(self) -> None:
        """The weights of the best checkpoint."""
        assert self.status.best_step is not None
        load_weights(self.model, self.folder / checkpoint.name(self.status.best_step) / _WEIGHTS)


class _Stream:
    """The batches of the rest of the run. It has no length: to the base class a run is one long epoch, and it
    neither skips nor shuffles."""

    def __init__(self, trainer: RunTrainer):
        self.trainer = trainer

    def __iter__(self) -> Iterator[Batch]:
        own, parts = self.trainer, self.trainer.run.accumulation
        return own.sources["train"].training(own.order, own.first_step * parts, own.run.steps * parts)


def _tokens(batch: Batch) -> Tensor:
    """Real tokens of a part, without looking at them."""
    counts = [
        x.sum() if name.endswith("attention_mask") else x.new_full((), x.numel())
        for name, x in batch.items()
        if name.endswith("attention_mask")
        or (name.endswith("input_ids") and name.replace("input_ids", "attention_mask") not in batch)
    ]
    return torch.stack(counts).sum()


@contextmanager
def _without_bars() -> Iterator[None]:
    """transformers shows one for each file it writes, in the middle of ours."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    yield
    if shown:
        hf_logging.enable_progress_bar()


def _random(process: int) -> str:
    return f"random-{process}.safetensors"
