"""Forward and backward of a batch as a CUDA graph: one launch in place of some 1,500, which keep the host
busy for longer than the GPU where a model is small."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.cuda_graphs import capturing
from cosformer.training.loader import Batch

_Graph = tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]  # with its inputs and its loss
MAX_GRAPHS = 8  # one for each shape of a batch; batches of further shapes are computed without
_WARM_UP = 2  # calls before capture: kernels are compiled, and libraries make their workspaces


class GraphedBackward:
    """Adds the gradients of a part of an update to those of the weights, and returns the part's loss, which
    the next call overwrites.

    A graph is captured when a shape is first seen, from calls that leave no trace in the gradients and random
    numbers. So every update of a run, resumed or not, is made by the same kernels.

    Args:
        loss: of the batch and of the number of items of the update, which may be a tensor.
        parameters: of the model. Their gradients keep their addresses: they are set to zero, never to None.
    """

    def __init__(self, loss: Callable[[Batch, Any], Tensor], parameters: Sequence[nn.Parameter]):
        self.loss, self.parameters = loss, parameters
        self.device = parameters[0].device
        self._graphs: dict[Any, _Graph] = {}
        self._pool: Any = None
        # Of all captures: a pool hands memory on to the next graph on the stream that it was taken on.
        self._side: torch.cuda.Stream | None = None

    def __call__(self, part: Batch, items: Tensor | int) -> Tensor:
        tensors = [*part.values(), *([items] if isinstance(items, Tensor) else [])]
        key = (items if isinstance(items, int) else None, *((n, x.shape, x.dtype) for n, x in part.items()))
        if key not in self._graphs:
            if len(self._graphs) == MAX_GRAPHS:
                return self._eager(part, items)
            self._graphs[key] = self._captured(part, items)
        graph, inputs, loss = self._graphs[key]
        torch._foreach_copy_(inputs, tensors)
        graph.replay()
        return loss

    def _eager(self, part: Batch, items: Tensor | int) -> Tensor:
        loss = self.loss(part, items)
        loss.backward()
        return loss.detach()

    def _captured(self, part: Batch, items: Tensor | int) -> _Graph:
        own: Batch = {name: x.clone() for name, x in part.items()}
        own_items = items.clone() if isinstance(items, Tensor) else items
        inputs = [*own.values(), *([own_items] if isinstance(own_items, Tensor) else [])]
        kept = [p.grad for p in self.parameters]
        # On a stream of their own: a graph may not wait for what the default stream was given.
        side = self._side = self._side or torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.random.fork_rng([self.device]), torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                for p in self.parameters:
                    p.grad = None
                self._eager(own, own_items)
        torch.cuda.current_stream(self.device).wait_stream(side)
        # A weight that has no part in the loss gets no gradient, and so no decay, as without a graph.
        for p, grad in zip(self.parameters, kept, strict=True):
            p.grad = grad if grad is not None or p.grad is None else torch.zeros_like(p.grad)
        graph = torch.cuda.CUDAGraph()
        try:
            with capturing(graph, side, self._pool):
                loss = self._eager(own, own_items)
        except RuntimeError as error:
            raise RuntimeError(
                "forward and backward cannot be captured as a CUDA graph, because something in them waits "
                f"for the GPU: leave cuda_graph out. ({error})"
            ) from error
        self._pool = graph.pool()
        return graph, inputs, loss
