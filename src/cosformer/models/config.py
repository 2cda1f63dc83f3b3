"""The one configuration of the family: sizes under Hugging Face's usual names, the attention as a field."""

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import logging

from cosformer import attention, positions, reading
from cosformer.attention.checks import one_of
from cosformer.models import defaults, guard
from cosformer.models.mixture import LayerAttention, as_lists, check_parameters, lost_windows, own_parameters
from cosformer.nn import feedforward, gate, norm
from cosformer.ops.checks import flag, positive, positive_int
from cosformer.positions import Position
from cosformer.registry import meant_or_known

logger = logging.get_logger(__name__)
POOLING = ("cls", "mean", "max")
PAIR_DIFFERENCES = ("signed", "absolute")
# Beyond these nobody has a model, and to count what one would take would take for ever.
MOST = {
    "num_hidden_layers": 4096, "num_attention_heads": 65_536, "num_key_value_heads": 65_536,
    "max_position_embeddings": 2**53,
}  # fmt: skip
LARGEST_SIZE = 2**31 - 1
HEAD_LOSSES = ("cross_entropy", "one_vs_each")
# What transformers itself hands to a configuration beside its fields.
_FOREIGN = {
    "attn_implementation", "auto_map", "experts_implementation", "loss_type", "model_type", "name_or_path",
    "num_labels", "output_attentions", "per_layer_config", "quantization_config", "task_specific_params",
    "torch_dtype",
}  # fmt: skip


