"""Encoder and decoder without a head: two texts in, hidden states of the second out."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple

from cosformer.models.base import CosformerPreTrainedModel
from cosformer.models.cache import CosformerCache, layers_that_decode
from cosformer.models.config import CosformerConfig
from cosformer.models.keywords import PACKING, refuse_misspelt
from cosformer.models.model import CosformerModel


class CosformerEncoder(CosformerModel):
    """The side that is read whole, in both directions."""

    def __init__(self, config: CosformerConfig):
        super().__init__(config.for_head(type(self).__name__, causal=False, is_encoder_decoder=False))
        self.bounded = True  # the decoder's cross-attention has no windows


class CosformerDecoder(CosformerModel):
    """The side that is written token by token, with a look at the encoder's in every layer."""

    def __init__(self, config: CosformerConfig):
        layers = layers_that_decode(config)
        name = type(self).__name__
        own = config.for_head(name, causal=True, is_encoder_decoder=False, num_hidden_layers=layers)
        super().__init__(own, cross_attention=True)


class CosformerEncoderDecoderModel(CosformerPreTrainedModel):
    """A bidirectional encoder, and a causal decoder that looks at it through cross-attention."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "decoder.embed_tokens.weight": "encoder.embed_tokens.weight"
    }

    def __init__(self, config: CosformerConfig):
        super().__init__(with_both_sides(config, type(self).__name__))
        self.encoder = CosformerEncoder(self.config)
        self.decoder = CosformerDecoder(self.config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.decoder.embed_tokens = value
        elif value.num_embeddings != self.decoder.embed_tokens.num_embeddings:  # a vocabulary is that of both
            self.decoder.resize_token_embeddings(value.num_embeddings)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: CosformerCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """
        Args:
            input_ids, attention_mask: the source [B, S]; or inputs_embeds in place of input_ids.
            decoder_input_ids, decoder_attention_mask: the target so far [B, T]; or decoder_inputs_embeds.
            encoder_outputs: of an earlier call, in place of the source.
            past_key_values: the cache of earlier tokens, the encoder's memory included.
        """
        refuse_misspelt(self, kwargs)
        for name in PACKING:
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} must be left out of an encoder-decoder: pad the batch instead.")
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("decoder_input_ids is missing: the decoder needs the target so far.")
        attentions = kwargs.get("output_attentions")
        output_hidden_states = self.hidden_states_wanted(output_hidden_states, attentions)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
                output_attentions=attentions,
                return_dict=True,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput | dict):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        outputs = self.decoder(
            decoder_input_ids,
            attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            encoder_hidden_states=encoder_outputs["last_hidden_state"],
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=attentions,
            return_dict=True,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            encoder_last_hidden_state=encoder_outputs["last_hidden_state"],
            encoder_hidden_states=encoder_outputs.get("hidden_states"),
        )


def with_both_sides(config: CosformerConfig, name: str) -> CosformerConfig:
    """The configuration as one of an encoder-decoder, for the model of this name; refused where its attention
    cannot be on both sides."""
    if config.causal is not None:
        raise ValueError(f"{name} has a side of each kind: causal must be left out of its configuration.")
    unable = config.lacking("cross")
    if unable is not None:
        raise ValueError(f"{name} needs cross-attention, and attention {unable!r} has none.")
    if config.is_encoder_decoder:
        return config
    position = config.position
    config = config.for_head(name, causal=False, is_encoder_decoder=True)
    config.causal, config.position = None, position  # each side decides for itself
    return config
