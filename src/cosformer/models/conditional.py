"""Encoder-decoder with a head: one text in, another out."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from cosformer.models.base import CosformerPreTrainedModel
from cosformer.models.cache import CosformerCache
from cosformer.models.config import CosformerConfig
from cosformer.models.encoder_decoder import CosformerEncoderDecoderModel, with_both_sides
from cosformer.models.generation import StatefulGenerationMixin
from cosformer.models.keywords import PACKING, refuse_misspelt
from cosformer.models.targets import IGNORED, check_targets, real_targets, recount
from cosformer.nn import chunked_cross_entropy


class CosformerForConditionalGeneration(CosformerPreTrainedModel, StatefulGenerationMixin):
    """A bidirectional encoder and a causal decoder that looks at it through cross-attention.

    In generation the encoder's keys and values become one state a layer, computed once; with cosFormer
    the cost of a token then depends neither on the length of the text so far nor on that of the source.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
    earlier_names: ClassVar[dict[str, str]] = {"encoder.": "model.encoder.", "decoder.": "model.decoder."}

    def __init__(self, config: CosformerConfig):
        if config.head_loss != "cross_entropy":
            raise ValueError(
                f"head_loss must be cross_entropy for {type(self).__name__}, but got {config.head_loss!r}."
            )
        super().__init__(with_both_sides(config, type(self).__name__))
        self.model = CosformerEncoderDecoderModel(self.config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels one place later, behind the start token; what carries no loss becomes padding. The start
        token is before the first label, where labels are padded on the left."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError("decoder_start_token_id and pad_token_id must be set to learn from labels.")
        size = self.config.vocab_size
        for name, token in (("decoder_start_token_id", start), ("pad_token_id", pad)):
            if token >= size:  # the defaults are those of byte_tokenizer()
                raise ValueError(
                    f"{name} must be a token of the vocabulary, below {size}, but it is {token}: give the "
                    f"configuration that of the tokenizer, CosformerConfig({name}=...)."
                )
        shifted = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], 1)
        real = labels != IGNORED
        shifted = shifted.masked_fill((shifted == IGNORED) | _before(real), pad)
        return shifted.scatter(1, _first(real), start)

    def _mask_of(self, ids: Tensor | None, labels: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """The mask of the target, or the one given. Collators pad on the left as well: nothing is before the
        start token but padding. Where both are one token, the first label tells where that is."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if mask is not None or start is None or pad is None or ids is None or ids.dim() != 2:
            return mask
        if start == pad and (labels is None or labels.shape != ids.shape):
            return None
        begins = ids == start if start != pad else cast(Tensor, labels) != IGNORED
        hidden = _before(begins)
        padding = ((ids == pad) | ~hidden).all(1, keepdim=True)
        hidden &= padding & (ids.gather(1, _first(begins)) == start)
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return ~hidden
        if ids.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # our own batches, which are padded on the right
        return ~hidden if hidden.any() else None

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
        """As `CosformerEncoderDecoderModel.forward`; labels [B, T] are the target, -100 where no loss is
        wanted, and make decoder_input_ids where those are left out. Columns that decoder_attention_mask hides
        have no loss."""
        refuse_misspelt(self, kwargs)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError(
                    "decoder_input_ids or labels is missing: the decoder needs the target so far, or the "
                    "whole target to learn from."
                )
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        # Decoder inputs are the labels moved by one already: the loss must not move them again.
        targets = labels if kwargs.get("shift_labels") is None else kwargs["shift_labels"]
        if not (isinstance(past_key_values, CosformerCache) and past_key_values.get_seq_length()):
            decoder_attention_mask = self._mask_of(decoder_input_ids, targets, decoder_attention_mask)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            **{name: kwargs.get(name) for name in (*PACKING, "output_attentions")},
            return_dict=True,
        )
        logits = loss = None
        hidden, chunk = outputs.last_hidden_state, self.config.loss_chunk
        if targets is not None:
            shape, ignored = hidden.shape[:2], kwargs.get("ignore_index")
            given, targets = targets, real_targets(targets, shape, decoder_attention_mask, ignored)
            check_targets(targets, self.config.vocab_size, "the model's vocabulary")
            recount(kwargs, given, targets)
        if targets is not None and self.training and chunk is not None:
            items = kwargs.get("num_items_in_batch")
            loss = chunked_cross_entropy(self.lm_head, hidden, targets, chunk=chunk, num_items=items)
        else:
            logits = self.lm_head(hidden)
            if targets is not None:
                more = {k: kwargs[k] for k in ("num_items_in_batch",) if k in kwargs}
                size = self.config.vocab_size
                loss = self.loss_function(
                    logits=logits, labels=targets, vocab_size=size, shift_labels=targets, **more
                )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )


def _first(real: Tensor) -> Tensor:
    """[B, 1], the first column of each row that is True in real [B, T]; 0 where there is none."""
    return real.to(torch.uint8).argmax(1, keepdim=True)


def _before(real: Tensor) -> Tensor:
    return torch.arange(real.shape[1], device=real.device) < _first(real)
