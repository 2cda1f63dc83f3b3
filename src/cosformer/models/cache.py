"""The cache of `generate()`: one state per layer, of the type that its attention has."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.attention import State
from cosformer.attention.growing import GrowingState
from cosformer.models.cache_layer import StateLayer
from cosformer.models.config import CosformerConfig
from cosformer.models.layout import Past
from cosformer.models.mixture import described

if TYPE_CHECKING:
    from cosformer.models.decoding import Decoding
    from cosformer.models.turns import Padded

# What a state means depends on these, beside the attention and the number of layers.
_OF_THE_MODEL = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "horizon", "attention_parameters", "position",
    "position_parameters", "conv_size", "qk_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """A cache at one moment; as small as references to its states."""

    layers: tuple[tuple[State | None, State | None, int], ...]
    attention: tuple[str, ...]
    made_for: dict[str, Any]
    padded: "Padded | None"


class CosformerCache(Cache):
    """The cache of the models in `cosformer.models`: for cosFormer as large after a million tokens as
    after one. Where the layers differ (`attention` is a list), each has its own type of state: the cache
    grows if one of them does, and can be cropped if all of them can.

    `generate()` makes one by itself. To keep it: `generate(..., past_key_values=cache)` fills the given
    one, and a later call with the same cache continues from there.

    Args:
        config: of the model.
        static: steps of one token may be compiled, over tensors with fixed addresses: what
            `generate(..., cache_implementation="static")` makes.
    """

    def __init__(self, config: CosformerConfig, *, static: bool = False):
        unable = config.lacking("recurrent")
        if unable is not None:
            raise ValueError(
                f"attention {unable!r} carries no state, so there is nothing to cache: use "
                "use_cache=False (the text is then computed again for each token)."
            )
        if static and config.is_encoder_decoder:
            raise ValueError(
                'static (cache_implementation="static") must be left out for an encoder-decoder, whose steps '
                "are not compiled."
            )
        for layer in config.attentions if static else ():
            if not layer.traits.constant_state and not issubclass(layer.state_type or object, GrowingState):
                raise ValueError(
                    f'static (cache_implementation="static") must be left out for attention {layer.name!r}: '
                    "its state grows, and is no GrowingState, which could be given a fixed number of columns."
                )
        growing = _decoding(config, config.growing_layers)
        self._set(
            [StateLayer(grows, static) for grows in growing],
            attention=_decoding(config, config.attention_names),
            has_convolution=config.conv_size is not None,
            made_for=_made_for(config),
        )

    def _set(
        self,
        layers: list[StateLayer],
        *,
        attention: tuple[str, ...],
        has_convolution: bool,
        made_for: dict[str, Any],
    ) -> None:
        super().__init__(layers=layers)
        self.decoding: Decoding | None = None  # compiled steps, where generate() uses them
        self.guesses = False  # whether generate() goes on from it by guesses that are taken back
        self.padded: Padded | None = None  # of generate()'s last column, what is padding
        self.capacity = 0  # columns of static states that grow; further steps are not compiled
        self.attention, self.has_convolution, self.made_for = attention, has_convolution, made_for
        self.fits: CosformerConfig | None = None  # that it was last found to fit

    @classmethod
    def of_layers(cls, layers: list[StateLayer], **made_for: Any) -> "CosformerCache":
        """A cache of these layers, for the same model as the cache with the fields `made_for`."""
        cache = cls.__new__(cls)
        cache._set(layers, **made_for)
        return cache

    def __getstate__(self) -> dict[str, Any]:
        """For copies: compiled steps belong to the model, and are not copied."""
        return {**self.__dict__, "decoding": None, "fits": None}

    @property
    def past(self) -> Past | None:
        """The positions of the next tokens; None before the first call."""
        return self.layers[0].past

    @property
    def seen(self) -> int:
        """Tokens of the longest row, at most; 0 before the first call."""
        return self.layers[0].seen

    def reset(self) -> None:
        self.padded = None
        super().reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.padded = None
        if self.decoding is None or not self.decoding.select(self, indices):
            super().batch_select_indices(indices)

    def replace_rows(self, rows: Tensor, other: "CosformerCache") -> None:
        """Replaces these rows by those of another cache of the same model. Every layer needs a state of
        constant size, in which a text of any length is one row."""
        self.padded = None
        for layer, theirs in zip(self.layers, other.layers, strict=True):
            layer.replace_rows(rows, theirs)
        self.recount()

    def recount(self) -> None:
        """Reads the positions from the device after rows were removed; otherwise only an upper bound of them
        is known, which needs no synchronisation."""
        past = self.past
        if past is not None:
            for layer in self.layers:
                layer.recount(int(past.positions.max()))

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(layer.nbytes for layer in self.layers)

    def snapshot(self) -> Snapshot:
        """The current states, for `restore`. It copies nothing: states are values."""
        layers = tuple(layer.content for layer in self.layers)
        return Snapshot(layers, self.attention, self.made_for, self.padded)

    def restore(self, snapshot: Snapshot) -> None:
        """Sets the cache back to the snapshot, exactly."""
        if snapshot.attention != self.attention:
            raise ValueError(
                f"snapshot must be of a cache with {len(self.layers)} layers of attention "
                f"{described(self.attention)}, but it is of one with {len(snapshot.layers)} of "
                f"{described(snapshot.attention)}."
            )
        _same_model("snapshot", snapshot.made_for, self.made_for)
        for layer, content in zip(self.layers, snapshot.layers, strict=True):
            layer.fill(*content)
        self.padded = snapshot.padded

    def detach(self) -> "CosformerCache":
        """Cuts the graph of gradients behind the states, and returns the cache itself: the next call learns
        from its own tokens alone, with the past as it is (truncated backpropagation through time)."""
        for layer in self.layers:
            layer.detach()
        return self

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """If the call inside fails, the cache is as it was before.

        A growing cache is cropped then, so that no second copy of it has to be kept.
        """
        columns = [layer.columns for layer in self.layers]
        kept = [None if layer.is_croppable else layer.content for layer in self.layers]
        try:
            yield
        except BaseException:
            for layer, before, content in zip(self.layers, columns, kept, strict=True):
                if content is None:
                    layer.crop(before - layer.columns)
                else:
                    layer.fill(*content)
            raise

    def crop(self, length: int) -> None:
        """Removes the last -length columns (length is negative or 0) from every layer, or refuses and leaves
        all as they are."""
        for layer in self.layers:
            layer.check_crop(length)
        super().crop(length)
        self.padded = None

    def save(self, path: str | Path) -> None:
        """Writes the states as one safetensors file."""
        from cosformer.models.cache_file import write

        write(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, config: CosformerConfig) -> "CosformerCache":
        """A saved cache, for a model with this configuration; move it with `to`."""
        from cosformer.models.cache_check import check
        from cosformer.models.cache_file import read

        return check(read(cls(config), Path(path), config), config, Path(path))

    def to(self, device: torch.device | str) -> "CosformerCache":
        """Moves all states, and returns the cache itself."""
        for layer in self.layers:
            for name, state in layer.states.items():
                setattr(layer, name, state.to(device))
        return self


def layers_that_decode(config: CosformerConfig) -> int:
    """The number of layers with a state: all, or those of the decoder."""
    decoder = config.num_decoder_layers if config.is_encoder_decoder else None
    return config.num_hidden_layers if decoder is None else decoder


T = TypeVar("T")


def _decoding(config: CosformerConfig, entries: tuple[T, ...]) -> tuple[T, ...]:
    """The entries of the layers that decode, of those of all layers (of an encoder, where there is one):
    the sides have as many layers, or every layer has the same."""
    layers = layers_that_decode(config)
    return entries if len(entries) == layers else entries[:1] * layers


def _made_for(config: CosformerConfig) -> dict[str, Any]:
    """What the states of a model depend on."""
    made = {name: getattr(config, name) for name in _OF_THE_MODEL}
    return made | {"position": config.position_of(causal=True)}


def checked(cache: Any, config: CosformerConfig) -> CosformerCache:
    """The cache, if it is one of ours and fits a model with this configuration."""
    if not isinstance(cache, CosformerCache):
        raise TypeError(
            f"past_key_values must be a CosformerCache, but got {type(cache).__name__}: this model carries "
            "states, which a cache of keys and values cannot hold. Leave past_key_values out, or pass "
            "CosformerCache(model.config)."
        )
    if cache.fits is config:
        return cache
    names = _decoding(config, config.attention_names)
    if cache.attention != names:
        raise ValueError(
            f"past_key_values must have {len(names)} layers of attention {described(names)}, but it has "
            f"{len(cache.layers)} of {described(cache.attention)}: it belongs to another model."
        )
    if torch.compiler.is_compiling():
        return cache
    _same_model("past_key_values", cache.made_for, _made_for(config))
    cache.fits = config
    return cache


def _same_model(what: str, made_for: dict[str, Any], own: dict[str, Any]) -> None:
    for name, wanted in own.items():
        if made_for.get(name) != wanted:
            raise ValueError(
                f"{what} must be of a model with {name} {wanted!r}, but it was made for "
                f"{made_for.get(name)!r}: it belongs to another model."
            )
