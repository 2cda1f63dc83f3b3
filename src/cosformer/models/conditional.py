"""Encoder-decoder: one text in, another out."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from cosformer.models.base import CosformerPreTrainedModel
from cosformer.models.cache import CosformerCache, layers_that_decode
from cosformer.models.config import CosformerConfig
from cosformer.models.generation import StatefulGenerationMixin
from cosformer.models.model import CosformerModel
from cosformer.models.targets import without


class CosformerForConditionalGeneration(CosformerPreTrainedModel, StatefulGenerationMixin):
    """A bidirectional encoder and a causal decoder that looks at it through cross-attention.

    In generation the encoder's keys and values become one state a layer, computed once; with cosFormer
    the cost of a token then depends neither on the length of the text so far nor on that of the source.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {
        "decoder.embed_tokens.weight": "encoder.embed_tokens.weight",
        "lm_head.weight": "encoder.embed_tokens.weight",
    }

    def __init__(self, config: CosformerConfig):
        name = type(self).__name__
        if config.causal is not None:
            raise ValueError(f"{name} has a side of each kind: causal must be left out of its configuration.")
        unable = config.lacking("cross")
        if unable is not None:
            raise ValueError(f"{name} needs cross-attention, and attention {unable!r} has none.")
        if not config.is_encoder_decoder:
            config = config.for_head(name, causal=False, is_encoder_decoder=True)
            config.causal = None
        super().__init__(config)
        self.encoder = CosformerModel(config.for_head(name, causal=False, is_encoder_decoder=False))
        self.encoder.bounded = True  # the decoder's cross-attention has no windows
        layers = layers_that_decode(config)
        decoder = config.for_head(name, causal=True, is_encoder_decoder=False, num_hidden_layers=layers)
        self.decoder = CosformerModel(decoder, cross_attention=True)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_encoder(self, *args: Any, **kwargs: Any) -> CosformerModel:
        return self.encoder

    def get_decoder(self, *args: Any, **kwargs: Any) -> CosformerModel:
        return self.decoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.decoder.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels one place later, behind the start token; what carries no loss becomes padding."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError("decoder_start_token_id and pad_token_id must be set to learn from labels.")
        shifted = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], 1)
        return shifted.masked_fill(shifted == -100, pad)

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
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """
        Args:
            input_ids, attention_mask: the source [B, S]; or inputs_embeds in place of input_ids.
            decoder_input_ids, decoder_attention_mask: the target so far [B, T]; from labels if left out.
            encoder_outputs: of an earlier call, in place of the source.
            past_key_values: what came before, the encoder's memory included.
            labels: [B, T], the target, -100 where no loss is wanted.
        """
        for name in ("cu_seqlens", "cu_seq_lens_q", "position_ids", "decoder_position_ids"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} must be left out of an encoder-decoder: pad the batch instead.")
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError(
                    "decoder_input_ids or labels is missing: the decoder needs the target so far, or the "
                    "whole target to learn from."
                )
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        attentions = kwargs.get("output_attentions")
        output_hidden_states = self.hidden_states_wanted(output_hidden_states, attentions)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
                output_attentions=attentions,
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
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        # Decoder inputs are the labels moved by one already: the loss must not move them again.
        targets = labels if kwargs.get("shift_labels") is None else kwargs["shift_labels"]
        if targets is not None:
            targets = without(targets, kwargs.get("ignore_index"))
            more = {k: kwargs[k] for k in ("num_items_in_batch",) if k in kwargs}
            size = self.config.vocab_size
            loss = self.loss_function(
                logits=logits, labels=targets, vocab_size=size, shift_labels=targets, **more
            )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            encoder_last_hidden_state=encoder_outputs["last_hidden_state"],
            encoder_hidden_states=encoder_outputs.get("hidden_states"),
        )
