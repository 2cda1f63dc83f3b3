"""A cache as a safetensors file: its tensors by name, everything else as JSON in the header."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cosformer.attention import State
from cosformer.models import cache_check
from cosformer.models.config import CosformerConfig
from cosformer.models.mixture import described, per_layer
from cosformer.nn import ConvolvedState
from cosformer.reading import parsed

if TYPE_CHECKING:
    from cosformer.models.cache import CosformerCache

_KEY = "cosformer_cache"
_FORMAT = 2  # from 2 on, keys of windows lie where their positions say (ops/windows.py, `rotated_rows`)
_ADDED_LATER = {"conv_size": None, "qk_norm": False}  # values for files that were written before these fields


def write(cache: "CosformerCache", path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save the cache in: make it first.")
    tensors: dict[str, Tensor] = {}
    layers = []
    for i, layer in enumerate(cache.layers):
        numbers: dict[str, Any] = {"columns": layer.columns}
        for name, state in layer.states.items():
            numbers[name] = _apart(state, f"{i}.{name}", tensors)
        layers.append(numbers)
    attention = cache.attention[0] if len(set(cache.attention)) == 1 else list(cache.attention)
    header = {"format": _FORMAT, "attention": attention, "model": cache.made_for, "layers": layers}
    save_file(tensors, path, metadata={_KEY: json.dumps(header)})


def read(into: "CosformerCache", path: Path, config: CosformerConfig) -> "CosformerCache":
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
    header = cache_check.header(parsed(text, f"the header of {path}"), path)
    if not header.get("layers") or "attention" not in header:
        raise cache_check.refused(path, "its header names no layers")
    names = tuple(per_layer("attention", header["attention"], len(header["layers"]), None))
    if names != into.attention:
        raise ValueError(
            f"{path} holds {len(names)} layers of attention {described(names)}, but the model has "
            f"{len(into.layers)} of {described(into.attention)}: it belongs to another model."
        )
    if "model" not in header:
        raise ValueError(
            f"{path} does not say which model it belongs to, as files of earlier versions do not: compute "
            "the cache again, and save it."
        )
    there = {**_ADDED_LATER, **header["model"]}
    here = json.loads(json.dumps(into.made_for))  # lists in place of tuples
    differing = [f"{name} is {there.get(name)!r} there and {here[name]!r} here" for name in here
                 if there.get(name) != here[name]]  # fmt: skip
    if differing:
        raise ValueError(f"{path} belongs to another model: {', '.join(differing)}.")
    written = header.get("format", 1)
    if written > _FORMAT:
        raise ValueError(
            f"{path} was saved by a later version of cosformer: compute the cache again, and save it."
        )
    if written < 2 and any(map(_has_windows, header["layers"])):
        raise ValueError(
            f"{path} was saved by an earlier version of cosformer, which kept the keys of windows in another "
            "order: compute the cache again, and save it."
        )
    for i, (layer, numbers) in enumerate(zip(into.layers, header["layers"], strict=True)):
        kind, of_source = (config.state_type(i, cross=cross) for cross in (False, True))
        own = ConvolvedState if into.has_convolution else kind  # only self-attention has a convolution
        try:
            state = _together(own, kind, tensors, f"{i}.state", numbers.get("state"))
            memory = _together(of_source, of_source, tensors, f"{i}.memory", numbers.get("memory"))
        except TypeError as error:
            raise cache_check.refused(path, f"layer {i}: {error}") from None
        if state is not None:
            layer.put(state, memory, numbers["columns"])
    used: dict[str, Tensor] = {}
    for i, layer in enumerate(into.layers):
        for name, state in layer.states.items():
            _apart(state, f"{i}.{name}", used)
    for name in sorted(set(tensors) ^ set(used)):
        raise cache_check.refused(path, f"{name} is too much" if name in tensors else f"{name} is missing")
    return into


def _apart(state: State, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The numbers of a state and of the state inside it; its tensors are added to `tensors`."""
    numbers = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            # Layers may share their positions, but tensors in a file cannot.
            tensors[f"{name}.{field.name}"] = value.detach().clone(memory_format=torch.contiguous_format)
        else:
            inner = is_dataclass(value)
            numbers[field.name] = _apart(value, f"{name}.{field.name}", tensors) if inner else value
    return numbers


def _has_windows(numbers: dict[str, Any]) -> bool:
    inner = (value for value in numbers.values() if isinstance(value, dict))
    return bool(numbers.get("windows")) or any(map(_has_windows, inner))


def _together(
    own: type[Any], inner: type[Any], tensors: dict[str, Tensor], name: str, numbers: dict[str, Any] | None
) -> State | None:
    """A state of the class `own`, or None; `inner` is the class of the state within it, if there is one."""
    if numbers is None:
        return None
    parts = {k: tuple(x) if isinstance(x, list) else x for k, x in numbers.items()}
    for field in fields(own):
        if f"{name}.{field.name}" in tensors:
            if field.name in numbers:
                raise TypeError(f"{field.name} is a tensor, and its header has one too")
            parts[field.name] = tensors[f"{name}.{field.name}"]
        elif isinstance(numbers.get(field.name), dict):
            parts[field.name] = _together(inner, inner, tensors, f"{name}.{field.name}", numbers[field.name])
    return own(**parts)
