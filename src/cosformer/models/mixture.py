"""The attention of each layer: one for all of them, or a list with an entry for each."""

from collections.abc import Sequence
from typing import Any

from cosformer import attention
from cosformer.attention import Attention, Traits
from cosformer.attention.traits import common


def as_lists(value: Any) -> Any:
    """A tuple (an entry for each layer, for each head) as the list that comes back from JSON."""
    return list(value) if isinstance(value, tuple) else value


def own_parameters(value: Any) -> Any:
    """attention_parameters with {} for None, in new dictionaries."""
    if isinstance(value, list):
        return [own_parameters(entry) for entry in value]
    return {name: as_lists(entry) for name, entry in (value or {}).items()}


def per_layer(field: str, value: Any, layers: int, decoder_layers: int | None) -> list[Any]:
    """The entry of each layer, of a value for all of them or of a list."""
    if not isinstance(value, list):
        return [value] * layers
    if len(value) != layers:
        raise ValueError(
            f"{field} must have an entry for each of the {layers} layers where it is a list, but it has "
            f"{len(value)}."
        )
    if decoder_layers not in (None, layers):
        raise ValueError(
            f"{field} may be a list only where both sides of an encoder-decoder have as many layers, but "
            f"they have {layers} and {decoder_layers} (num_decoder_layers): give one value for all layers."
        )
    return value


def described(names: Sequence[str]) -> str:
    """'a' where all layers have it, else each layer's in turn: 'a', 'a', 'b'."""
    return ", ".join(repr(name) for name in (names[:1] if len(set(names)) == 1 else names))


class LayerAttentions:
    """The mechanisms of all layers, where each distinct one is built once, to be asked what it can do."""

    def __init__(self, names: Sequence[str], parameters: Sequence[dict[str, Any]], **offered: Any):
        built: list[tuple[tuple[str, dict[str, Any]], Attention]] = []
        self.layers: list[Attention] = []
        for own in zip(names, parameters, strict=True):
            found = next((made for known, made in built if known == own), None)
            if found is None:
                found = attention.fit(own[0], own[1], **offered)
                built.append((own, found))
            self.layers.append(found)

    @property
    def traits(self) -> Traits:
        """What all of them can do."""
        all_traits = [layer.traits for layer in self.layers]
        one_way = {t: self.lacking(t) for t in ("causal", "bidirectional")}
        if None not in one_way.values():
            raise ValueError(
                f"attention mixes {one_way['causal']!r}, which cannot be causal, with "
                f"{one_way['bidirectional']!r}, which can be nothing else: no model has both."
            )
        return common(all_traits)

    @property
    def has_bound(self) -> bool:
        """Whether one of them ends a text somewhere."""
        return any(layer.has_bound for layer in self.layers)

    def lacking(self, trait: str) -> str | None:
        """The name of the first mechanism without a trait."""
        return next((layer.name for layer in self.layers if not getattr(layer.traits, trait)), None)
