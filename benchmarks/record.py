"""The record of a run: everything a report is rendered from, and what goes into its JSON file."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.contenders import Contender, Shape
from benchmarks.terminal import Parser
from cosformer.atomic import write_json
from cosformer.report import render
from cosformer.report.document import Document
from cosformer.report.sections import operator_cpu
from cosformer.report.write import write_beside


def new_record(
    shape: Shape, lengths: list[int], contenders: list[Contender], absent: dict[str, str]
) -> dict[str, Any]:
    """Machine, versions, commit and settings filled in; the measurements still empty."""
    return header(operator_cpu.FORMAT, shape.device) | {
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


def header(kind: str, device: torch.device) -> dict[str, Any]:
    """What every record begins with: its format, when and on what it was made, with which versions."""
    return {
        "format": kind,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "hardware": machine.hardware(device),
        "versions": machine.versions(),
        "commit": machine.commit(),
    }


def publish(data: dict[str, Any], document: Callable[[dict[str, Any]], Document], path: Path) -> None:
    """The record first; then its tables on the terminal, and its report beside it."""
    write_json(path, data)
    made = document(data)
    print(render.terminal(made) + "\n", path, *write_beside(made, path), sep="\n")


def check_out(p: Parser, path: Path | None) -> None:
    """Before anything is measured: a record that cannot be written would be lost."""
    if path is not None and not path.parent.is_dir():
        p.error(f"--out {path}: there is no folder {path.parent}; make it first")
    if path is not None and path.is_dir():
        p.error(f"--out {path} is a folder; give the name of a file in it")


def earlier(p: Parser, path: Path, *formats: str) -> dict[str, Any]:
    """The record a report is to be rendered from again, in one of these formats."""
    if not path.is_file():
        p.error(f"--render {path}: there is no such file")
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        p.error(f"--render {path} cannot be read as JSON")
    if not isinstance(data, dict) or data.get("format") not in formats:
        p.error(f"--render {path} is not a record of this benchmark")
    return data
