"""Capture of CUDA graphs that own the memory they write to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None) -> Iterator[None]:
    """`torch.cuda.graph` on a stream that has run the same code before.

    PyTorch keeps a workspace of cuBLAS for each stream, and a graph has the address of the one it was
    captured with. If that was there before, it is not the graph's: it is freed when anything else clears the
    workspaces (as torch.compile does when it captures, and some versions when another graph of the stream
    is deleted), and a replay then writes to memory that may be another's. So the capture begins without
    workspaces, has its own allocated in the graph's pool, and leaves none behind. It clears those of all
    streams, as torch.compile does: a graph of somebody else that was captured with one from before loses it.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
