"""The record of a run: everything a report is rendered from, and what goes into its JSON file."""

import datetime
from typing import Any

import torch

from benchmarks import machine
from benchmarks.contenders import Contender, Shape

FORMAT = "cosformer operator benchmark 1"


def new_record(
    shape: Shape, lengths: list[int], contenders: list[Contender], absent: dict[str, str]
) -> dict[str, Any]:
    """Machine, versions, commit and settings filled in; the measurements still empty."""
    return {
        "format": FORMAT,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "hardware": machine.hardware(shape.device),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "others_share": None,
        "settings": {
            "device": shape.device.type,
            "threads": torch.get_num_threads(),
            "dtype": str(shape.dtype).removeprefix("torch."),
            "batch": shape.batch,
            "heads": shape.heads,
            "dim": shape.dim,
            "lengths": lengths,
        },
        "contenders": {c.name: c.title for c in contenders},
        "absent": absent,
        "gate": [],
        "timings": [],
        "memory": [],
        "decoding": [],
        "profiles": [],
    }
