"""The attention of each layer: one for all of them, or a list with an entry for each."""

from collections.abc import Sequence
from typing import Any

import torch

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


def check_parameters(name: str, value: Any, *, lists: bool = False) -> None:
    """Raises where parameters are neither None nor names with values (nor, with `lists`, an entry for each
    layer)."""
    entries = value if lists and isinstance(value, list | tuple) else [value]
    for entry in entries:
        if entry is not None and not isinstance(entry, dict):
            more = ", or a list with one for each layer" if lists else ""
            raise ValueError(f"{name} must be a dict of names and values{more}, but got {value!r:.60}.")


def lost_windows(attention: Any, parameters: Any) -> bool:
    """Whether parameters of a cosFormer were given that say nothing of windows, where the defaults have them.
    {} says that the mechanism is meant as published."""
    names = attention if isinstance(attention, list) else [attention]
    entries = parameters if isinstance(parameters, list | tuple) else [parameters] * len(names)
    names = names if isinstance(attention, list) else names * len(entries)
    return any(
        name == "cosformer" and entry and "windows" not in entry
        for name, entry in zip(names, entries, strict=False)
    )


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


class LayerAttention:
    """The part of a configuration that says which attention each layer has, and what all can do together."""

    hidden_size: int
    num_hidden_layers: int
    num_decoder_layers: int | None
    num_attention_heads: int
    num_key_value_heads: int | None
    max_position_embeddings: int
    horizon: float | None
    conv_size: int | None
    attention: str | list[str] | None
    attention_parameters: dict[str, Any] | list[dict[str, Any] | None] | None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def attention_names(self) -> tuple[str, ...]:
        """The mechanism of each layer."""
        return tuple(self._of_layers("attention"))

    @property
    def layer_parameters(self) -> list[dict[str, Any]]:
        """The parameters of each layer's mechanism."""
        return self._of_layers("attention_parameters")

    @property
    def windows_tell_order(self) -> bool:
        """Whether a causal model knows by its windows what is near: a linear attention has some. Softmax
        learns better with positions beside them (docs/results.md)."""
        of_layers = zip(self.attention_names, self.layer_parameters, strict=True)
        return any(name != "softmax" and any(own.get("windows") or ()) for name, own in of_layers)

    def _of_layers(self, field: str) -> list[Any]:
        return per_layer(field, getattr(self, field), self.num_hidden_layers, self.num_decoder_layers)

    def build_attention(self, layer: int = 0, *, cross: bool = False) -> Attention:
        """The mechanism of a layer, or of its cross-attention: that has no windows, because positions
        in two texts do not correspond, and because its state, computed once, serves all queries."""
        parameters = self.layer_parameters[layer]
        if cross:
            parameters = {name: value for name, value in parameters.items() if name != "windows"}
        return self._build(self.attention_names[layer], parameters)

    def _build(self, name: str, parameters: dict[str, Any]) -> Attention:
        return attention.fit(
            name,
            parameters,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            max_length=self.max_position_embeddings,
            horizon=self.horizon,
        )

    @property
    def attentions(self) -> list[Attention]:
        """The mechanism of each layer, to query what it can do: on the meta device, without memory, and the
        same object for equal layers."""
        built: list[tuple[tuple[str, dict[str, Any]], Attention]] = []
        layers: list[Attention] = []
        with torch.device("meta"):
            for own in zip(self.attention_names, self.layer_parameters, strict=True):
                found = next((made for known, made in built if known == own), None)
                if found is None:
                    found = self._build(*own)
                    built.append((own, found))
                layers.append(found)
        return layers

    def state_type(self, layer: int, *, cross: bool = False) -> type[Any]:
        """The class of the states that a layer carries, or its cross-attention (of the decoder, where there
        is one)."""
        with torch.device("meta"):
            made = self.build_attention(min(layer, self.num_hidden_layers - 1), cross=cross)
        if made.state_type is None:
            raise ValueError(f"attention {made.name!r} carries no state.")
        return made.state_type

    def lacking(self, trait: str) -> str | None:
        """The first attention among the layers without this trait; None where all have it."""
        able = zip(self.attention_names, self.layer_traits, strict=True)
        return next((name for name, traits in able if not getattr(traits, trait)), None)

    @property
    def layer_traits(self) -> list[Traits]:
        """What the attention of each layer can do with its parameters."""
        of_layers = zip(self.attention_names, self.layer_parameters, strict=True)
        return [attention.traits(name, **parameters) for name, parameters in of_layers]

    @property
    def traits(self) -> Traits:
        """What the attention of every layer can do with these parameters."""
        never, only = self.lacking("causal"), self.lacking("bidirectional")
        if never is not None and only is not None:
            raise ValueError(
                f"attention mixes {never!r}, which cannot be causal, with {only!r}, which can be nothing "
                "else: no model has both."
            )
        return common(self.layer_traits)

    @property
    def growing_layers(self) -> tuple[bool, ...]:
        """For each layer, whether its state keeps every token, so that it grows with the text and the last
        tokens can be cropped."""
        return tuple(
            traits.recurrent and not traits.constant_state and self.conv_size is None
            for traits in self.layer_traits
        )

    def state_size(self, length: int) -> int:
        """Numbers in the states of all layers after `length` tokens (0 where there is no state):
        those of the mechanisms, and the inputs of the convolutions. Not those of a source."""
        heads = self.num_key_value_heads or self.num_attention_heads
        widths = {"q": self.num_attention_heads, "k": heads, "v": heads}
        total = 0
        for layer in self.attentions:
            total += layer.state_size(length, num_kv_heads=heads, head_dim=self.head_dim)
            if self.conv_size is not None and layer.traits.recurrent:
                channels = sum(widths[part] for part in layer.traits.reads) * self.head_dim
                total += (self.conv_size - 1) * channels
        return total