class CosformerConfig(LayerAttention, PreTrainedConfig):
    """Configuration of every model in `cosformer.models`.

    The defaults make a small model over bytes, the best of constant memory in docs/results.md: cosFormer with
    a window for every head, a gate, norms of heads, and one layer in six (from four layers on) a softmax with
    a window. `attention="cosformer"` has no softmax; `CosformerConfig.paper(...)` is the paper's own model.

    Args:
        vocab_size: tokens; the default fits `byte_tokenizer()`.
        hidden_size: width of the model.
        num_hidden_layers: layers (of the encoder, in an encoder-decoder).
        num_decoder_layers: layers of the decoder of an encoder-decoder; None: as many as the encoder.
        num_attention_heads: heads; hidden_size must be a multiple of it.
        num_key_value_heads: key and value heads (grouped heads); None: as many as heads.
        intermediate_size: width of the feed-forward; None: four times hidden_size.
        max_position_embeddings: the greatest length of a text, in tokens. Where every head of every layer
            has a window, and the position does not end, a text has no bound (`bounded` is False).
        horizon: M of cosFormer, at least max_position_embeddings; None: equal to it.
        attention: a name from `cosformer.attention.names()`, or a list with one for each layer. None, where
            attention_parameters is None too: cosFormer, and in the middle of each six layers a softmax that
            sees 1,024 tokens; else cosFormer.
        attention_parameters: its parameters, or a list with those of each layer (None for a layer without).
            None: windows from 2 to 1,024 tokens for the heads of cosFormer, in every layer; no parameters
            for other mechanisms. What is given stands in place of all of that: without `windows` in it no
            head has a window (a warning says so where position is not given; `"windows": None` means it).
            {}: the mechanism as published.
        conv_size: tokens that a short depthwise convolution of queries, keys and values reads, its own
            included; centred where the model is bidirectional. None: no convolution. Cross-attention has
            none.
        qk_norm: an RMS norm of each head's queries and keys, with a learned scale.
        output_norm: an RMS norm of each head's output, with a learned scale.
        output_gate: a gate on the output of attention, from the layer's input: "silu", "sigmoid" or None.
        position: a name from `cosformer.positions.names()`. None: rotary ones (sinusoidal for heads of an odd
            size), but none in a causal model with windows in a linear attention, which tell the order of
            tokens by themselves, nor in the decoder of an encoder-decoder. In both directions windows do not:
            a weight by distance alone is the same on either side, and such a model could not tell a text from
            its mirror image.
        position_parameters: its parameters, where they differ from the defaults.
        causal: whether a token sees only what came before; None: what the head needs (language models
            are causal, everything else is not).
        feed_forward: "gelu" or "gated".
        norm: "layer" or "rms".
        pre_norm: norm before each part of a layer, else after its residual.
        norm_eps: of the norms.
        bias: of all projections.
        dropout: on embeddings and on what each part of a layer adds.
        pooling: "cls" (the first token), "mean" or "max", for classification.
        pair_difference: what the classifier of pairs reads of the difference of two sequences: "signed", as
            the Long Range Arena, or "absolute", as the baselines of GLUE, where either may come first.
        classifier_dropout: on what the classifier reads.
        initializer_range: standard deviation of the initial weights.
        embedding_range: that of the tokens' initial embeddings; None: the same. Large ones keep their random
            directions through a short training.
        ordered_tokens: tokens are levels of one quantity, such as pixels: their initial embeddings lie on a
            line, so that neighbours are alike from the start.
        head_loss: what language models learn by: "cross_entropy", or "one_vs_each" (Titsias, 2016), a bound
            of it for large vocabularies. In evaluation the loss is the cross entropy either way.
        loss_samples: classes that one_vs_each compares a label with at each step, in place of all; the
            logits of the others are then not computed while training, and outputs.logits is None.
        loss_chunk: tokens whose logits a language model computes at a time while training, for long texts and
            large vocabularies: memory grows with it, not with the text. outputs.logits is None then. None:
            all at once.
        use_cache: carry a state from call to call in generation.
        tie_word_embeddings: one matrix for tokens in and out.
        defaults_version: the defaults that a saved configuration was written with; not to be chosen.
    """

    model_type: ClassVar[str] = "cosformer"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    auto_map: ClassVar[Mapping[str, str]] = MappingProxyType({})  # no code of its own; TRL looks here

    vocab_size: int = 264
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_decoder_layers: int | None = None
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int = 2048
    horizon: float | None = None
    attention: str | list[str] | None = None
    attention_parameters: dict[str, Any] | list[dict[str, Any] | None] | None = None
    conv_size: int | None = None
    qk_norm: bool = True
    output_norm: bool = True
    output_gate: str | None = "silu"
    position: str | None = None
    position_parameters: dict[str, Any] | None = None
    causal: bool | None = None
    feed_forward: str = "gelu"
    norm: str = "layer"
    pre_norm: bool = True
    norm_eps: float = 1e-5
    bias: bool = True
    dropout: float = 0.0
    pooling: str = "mean"
    pair_difference: str = "signed"
    classifier_dropout: float = 0.0
    initializer_range: float = 0.02
    embedding_range: float | None = None
    ordered_tokens: bool = False
    head_loss: str = "cross_entropy"
    loss_samples: int | None = None
    loss_chunk: int | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 256
    bos_token_id: int | None = 257
    eos_token_id: int | list[int] | None = 258
    decoder_start_token_id: int | None = 257
    defaults_version: int = defaults.CURRENT

    @classmethod
    def paper(cls, **fields: Any) -> Any:
        """The paper's own model: one horizon for all heads, no gate, no norms of heads, and no positions but
        those that are given (the paper's bidirectional models have learned ones: `position="learned"`).
        Fields that are given have the last word."""
        return cls(**{"attention": "cosformer", **defaults.PAPER, **fields})

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:
        """That of a folder of this machine, or of a hub's repository (`local_files_only=False`)."""
        folder = guard.local_folder(pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(str(folder), **kwargs, local_files_only=True)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A saved configuration, with the defaults of the version that saved it, and with fields that are
        given beside it in place of its own. A horizon that was the greatest length is raised with it."""
        guard.refuse_leading_elsewhere(config_dict)
        saved = defaults.completed(config_dict)
        changes = {name: kwargs.pop(name) for name in cls.own_fields() if name in kwargs}
        length = changes.get("max_position_embeddings")
        if "horizon" not in changes and length is not None:
            followed = saved["horizon"] in (None, saved["max_position_embeddings"])
            if followed and length > saved["max_position_embeddings"]:
                changes["horizon"] = None
        mirrored = saved["causal"] and saved["position"] == "none" and "position" not in changes
        if mirrored and changes.get("causal") is False:
            logger.warning_once(
                "the saved model is causal and has no positions: looking both ways it cannot tell a text "
                "from its mirror image. Pass position=None as well for those such a model has by default."
            )
        return super().from_dict({**saved, **changes}, **kwargs)

    @classmethod
    def from_json_file(cls, json_file: Any) -> Any:
        """A saved configuration, as `from_dict` reads it."""
        return cls.from_dict(reading.json_object(Path(json_file)))

    @classmethod
    def own_fields(cls) -> tuple[str, ...]:
        """The fields of this family, without those of every configuration of transformers."""
        return tuple(defaults.VERSIONS[defaults.CURRENT])

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        if self.defaults_version != defaults.CURRENT:
            raise ValueError(
                f"defaults_version must be {defaults.CURRENT} here, but got {self.defaults_version!r}: what "
                "was saved with other defaults is read by CosformerConfig.from_pretrained or .from_dict; "
                "CosformerConfig.paper() is the paper's model."
            )
        self._at_most("num_attention_heads", MOST.get("num_attention_heads", LARGEST_SIZE))
        check_parameters("attention_parameters", self.attention_parameters, lists=True)
        check_parameters("position_parameters", self.position_parameters)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * positive_int("hidden_size", self.hidden_size)
        if self.horizon is None:
            self.horizon = self.max_position_embeddings
        self._choose_attention()
        self.attention_parameters = own_parameters(as_lists(self.attention_parameters))
        self.position_parameters = dict(self.position_parameters or {})
        super().__post_init__(**kwargs)
        self.check()

    def _choose_attention(self) -> None:
        """What the library recommends, where nothing else is said."""
        heads = self.num_key_value_heads or self.num_attention_heads
        self.attention = as_lists(self.attention)
        if self.attention_parameters is None:
            self._at_most("num_key_value_heads", MOST["num_key_value_heads"])
        if self.attention is None:
            # A list is for both sides of an encoder-decoder, which then have as many layers.
            alike = self.num_decoder_layers in (None, self.num_hidden_layers)
            if self.attention_parameters is None and alike:
                self._at_most("num_hidden_layers", MOST["num_hidden_layers"])
                self.attention, self.attention_parameters = defaults.mixture(self.num_hidden_layers, heads)
                return
            self.attention = "cosformer"
        if self.attention_parameters is None:
            self.attention_parameters = defaults.parameters(self.attention, heads)
        elif self.position is None and lost_windows(self.attention, self.attention_parameters):
            logger.warning_once(
                f"attention_parameters={self.attention_parameters} stand in place of the default ones, and "
                "have no windows: all heads have one horizon, as published. Add the default ones, "
                f'"windows": {defaults.windows(heads)}, or "windows": None to say that none are meant.'
            )

    def to_diff_dict(self) -> dict[str, Any]:
        """What is saved: the attention always, because what it is by default depends on other fields."""
        own = {"attention": self.attention, "attention_parameters": self.attention_parameters}
        return {**super().to_diff_dict(), **copy.deepcopy(own)}

    def _refuse_unknown(self, given: dict[str, Any]) -> None:
        generation = GenerationConfig().to_dict()  # configurations once held these, and may still do
        for name in given:
            if name not in _FOREIGN and name not in generation and not name.startswith("_"):
                hint = meant_or_known(name, self.own_fields(), "it has")
                raise ValueError(f"CosformerConfig has no field {name!r}; {hint}")

    def check(self) -> None:
        """Raises where a value is impossible or two contradict each other."""
        for name in (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "intermediate_size", "max_position_embeddings",
        ):  # fmt: skip
            self._at_most(name, MOST.get(name, LARGEST_SIZE))
        if self.num_decoder_layers is not None:
            self._at_most("num_decoder_layers", MOST["num_hidden_layers"])
        for name in ("norm_eps", "initializer_range"):
            positive(name, getattr(self, name))
        if self.embedding_range is not None:
            positive("embedding_range", self.embedding_range)
        self._multiple("hidden_size", "num_attention_heads")
        self._multiple("num_attention_heads", "num_key_value_heads")
        for name in self.attention_names:
            one_of("attention", name, attention.names())
        for name in (
            "qk_norm", "output_norm", "ordered_tokens", "pre_norm", "bias", "use_cache",
            "tie_word_embeddings",
        ):  # fmt: skip
            flag(name, getattr(self, name))
        if self.conv_size is not None:
            positive_int("conv_size", self.conv_size)
        if self.output_gate is not None:
            self._one_of("output_gate", gate.KINDS)
        if self.position is not None:
            self._one_of("position", positions.names())
        elif self.position_parameters:
            raise ValueError(
                f"position_parameters are those of a kind of position, and got {self.position_parameters} "
                f"without one: choose position as well, one of {', '.join(positions.names())}."
            )
        self._one_of("feed_forward", feedforward.KINDS)
        self._one_of("norm", norm.KINDS)
        self._one_of("pooling", POOLING)
        self._one_of("pair_difference", PAIR_DIFFERENCES)
        self._one_of("head_loss", HEAD_LOSSES)
        if self.loss_samples is not None:
            if self.head_loss != "one_vs_each":
                raise ValueError('loss_samples is for head_loss="one_vs_each": leave it out, or choose that.')
            if positive_int("loss_samples", self.loss_samples) < 2:
                raise ValueError("loss_samples must be at least 2: one of them may be the label itself.")
        if self.loss_chunk is not None:
            positive_int("loss_chunk", self.loss_chunk)
            if self.head_loss != "cross_entropy":
                raise ValueError('loss_chunk is for head_loss="cross_entropy": leave it out, or choose that.')
        for name in ("dropout", "classifier_dropout"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
                raise ValueError(f"{name} must be a number of at least 0 and below 1, but got {share!r}.")
        if self.causal not in (True, False, None):
            raise ValueError(f"causal must be True, False or None, but got {self.causal!r}.")
        horizon = positive("horizon", self.horizon)
        if self.max_position_embeddings > horizon:
            raise ValueError(
                f"max_position_embeddings is {self.max_position_embeddings}, longer than the horizon "
                f"{horizon:g}: beyond the horizon the weights turn negative. Raise horizon, or lower "
                "max_position_embeddings."
            )
        if self.causal and self.pooling == "cls":
            raise ValueError(
                'pooling "cls" reads the first token, which sees nothing else in a causal model: choose '
                '"mean" or "max", or causal=False.'
            )
        if any("horizon" in parameters for parameters in self.layer_parameters):
            raise ValueError(
                "attention_parameters must not hold horizon: it is a field of the configuration, which "
                "caches and positions follow too."
            )
        # Unknown parameters and wrong values raise here, and not first in a layer.
        with torch.device("meta"):
            self.build_position()
            _ = self.attentions
        ungrouped = self.lacking("grouped_heads")
        if self.num_key_value_heads != self.num_attention_heads and ungrouped is not None:
            raise ValueError(
                f"num_key_value_heads must be num_attention_heads {self.num_attention_heads} for attention "
                f"{ungrouped!r}, which has no grouped heads, but got {self.num_key_value_heads}."
            )

    def _at_most(self, name: str, most: int) -> None:
        if positive_int(name, getattr(self, name)) > most:
            raise ValueError(f"{name} must be at most {most:,}, but got {getattr(self, name):.6g}.")

    def _one_of(self, name: str, known: tuple[str, ...]) -> None:
        one_of(name, getattr(self, name), known)

    def _multiple(self, name: str, of: str) -> None:
        if getattr(self, name) % getattr(self, of) != 0:
            raise ValueError(
                f"{name} must be a multiple of {of} {getattr(self, of)}, but got {getattr(self, name)}."
            )

    @property
    def bounded(self) -> bool:
        """Whether texts end at max_position_embeddings. They do not where every head of every layer has a
        window and the kind of position has no end (none, rotary, sinusoidal): memory is then constant for
        ever. Cross-attention has no windows, so an encoder-decoder always has a bound."""
        with torch.device("meta"):
            position = self.build_position()
        ends = any(layer.has_bound for layer in self.attentions)
        return bool(self.is_encoder_decoder) or ends or position.has_bound

    def build_position(self) -> Position:
        return positions.fit(
            self.position_of(bool(self.causal)),
            self.position_parameters or {},
            hidden_size=self.hidden_size,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            max_length=self.max_position_embeddings,
        )

    def position_of(self, causal: bool) -> str:
        """The kind of position of a causal model, or of a bidirectional one."""
        if self.position is not None:
            return self.position
        if causal and (self.windows_tell_order or self.is_encoder_decoder):
            return "none"
        return "rotary" if self.head_dim % 2 == 0 else "sinusoidal"

    def for_head(self, head: str, *, causal: bool | None, **changes: Any) -> "CosformerConfig":
        """The configuration with `causal` and `position` decided (a copy, if that changes it): as the head
        needs it, or, where the head needs nothing (None), as it was, which is bidirectional by default. A
        contradiction raises."""
        if causal is not None and self.causal not in (None, causal):
            raise ValueError(
                f"{head} needs causal={causal}, but the configuration says causal={self.causal}: leave "
                "causal out, choose another head, or, where it is that of a saved model, pass causal=None "
                "and position=None to from_pretrained."
            )
        decided = bool(self.causal) if causal is None else causal
        trait = "causal" if decided else "bidirectional"
        unable = self.lacking(trait)
        if unable is not None:
            able = [n for n in attention.names() if getattr(attention.traits(n), trait)]
            raise ValueError(
                f"{head} needs an attention that is {trait}, and {unable!r} is not: choose one of "
                f"{', '.join(able)}."
            )
        if self.causal is decided and self.position is not None and not changes:
            return self
        own = copy.deepcopy(self)
        own.causal = decided
        own.position = self.position_of(decided)
        for name, value in changes.items():
            setattr(own, name, value)
        return own
