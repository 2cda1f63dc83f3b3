"""The memory of this machine, and an error with the figures for what cannot fit into it."""

import os
from pathlib import Path
from typing import Any

from cosformer.terminal import size

_GROUP = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def limit() -> int:
    """Bytes that a process may have here: the machine's, or less where a container or a limit of the process
    says so. 0 where it is unknown."""
    return min((found for found in (physical(), _of_the_group(), _of_the_process()) if found), default=0)


def physical() -> int:
    """Bytes of main memory, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def refuse_beyond(needed: int, what: str) -> None:
    """Raises where `needed` bytes exceed the memory of this machine. What is refused cannot fit; what
    passes may still be too large, as activations are not counted."""
    there = limit()
    if there and needed > there:
        raise ValueError(f"{what} takes {size(needed)}, and this machine has {size(there)} of memory.")


def of_model(model: Any) -> int:
    """Bytes of parameters and buffers, of a model on the meta device too."""
    tensors = {id(x): x for x in (*model.parameters(), *model.buffers())}
    return sum(x.numel() * x.element_size() for x in tensors.values())


def _of_the_group() -> int:
    for path in _GROUP:
        try:
            return int(path.read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return 0


def _of_the_process() -> int:
    try:
        import resource
    except ImportError:
        return 0
    found = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if found == resource.RLIM_INFINITY else found
