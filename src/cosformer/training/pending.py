"""Metrics of updates, kept on the device until they are reported, because reading them waits for the
device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cosformer.training.mesh import Mesh


class Diverged(RuntimeError):
    """The loss or the gradient of a step is not a finite number."""

    def __init__(self, step: int, what: str, value: float):
        self.step = step
        super().__init__(
            f"the {what} became {value} at step {step}, and the run was stopped; its checkpoints from before "
            "are intact. Lower learning_rate or max_grad_norm, or lengthen warmup, and start again."
        )


@dataclass(frozen=True)
class Step:
    """An update: its loss (the mean over all its items), the norm of its gradient before clipping, its
    learning rate, and the real tokens it saw."""

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int

    def check(self) -> None:
        for what, value in (("loss", self.loss), ("gradient's norm", self.grad_norm)):
            if not math.isfinite(value):
                raise Diverged(self.step, what, value)


class PendingMetrics:
    """Metrics of updates that were not reported yet."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._waiting: list[tuple[int, float, Tensor]] = []

    def add(self, step: int, loss: Tensor, grad_norm: Tensor, tokens: Tensor, learning_rate: float) -> None:
        figures = torch.stack([x.detach().double() for x in (loss, grad_norm, tokens)])
        self._waiting.append((step, learning_rate, figures))

    def take(self) -> list[Step]:
        """All of them, in order, the same in every process."""
        if not self._waiting:
            return []
        # Each process has weighted its losses so that their mean is that of the whole batch.
        figures = self.mesh.sum(torch.stack([x for _, _, x in self._waiting]))
        taken = [
            Step(step, loss / self.mesh.size, norm / self.mesh.size, rate, int(tokens) // self.mesh.sequence)
            for (step, rate, _), (loss, norm, tokens) in zip(self._waiting, figures.tolist(), strict=True)
        ]
        self._waiting = []
        return taken
