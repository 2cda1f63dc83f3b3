"""The state of a run beside the weights (optimiser, random numbers), as safetensors and JSON.

torch.save pickles these; here nothing is ever unpickled.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.utils import logging as hf_logging

from cosformer.models.loading import sharded_like

_KEY = "cosformer_state"


def save(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Tensors by name, and plain values as JSON in the header."""
    own = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    save_file(own, path, metadata={_KEY: json.dumps(values)})


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        values = json.loads((file.metadata() or {})[_KEY])
        return {name: file.get_tensor(name) for name in file.keys()}, values  # noqa: SIM118 (not a dict)


def whole(x: Tensor) -> Tensor:
    """All of a tensor; where each process holds a part, all processes have to call this."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def _gathered(tensors: dict[str, Tensor], writes: bool) -> dict[str, Tensor]:
    """Whole tensors for the process that writes, none for the others; what was in parts is put together one
    by one, and not kept on the device."""
    found: dict[int, Tensor] = {}  # by identity: tensors that are tied stay so
    for x in tensors.values():
        if isinstance(x, DTensor) and id(x) not in found:
            full = x.full_tensor()
            found[id(x)] = full.cpu() if writes else x
    return {name: found.get(id(x), x) for name, x in tensors.items()} if writes else {}


def save_weights(path: Path, model: Any, *, writes: bool) -> None:
    """Of a model, as `from_pretrained` reads them; every process has to call, and one writes."""
    weights = _gathered(model.state_dict(keep_vars=True), writes)
    if writes:
        state = {name: x.detach() for name, x in weights.items()}
        with without_reports():
            model.save_pretrained(path, state_dict=state, max_shard_size="1TB")


@contextmanager
def without_reports() -> Iterator[None]:
    """Without the bars and reports that transformers prints of every file, which would break our bar."""
    shown, level = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if shown:
            hf_logging.enable_progress_bar()


def save_optimizer(path: Path, optimizer: Any, *, writes: bool) -> None:
    """The optimiser's tensors as `<parameter>.<name>`; every process has to call, and one writes. The
    learning rate follows from the step."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            where = tensors if isinstance(value, Tensor) else numbers
            where[f"{index}.{name}"] = value
    sizes = [{"params": len(group["params"])} for group in state["param_groups"]]
    tensors = _gathered(tensors, writes)
    if writes:
        save(path, tensors, {"numbers": numbers, "groups": sizes})


def load_optimizer(path: Path, optimizer: Any) -> None:
    tensors, values = load(path)
    state = optimizer.state_dict()  # its groups and options are the run's; only what has changed is loaded
    sizes = [len(group["params"]) for group in state["param_groups"]]
    if sizes != [group["params"] for group in values["groups"]]:
        raise ValueError(
            f"{path} is the state of an optimiser over other parameters: it belongs to another run."
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **values["numbers"]}.items():
        index, name = key.split(".", 1)
        has_shape = isinstance(value, Tensor) and value.dim() > 0  # the number of steps has none
        own = sharded_like(value, parameters[int(index)]) if has_shape else value
        entries.setdefault(int(index), {})[name] = own
    optimizer.load_state_dict({"state": entries, "param_groups": state["param_groups"]})


def save_random(path: Path, device: torch.device) -> None:
    """The states of the generators of Python, NumPy, PyTorch and the process's GPU."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (code that uses it is resumed too)
    tensors = {
        "python": torch.tensor(words),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    values = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {"kind": kind, "position": position, "has_gauss": has_gauss, "cached": cached},
    }
    save(path, tensors, values)


def load_random(path: Path, device: torch.device) -> None:
    tensors, values = load(path)
    python, numpy = values["python"], values["numpy"]
    random.setstate((python["version"], tuple(tensors["python"].tolist()), python["gauss"]))
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))  # noqa: NPY002
    torch.set_rng_state(tensors["torch"])
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)
