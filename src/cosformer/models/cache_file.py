"""A cache as a safetensors file: its tensors by name, everything else as JSON in the header."""

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cosformer.attention import State
from cosformer.attention.registry import state_type

if TYPE_CHECKING:
    from cosformer.models.cache import CosformerCache

_KEY = "cosformer_cache"


def write(cache: "CosformerCache", path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save the cache in: make it first.")
    tensors: dict[str, Tensor] = {}
    layers = []
    for i, layer in enumerate(cache.layers):
        numbers: dict[str, Any] = {"columns": layer.columns}
        for name, state in layer.states.items():
            parts = {f.name: getattr(state, f.name) for f in fields(state)}
            numbers[name] = {k: x for k, x in parts.items() if not isinstance(x, Tensor)}
            for k, x in parts.items():
                if isinstance(x, Tensor):
                    # Layers may share their positions, and a file may not.
                    tensors[f"{i}.{name}.{k}"] = x.detach().clone(memory_format=torch.contiguous_format)
        layers.append(numbers)
    header = {"attention": cache.attention, "model": cache.made_for, "layers": layers}
    save_file(tensors, path, metadata={_KEY: json.dumps(header)})


def read(into: "CosformerCache", path: Path) -> "CosformerCache":
    if not path.is_file():
        raise FileNotFoundError(f"there is no cache file {path}; CosformerCache.save writes one.")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}): save the cache again.") from error
    if text is None:
        raise ValueError(f"{path} is not the file of a cache: CosformerCache.save writes those.")
    header = json.loads(text)
    if header["attention"] != into.attention or len(header["layers"]) != len(into.layers):
        raise ValueError(
            f"{path} holds {len(header['layers'])} layers of attention {header['attention']!r}, but the "
            f"model has {len(into.layers)} of {into.attention!r}: it belongs to another model."
        )
    if "model" not in header:
        raise ValueError(
            f"{path} does not say which model it belongs to, as files of earlier versions do not: compute "
            "the cache again, and save it."
        )
    there, here = header["model"], json.loads(json.dumps(into.made_for))  # lists in place of tuples
    differing = [f"{name} is {there.get(name)!r} there and {here[name]!r} here" for name in here
                 if there.get(name) != here[name]]  # fmt: skip
    if differing:
        raise ValueError(f"{path} belongs to another model: {', '.join(differing)}.")
    for i, (layer, numbers) in enumerate(zip(into.layers, header["layers"], strict=True)):
        found = {name: _state(into.attention, tensors, f"{i}.{name}.", numbers.get(name)) for name in
                 ("state", "memory")}  # fmt: skip
        if found["state"] is not None:
            layer.put(found["state"], found["memory"], numbers["columns"])
    return into


def _state(
    attention: str, tensors: dict[str, Tensor], prefix: str, numbers: dict[str, Any] | None
) -> State | None:
    if numbers is None:
        return None
    own = {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
    return state_type(attention)(**own, **numbers)
