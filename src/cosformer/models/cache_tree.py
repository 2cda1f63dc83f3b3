"""A cache as a pytree of tensors and numbers for `torch.export`.

Leaves are the states of each layer and the number of columns it has read, so that a length may be symbolic;
the model that the cache belongs to is the context, as JSON.
"""

from collections.abc import Iterable
from typing import Any

from torch.utils import _pytree as pytree

from cosformer.models.cache import CosformerCache
from cosformer.models.cache_layer import StateLayer

Context = dict[str, Any]


def _flatten(cache: CosformerCache) -> tuple[list[Any], Context]:
    context = {
        "attention": list(cache.attention),
        "croppable": [layer.is_croppable for layer in cache.layers],
        "static": bool(cache.is_compileable),
        "has_convolution": cache.has_convolution,
        "made_for": cache.made_for,
        "begun": [layer.is_initialized for layer in cache.layers],
    }
    return [list(layer.content) for layer in cache.layers], context


def _flatten_with_keys(cache: CosformerCache) -> tuple[list[Any], Context]:
    children, context = _flatten(cache)
    return [(pytree.SequenceKey(i), child) for i, child in enumerate(children)], context


def _unflatten(children: Iterable[Any], context: Context) -> CosformerCache:
    cache = CosformerCache.of_layers(
        [StateLayer(croppable, context["static"]) for croppable in context["croppable"]],
        attention=tuple(context["attention"]),
        has_convolution=context["has_convolution"],
        made_for=context["made_for"],
    )
    for layer, begun, (state, memory, columns) in zip(cache.layers, context["begun"], children, strict=True):
        if begun:
            layer.put(state, memory, 0)
        layer.columns = columns  # not an int while torch.export traces
    return cache


pytree.register_pytree_node(
    CosformerCache,
    _flatten,
    _unflatten,
    serialized_type_name="cosformer.models.CosformerCache",
    flatten_with_keys_fn=_flatten_with_keys,
)
