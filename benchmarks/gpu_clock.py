"""Time on a GPU: medians of events around single calls, calls as CUDA graphs, and the speed of a copy."""

from collections.abc import Callable
from statistics import median

import torch


class Clock:
    """Median of single calls. Before each a large tensor is read: nothing of the call's own is left in the
    cache, nor anything that would have to be written back first."""

    def __init__(self, device: torch.device):
        self.other = torch.zeros(2**26, dtype=torch.int32, device=device)

    def __call__(self, work: Callable[[], object], seconds: float = 0.15) -> float:
        first = self._times(work, 1)[0]
        if first > seconds:
            return first
        self._times(work, max(1, min(100, int(0.03 / first))))  # until the clocks are up
        return median(self._times(work, max(5, min(400, int(seconds / first)))))

    def _times(self, work: Callable[[], object], count: int) -> list[float]:
        pairs = []
        for _ in range(count):
            self.other.max()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairs]


def bandwidth(clock: Clock, device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy."""
    x = torch.empty(2**29, dtype=torch.float32, device=device).normal_()
    y = torch.empty_like(x)
    return 2 * x.nbytes / clock(lambda: y.copy_(x))


def graphed(work: Callable[[], object]) -> tuple[Callable[[], object], bool]:
    """A replay of the call and True, or the call itself and False where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        torch.cuda.synchronize()
        return work, False
    return graph.replay, True
