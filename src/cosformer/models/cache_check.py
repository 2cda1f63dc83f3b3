"""Whether a cache from a file could have been saved by a model: every state is compared with one that the
layer's own mechanism makes of a single token, and positions with each other and with the model's bound."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cosformer.attention import State, traits
from cosformer.models.config import CosformerConfig
from cosformer.nn import ConvolvedState

if TYPE_CHECKING:
    from cosformer.models.cache import CosformerCache

_HEADER: dict[str, Any] = {"format": int, "attention": (str, list), "model": dict, "layers": list}
_LARGEST = 2**48  # positions beyond it are more than a step counts (ops/gpu/windows/mixed_step.py)


def header(found: Any, path: Path) -> dict[str, Any]:
    """The header of a file, if it has the form that `save` writes."""
    if not isinstance(found, dict) or set(found) - set(_HEADER):
        raise refused(path, "its header is none of ours")
    for name, kind in _HEADER.items():
        if name in found and not isinstance(found[name], kind):
            raise refused(path, f"{name} in its header is {found[name]!r:.60}")
    for number, layer in enumerate(found.get("layers", [])):
        if not isinstance(layer, dict) or set(layer) - {"columns", "state", "memory"}:
            raise refused(path, f"layer {number} in its header is none of ours")
        for name in ("state", "memory"):
            if not isinstance(layer.get(name, {}), dict):
                raise refused(path, f"the {name} of layer {number} in its header is none of ours")
        if "state" in layer and not _count(layer.get("columns")):
            raise refused(path, f"layer {number} has {layer.get('columns')!r:.60} columns")
    return found


def refused(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be the cache of this model ({why}): compute it again, and save it.")


def check(cache: "CosformerCache", config: CosformerConfig, path: Path) -> "CosformerCache":
    """The cache, if a model with this configuration could have saved it."""
    first = cache.layers[0]
    for number, layer in enumerate(cache.layers):
        for name, state in layer.states.items():
            cross = name == "memory"
            whole = _template(config, min(number, len(config.attention_names) - 1), cross)
            where = f"{name} of layer {number}"
            _compare(state, whole, state.batch, None if cross else layer.columns, path, where)
            _positions(state, config, None if cross else layer.columns, path, where)
            other = first.states.get(name)
            if other is None or not torch.equal(state.positions, other.positions):
                raise refused(path, f"layer {number} stands at other positions than layer 0")
            if state.seen != other.seen:
                raise refused(path, f"layer {number} has seen {state.seen:,} tokens, layer 0 {other.seen:,}")
        if set(layer.states) != set(first.states) or layer.columns != first.columns:
            raise refused(path, f"layer {number} and layer 0 are not of the same moment")
    if first.state is not None and config.is_encoder_decoder != (first.memory is not None):
        raise refused(path, "it has the memory of a source, or lacks one")
    return cache


def _template(config: CosformerConfig, layer: int, cross: bool) -> Any:
    """The state of a layer after one token."""
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    assert kv_heads is not None
    q, kv = torch.zeros(1, 1, heads, size), torch.zeros(1, 1, kv_heads, size)
    with torch.random.fork_rng([]), torch.no_grad():  # some sample random features
        mechanism = config.build_attention(layer, cross=cross)
        made: Any = mechanism(q, kv, kv, causal=not cross, return_state=True)
    if cross or config.conv_size is None:
        return made[1]
    reads = traits(config.attention_names[layer]).reads
    channels = sum({"q": heads, "k": kv_heads, "v": kv_heads}[name] * size for name in reads)
    return ConvolvedState(made[1], torch.zeros(1, config.conv_size - 1, channels))


def _compare(state: Any, whole: Any, batch: int, columns: int | None, path: Path, where: str) -> None:
    """Compares every field of a state with the template, which has one token; here a state may have any
    number of tokens up to the columns, the same in all fields."""
    lengths = set()
    for field in fields(whole):
        mine, other, name = (
            getattr(state, field.name),
            getattr(whole, field.name),
            f"{field.name} of the {where}",
        )
        if is_dataclass(other):
            _compare(mine, other, batch, columns, path, where)
        elif isinstance(other, Tensor) or isinstance(mine, Tensor):
            shape = _shape_of_mask(whole) if other is None and field.name == "mask" else other
            if not isinstance(mine, Tensor) or not isinstance(shape, Tensor):
                raise refused(path, f"{name} is missing, or should not be there")
            lengths |= _fits(mine, shape, batch, path, name, grows=hasattr(whole, "crop"))
        elif field.name != "seen" and mine != other:
            raise refused(path, f"{name} is {mine!r:.60} instead of {other!r:.60}")
    if len(lengths) > 1 or (columns is not None and lengths and lengths != {columns}):
        raise refused(path, f"the {where} holds {sorted(lengths)} tokens")


def _shape_of_mask(whole: Any) -> Any:
    """Adds a mask to the template: states have one where a token was padding."""
    keys = getattr(whole, "keys", None)
    return None if keys is None else torch.ones(keys.shape[:2], dtype=torch.bool)


def _fits(mine: Tensor, other: Tensor, batch: int, path: Path, name: str, *, grows: bool) -> set[int]:
    """Raises for another dtype or shape. Returns the lengths found: in a state that grows, dimension 1 of all
    tensors but the positions."""
    kinds = [(x.is_floating_point(), x.dtype == torch.bool) for x in (mine, other)]
    if kinds[0] != kinds[1] or mine.is_complex() or mine.dim() != other.dim():
        raise refused(path, f"{name} is of another kind, {mine.dtype} with {mine.dim()} dimensions")
    if not mine.is_floating_point() and mine.dtype != other.dtype:
        raise refused(path, f"{name} is {mine.dtype}")
    if mine.is_floating_point() and mine.isnan().any():
        raise refused(path, f"{name} holds NaN")
    grows = grows and mine.dim() > 1
    wanted = [batch, *([mine.shape[1]] if grows else other.shape[1:2]), *other.shape[2:]]
    if list(mine.shape) != wanted:
        raise refused(path, f"{name} has shape {list(mine.shape)} instead of {wanted}")
    return {mine.shape[1]} if grows else set()


def _positions(state: State, config: CosformerConfig, columns: int | None, path: Path, where: str) -> None:
    """0 <= positions <= seen <= columns, within the model's bound."""
    if not _count(state.seen) or state.batch < 1:
        raise refused(path, f"the {where} has seen {state.seen!r:.60} tokens of {state.batch} texts")
    lowest, highest = int(state.positions.min()), int(state.positions.max())
    most = config.max_position_embeddings if config.bounded else _LARGEST
    if not 0 <= lowest <= highest <= state.seen <= min(most, _LARGEST if columns is None else columns):
        raise refused(
            path, f"the {where} stands at positions {lowest:,} to {highest:,}, having seen {state.seen:,}"
        )


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
