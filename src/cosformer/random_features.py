"""Random numbers that are sampled and not learned: random features of attentions, noise of positions.

They are persistent buffers, so that a checkpoint, a carried state and a resumed run use the same numbers.
Nothing is resampled between two calls by itself (a recomputed forward pass or a carried state would then see
other numbers than before): a training loop calls `resample(model, step)` between steps.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from cosformer.ops.checks import positive_int


class RandomFeatures(nn.Module):
    """A module with random buffers; a subclass sets `redraw_interval`, registers the buffers and implements
    `sample`.

    `redraw_interval` is the number of training steps between two samples; None: never resampled.
    """

    redraw_interval: int | None

    @abstractmethod
    def sample(self) -> dict[str, Tensor]:
        """New values of each buffer by name, from PyTorch's CPU generator."""

    @torch.no_grad()
    def resample(self) -> None:
        """Samples every buffer again. States carried from before are no longer valid."""
        for name, fresh in self.sample().items():
            self.get_buffer(name).copy_(fresh)

    @torch.no_grad()
    def sample_missing(self) -> None:
        """Samples the buffers that no checkpoint has filled.

        While a checkpoint is loaded, `torch.nn.init` skips tensors that were loaded (transformers sees to
        that). So a buffer in which the marker (NaN or -1) does not appear has its numbers already.
        """
        buffers = dict(self.named_buffers(recurse=False))
        for buffer in buffers.values():
            nn.init.constant_(buffer, torch.nan if buffer.is_floating_point() else -1)
        missing = [name for name, x in buffers.items() if not x.is_meta and _marked(x)]
        if missing:
            fresh = self.sample()
            for name in missing:
                buffers[name].copy_(fresh[name])


def _marked(buffer: Tensor) -> bool:
    return bool((buffer.isnan() if buffer.is_floating_point() else buffer == -1).any())


def interval(value: int | None) -> int | None:
    return None if value is None else positive_int("redraw_interval", value)


def resample(model: nn.Module, step: int) -> int:
    """Resamples the modules that are due after `step` training steps; returns how many.

    To be called between two steps of training, outside of any forward and backward pass.
    """
    due = [
        m
        for m in model.modules()
        if isinstance(m, RandomFeatures)
        and m.redraw_interval is not None
        and step > 0
        and step % m.redraw_interval == 0
    ]
    for module in due:
        module.resample()
    return len(due)
