"""What tells the data of a run from others: how many samples there are, and a digest of some of them."""

import hashlib
from typing import Any

import torch

from cosformer.tasks import Task
from cosformer.training.loader import Keyed

_SAMPLES = 16


def fingerprint(task: Task, dataset: Any) -> dict[str, Any]:
    """Of a split. Samples that are drawn at random each time have no digest."""
    count = len(dataset)
    keys = sorted({count * i // _SAMPLES for i in range(_SAMPLES)} | {count - 1})
    once, again = (_digest(task, dataset, keys) for _ in range(2))
    return {"samples": count, "digest": once if once == again else None}


def _digest(task: Task, dataset: Any, keys: list[int]) -> str:
    keyed, made = Keyed(dataset), hashlib.sha256()
    for i in keys:
        for name, x in sorted(task.collate([keyed[0, i]]).items()):
            made.update(f"{name} {list(x.shape)} {x.dtype}".encode())
            plain = x.cpu().clone(memory_format=torch.contiguous_format)
            made.update(plain.flatten().view(torch.uint8).numpy().tobytes())  # numpy has no bfloat16
    return made.hexdigest()[:16]
