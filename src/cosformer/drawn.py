"""Numbers that are drawn and not learned: random features of attentions, noise of positions.

They lie in persistent buffers, so that a checkpoint, a carried state and a resumed run know the same ones.
Nothing draws by itself between two calls (a recomputed forward pass or a carried state would then meet
other numbers than before): whoever trains calls `redraw(model, step)` between steps.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from cosformer.ops.checks import positive_int


class Drawn(nn.Module):
    """A module with drawn numbers; a subclass sets `redraw_interval`, registers the buffers and says how
    they are drawn.

    `redraw_interval` is the number of training steps after which `redraw` draws anew; None: never.
    """

    redraw_interval: int | None

    @abstractmethod
    def drawn(self) -> dict[str, Tensor]:
        """Fresh numbers for each buffer by name, from PyTorch's generator of the CPU."""

    @torch.no_grad()
    def redraw(self) -> None:
        """Other numbers from now on. States carried from before do not go with them."""
        for name, fresh in self.drawn().items():
            self.get_buffer(name).copy_(fresh)

    @torch.no_grad()
    def draw_what_is_missing(self) -> None:
        """Fills the buffers, but for those that a checkpoint has filled.

        A model that loads one lets the functions of `torch.nn.init` pass by what was loaded: where the mark
        they are asked to leave does not appear, the numbers are there already.
        """
        buffers = dict(self.named_buffers(recurse=False))
        for buffer in buffers.values():
            nn.init.constant_(buffer, torch.nan if buffer.is_floating_point() else -1)
        missing = [name for name, x in buffers.items() if not x.is_meta and _marked(x)]
        if missing:
            fresh = self.drawn()
            for name in missing:
                buffers[name].copy_(fresh[name])


def _marked(buffer: Tensor) -> bool:
    return bool((buffer.isnan() if buffer.is_floating_point() else buffer == -1).any())


def interval(value: int | None) -> int | None:
    return None if value is None else positive_int("redraw_interval", value)


def redraw(model: nn.Module, step: int) -> int:
    """Draws anew what is due after so many training steps; how many modules that was.

    To be called between two steps of training, outside of any forward and backward pass.
    """
    due = [
        m
        for m in model.modules()
        if isinstance(m, Drawn)
        and m.redraw_interval is not None
        and step > 0
        and step % m.redraw_interval == 0
    ]
    for module in due:
        module.redraw()
    return len(due)
