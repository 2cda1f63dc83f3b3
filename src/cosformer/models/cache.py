"""What `generate()` carries: one state a layer, of whatever kind the attention has."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from cosformer.attention import State
from cosformer.models.config import CosformerConfig
from cosformer.models.layout import Past
from cosformer.models.mixture import described


class StateLayer(CacheLayerMixin):
    """The state of one layer, that of its cross-attention (the encoder's output, read once), and how many
    columns went in, padding included.

    States are values and never change in place: what is read here stays as it is.
    """

    # With True, generate() would hand the model a 4-D mask in place of the padding.
    is_compileable = False
    is_sliding = False

    def __init__(self, croppable: bool = False) -> None:
        super().__init__()
        self.is_croppable = croppable
        self.reset()

    def reset(self) -> None:
        self.state: State | None = None
        self.memory: State | None = None
        self.columns = 0
        self.is_initialized = False

    def put(self, state: State | None, memory: State | None, columns: int) -> None:
        """After a call that took so many more columns."""
        self.state, self.memory = state, memory
        self.columns += columns
        self.is_initialized = True

    @property
    def content(self) -> tuple[State | None, State | None, int]:
        """State, memory and columns: what `fill` takes."""
        return self.state, self.memory, self.columns

    def fill(self, state: State | None, memory: State | None, columns: int) -> None:
        """As it was when this was its content."""
        self.reset()
        if state is not None:
            self.put(state, memory, columns)

    @property
    def states(self) -> dict[str, State]:
        found = {"state": self.state, "memory": self.memory}
        return {name: state for name, state in found.items() if state is not None}

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.states.values())

    def get_seq_length(self) -> int:
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return self.get_max_length()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        for name, state in self.states.items():
            setattr(self, name, state.select(rows.to(state.positions.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        for name, state in self.states.items():
            setattr(self, name, state.repeat(repeats))

    def offload(self) -> None:
        if self.is_initialized:
            self.device = next(iter(self.states.values())).positions.device
            for name, state in self.states.items():
                setattr(self, name, state.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        if self.is_initialized and hasattr(self, "device"):
            for name, state in self.states.items():
                setattr(self, name, state.to(self.device, non_blocking=True))

    def check_crop(self, length: int) -> None:
        """Raises if `crop` cannot remove these columns exactly."""
        if length > 0:
            raise ValueError(
                f"crop takes a negative number, the columns to remove, but got {length}. To go back to a "
                "certain point, take a snapshot() there and restore() it."
            )
        if length < 0 < self.columns + length and not hasattr(self.state, "crop"):
            raise ValueError(
                f"a {type(self.state).__name__} of constant size cannot forget its last {-length} tokens: "
                "take a snapshot() of the cache before them, and restore() it."
            )

    def crop(self, length: int) -> None:
        """Removes the last -length columns (length is negative or 0), exactly, or refuses."""
        self.check_crop(length)
        keep = self.columns + length
        if length == 0:
            return
        if keep <= 0:
            self.state, self.columns = None, 0
            return  # the memory of a source stays: it does not belong to the text
        cut: Any = self.state
        self.state, self.columns = cut.crop(keep), keep

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a layer of CosformerCache is filled by the model itself; it needs no preparation.")

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise TypeError(
            "a CosformerCache holds states, not keys and values: it serves the models of cosformer.models "
            "alone. Other models want transformers' DynamicCache."
        )


# What a state means depends on these, beside the attention and the number of layers.
_OF_THE_MODEL = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "horizon", "attention_parameters", "position",
    "position_parameters", "conv_size", "qk_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """A cache at one moment; as small as references to its states."""

    layers: tuple[tuple[State | None, State | None, int], ...]


class CosformerCache(Cache):
    """The cache of the models in `cosformer.models`: for cosFormer as large after a million tokens as
    after one. Where the layers differ (`attention` is a list), each has a state of its own kind: the cache
    grows if one of them does, and can be cropped if all of them can.

    `generate()` makes one by itself. To keep it: `generate(..., past_key_values=cache)` fills the given
    one, and a later call with the same cache goes on from there.
    """

    def __init__(self, config: CosformerConfig):
        unable = config.lacking("recurrent")
        if unable is not None:
            raise ValueError(
                f"attention {unable!r} carries no state, so there is nothing to cache: use "
                "use_cache=False (the text is then computed again for each token)."
            )
        super().__init__(layers=[StateLayer(growing) for growing in _decoding(config, config.growing_layers)])
        self.attention = _decoding(config, config.attention_names)
        self.has_convolution = config.conv_size is not None
        self.made_for = {name: getattr(config, name) for name in _OF_THE_MODEL}

    @property
    def past(self) -> Past | None:
        """Where the next tokens stand; None before the first call."""
        layer = self.layers[0]
        if layer.state is None:
            return None
        return Past(layer.state.positions, layer.state.seen, layer.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(layer.nbytes for layer in self.layers)

    def snapshot(self) -> Snapshot:
        """This moment, to come back to with `restore`: costs nothing, states are values."""
        return Snapshot(tuple(layer.content for layer in self.layers))

    def restore(self, snapshot: Snapshot) -> None:
        """Back to the moment of the snapshot, exactly."""
        if len(snapshot.layers) != len(self.layers):
            raise ValueError(
                f"snapshot must be of a cache with {len(self.layers)} layers, but it has "
                f"{len(snapshot.layers)}."
            )
        for layer, content in zip(self.layers, snapshot.layers, strict=True):
            layer.fill(*content)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """A call that fails within leaves the cache as it was.

        A growing cache is cut back, and not kept a second time beside the new one.
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

    def save(self, path: str | Path) -> None:
        """Writes the states as one safetensors file."""
        from cosformer.models.cache_file import write

        write(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, config: CosformerConfig) -> "CosformerCache":
        """A saved cache, for a model with this configuration; move it with `to`."""
        from cosformer.models.cache_check import check
        from cosformer.models.cache_file import read

        return check(read(cls(config), Path(path)), config, Path(path))

    def to(self, device: torch.device | str) -> "CosformerCache":
        """Moves all states, and returns the cache itself."""
        for layer in self.layers:
            for name, state in layer.states.items():
                setattr(layer, name, state.to(device))
        return self


def layers_that_decode(config: CosformerConfig) -> int:
    """The layers that a cache has a state for: all, or those of the decoder."""
    decoder = config.num_decoder_layers if config.is_encoder_decoder else None
    return config.num_hidden_layers if decoder is None else decoder


T = TypeVar("T")


def _decoding(config: CosformerConfig, entries: tuple[T, ...]) -> tuple[T, ...]:
    """The entries of the layers that decode, of those of all layers (of an encoder, where there is one):
    the sides have as many layers, or every layer has the same."""
    layers = layers_that_decode(config)
    return entries if len(entries) == layers else entries[:1] * layers


def checked(cache: Any, config: CosformerConfig) -> CosformerCache:
    """The cache, if it is one of ours and fits a model with this configuration."""
    if not isinstance(cache, CosformerCache):
        raise TypeError(
            f"past_key_values must be a CosformerCache, but got {type(cache).__name__}: this model carries "
            "states, which a cache of keys and values cannot hold. Leave past_key_values out, or pass "
            "CosformerCache(model.config)."
        )
    names = _decoding(config, config.attention_names)
    if cache.attention != names:
        raise ValueError(
            f"past_key_values must have {len(names)} layers of attention {described(names)}, but it has "
            f"{len(cache.layers)} of {described(cache.attention)}: it belongs to another model."
        )
    return cache
