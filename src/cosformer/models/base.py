"""What every model of the family shares: initial weights, and loading that says what is wrong."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import copy_
from transformers.modeling_layers import GradientCheckpointingLayer

from cosformer import memory
from cosformer.attention import Attention
from cosformer.models import guard
from cosformer.models.config import CosformerConfig
from cosformer.models.note import write_note
from cosformer.nn import (
    Block,
    FeedForward,
    MultiheadAttention,
    OutputGate,
    ShortConvolution,
    build_norm,
)
from cosformer.positions import Position


class SizeError(ValueError, RuntimeError):
    """Weights of other sizes than the model's. transformers raises a RuntimeError there."""


class CosformerLayer(GradientCheckpointingLayer, Block):
    """One layer: a block that supports gradient checkpointing.

    Cross-attention has the norms and the gate, but neither a convolution (its keys and values are of another
    text, which the encoder's own layers have convolved already) nor windows (`build_attention` says why).
    """

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool, cross_attention: bool):
        def multihead(causal: bool, *, cross: bool = False) -> MultiheadAttention:
            return MultiheadAttention(
                config.hidden_size,
                config.num_attention_heads,
                config.build_attention(layer, cross=cross),
                num_kv_heads=config.num_key_value_heads,
                causal=causal,
                bias=config.bias,
                conv_size=None if cross else config.conv_size,
                qk_norm=config.qk_norm,
                output_norm=config.output_norm,
                output_gate=config.output_gate,
                norm_eps=config.norm_eps,
            )

        assert config.intermediate_size is not None
        super().__init__(
            multihead(causal),
            FeedForward(
                config.hidden_size, config.intermediate_size, kind=config.feed_forward, bias=config.bias
            ),
            lambda: build_norm(config.norm, config.hidden_size, config.norm_eps),
            cross_attention=multihead(False, cross=True) if cross_attention else None,
            pre_norm=config.pre_norm,
            dropout=config.dropout,
        )


def _on_a_line(weight: Tensor, std: float) -> Tensor:
    """Embeddings [levels, width] at equal steps along a line of a random direction, through a random point;
    all numbers have the standard deviation `std`."""
    middle, direction = torch.randn(2, 1, weight.shape[1], device=weight.device, dtype=weight.dtype)
    levels = torch.linspace(-1.0, 1.0, len(weight), device=weight.device, dtype=weight.dtype)[:, None]
    return std * (middle + 3**0.5 * levels * direction) / 2**0.5


class CosformerPreTrainedModel(PreTrainedModel):
    """Base class: safetensors only, no code from a checkpoint, errors in one sentence."""

    config: CosformerConfig
    config_class = CosformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["CosformerLayer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _is_stateful = True  # so it is by default; an object whose layers keep every key says otherwise
    earlier_names: ClassVar[dict[str, str]] = {}  # of weights that were saved under another prefix, and now's
    splits_sequences: ClassVar[bool] = True  # whether its losses are right over a sequence group
    _decoding: Any = None  # compiled steps, once generate() uses them

    def __init__(self, config: CosformerConfig):
        super().__init__(config)
        self._is_stateful = config.traits.recurrent and not all(config.growing_layers)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Attention | Position | ShortConvolution | OutputGate):
            module.reset_parameters()
        wanted, ordered = self.config.embedding_range, self.config.ordered_tokens
        if (ordered or wanted is not None) and module is self.get_input_embeddings():
            std = wanted or self.config.initializer_range
            if ordered:
                copy_(module.weight, _on_a_line(module.weight, std))
            else:
                nn.init.normal_(module.weight, 0.0, std)

    def hidden_states_wanted(self, asked: bool | None, attentions: bool | None) -> bool:
        """Whether all hidden states are wanted, by the call or by the configuration; attention weights, which
        are never formed, are refused either way."""
        config = self.config
        if config.output_attentions if attentions is None else attentions:
            raise ValueError("output_attentions must be left out: the weights are never formed.")
        wanted = config.output_hidden_states if asked is None else asked
        if isinstance(wanted, list | tuple | set):
            raise ValueError(
                f"output_hidden_states must be True or False, but got {wanted}: all are returned, or none."
            )
        return bool(wanted)

    def get_compiled_call(self, compile_config: Any) -> Any:
        """The uncompiled call: compiled steps belong to the cache, where beam search finds them too."""
        return self.__call__

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which compile their own steps."""
        return {**self.__dict__, "_decoding": None}

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As `PreTrainedModel.save_pretrained`, with a README that says how to load the folder."""
        done = super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_note(Path(save_directory), type(self).__name__)
        return done

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`, from safetensors files alone, in a folder of this machine (or
        a repository of a hub, with `local_files_only=False`); no code from there is run."""
        if kwargs.get("use_safetensors") is False:
            raise ValueError("use_safetensors must not be False: weights are read from safetensors alone.")
        kwargs["use_safetensors"] = True
        name_or_path = pretrained_model_name_or_path
        if name_or_path is not None:
            name_or_path = str(guard.local_folder(name_or_path, kwargs))
            kwargs |= {"local_files_only": True, "trust_remote_code": False}
            config = kwargs.get("config")
            if not isinstance(config, CosformerConfig):
                changes = {name: kwargs[name] for name in CosformerConfig.own_fields() if name in kwargs}
                config = CosformerConfig.from_pretrained(name_or_path, **changes)
            with torch.device("meta"):
                memory.refuse_beyond(memory.of_model(cls(config)), f"the model of {name_or_path}")
        info_wanted = kwargs.pop("output_loading_info", False)
        may_differ = kwargs.pop("ignore_mismatched_sizes", False)
        try:
            # Shapes are compared below, where the error can name them.
            model, info = super().from_pretrained(
                name_or_path, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        except SafetensorError as error:
            raise ValueError(
                f"a weight file of {name_or_path} is damaged or incomplete ({error}): copy it again."
            ) from error
        except OSError as error:
            if "safetensors" in str(error):
                raise FileNotFoundError(
                    f"no model.safetensors was found for {name_or_path}: save_pretrained writes it, and "
                    "weights in another format are not read."
                ) from error
            raise
        wrong = sorted(info["mismatched_keys"])
        if wrong and not may_differ:
            name, stored, expected = wrong[0]
            others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise SizeError(
                f"the weights of {name_or_path} do not fit its configuration: {name} has shape "
                f"{list(stored)} in the file and {list(expected)} in the model{others}. Load them with the "
                "configuration they were saved with, or have those initialised again "
                "(ignore_mismatched_sizes=True)."
            )
        return (model, info) if info_wanted else model
