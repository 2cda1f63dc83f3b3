"""Language models: the next token, or the masked ones."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils import can_return_tuple

from cosformer.distributed.exchange import group_sum
from cosformer.models.base import CosformerPreTrainedModel
from cosformer.models.cache import CosformerCache, checked
from cosformer.models.config import CosformerConfig
from cosformer.models.generation import StatefulGenerationMixin
from cosformer.models.keywords import CACHE, packed_bounds, refuse_unread
from cosformer.models.model import CosformerModel
from cosformer.models.prefill import chunked_prefill
from cosformer.models.split import labels_that_count
from cosformer.models.targets import check_targets, next_tokens, real_targets, recount
from cosformer.nn import chunked_cross_entropy, one_vs_each_loss


class _LanguageModel(CosformerPreTrainedModel):
    """The model and a matrix from hidden states to tokens, the embedding's own where they are tied."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}
    causal: ClassVar[bool]

    def __init__(self, config: CosformerConfig):
        super().__init__(config.for_head(type(self).__name__, causal=self.causal))
        self.model = CosformerModel(self.config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _logits_and_loss(
        self, hidden: Tensor, keep: slice | Tensor, targets: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Of hidden states [B, T, C] and the targets of all columns [B, T]; logits for the columns to keep,
        None where the loss needs none."""
        config, group, items = self.config, self.model.sequence_group, kwargs.get("num_items_in_batch")
        if group is not None and targets is not None and items is None:
            items = labels_that_count(targets, group)
        pairs, chunk = config.head_loss == "one_vs_each", config.loss_chunk
        logits = None
        learns = targets is not None and self.training
        if learns and pairs and getattr(type(self.lm_head), "forward", None) is not nn.Linear.forward:
            raise ValueError(
                'head_loss="one_vs_each" reads the weight of lm_head alone, which is a '
                f"{type(self.lm_head).__name__} with a forward of its own now: what that learns would have "
                'no part in the loss. Leave lm_head as it is, or choose head_loss="cross_entropy".'
            )
        if targets is not None:
            check_targets(targets, config.vocab_size, "the model's vocabulary")
        if targets is not None and learns and (pairs or chunk is not None):
            if chunk is not None:
                loss = chunked_cross_entropy(self.lm_head, hidden, targets, chunk=chunk, num_items=items)
            else:
                loss = one_vs_each_loss(
                    hidden, self.lm_head.weight, targets, samples=config.loss_samples, num_items=items
                )
                logits = self.lm_head(hidden) if config.loss_samples is None else None
        else:
            logits = self.lm_head(hidden[:, keep])
            if targets is None:
                return logits, None
            more = {} if items is None else {"num_items_in_batch": items}
            if self.causal:
                more["shift_labels"] = targets  # transformers' loss would shift labels itself
            loss = self.loss_function(logits=logits, labels=targets, vocab_size=config.vocab_size, **more)
        return logits, loss if group is None else group_sum(loss, group)


class CosformerForCausalLM(_LanguageModel, StatefulGenerationMixin):
    """Predicts the next token; `generate()` carries a state of constant size."""

    causal = True

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CosformerCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As `CosformerModel.forward`; labels [B, T] are input_ids, -100 (or `ignore_index`) where no loss is
        wanted. `shift_labels` [B, T], in their place, has the next token of each column already.

        The first token of a document is never predicted from another document, nor padding at all.
        """
        # Not an argument of its own: transformers' Trainer takes all whose names have "label" in them for
        # those that a batch must have, and would give no loss in evaluation.
        shift_labels: Tensor | None = kwargs.get("shift_labels")
        refuse_unread(self, kwargs)
        cu_seqlens = packed_bounds(cu_seqlens, position_ids, kwargs)
        output_hidden_states = self.hidden_states_wanted(
            output_hidden_states, kwargs.get("output_attentions")
        )
        decoding = getattr(past_key_values, "decoding", None)
        if decoding is not None and input_ids is not None and past_key_values is not None:
            others = (inputs_embeds, labels, shift_labels, cu_seqlens, output_hidden_states or None)
            if all(x is None for x in others) and self._all_real(input_ids, attention_mask, past_key_values):
                logits = decoding.step(input_ids, past_key_values)
                if logits is not None:
                    return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
        last_alone = isinstance(logits_to_keep, int) and logits_to_keep == 1 and not output_hidden_states
        learning = labels is not None or shift_labels is not None
        if last_alone and not learning and cu_seqlens is None and past_key_values is not None:
            cache = checked(past_key_values, self.config)
            last = chunked_prefill(self.model, cache, input_ids, inputs_embeds, attention_mask, position_ids)
            if last is not None:
                logits = self.lm_head(last.last_hidden_state[:, -1:])
                return CausalLMOutputWithPast(logits=logits, past_key_values=cache)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            cu_seqlens=cu_seqlens,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=kwargs.get("output_attentions"),
            return_dict=True,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        documents = (attention_mask, position_ids, cu_seqlens)
        if self.model.sequence_group is not None:  # cu_seqlens are of the whole sequence
            documents = (None, None, None)
            if labels is not None:
                raise ValueError(
                    "labels must come as shift_labels where a sequence is split over a group, as the target "
                    "of the last token is the next rank's: cut batches with shard_batch."
                )
        if learning and self.training and not (isinstance(keep, slice) and keep == slice(0, None)):
            self._refuse_part()
        shape = outputs.last_hidden_state[:, keep].shape[:2]
        targets = next_tokens(labels, shift_labels, shape, *documents, kwargs.get("ignore_index"))
        if labels is not None and targets is not None and shift_labels is None:
            recount(kwargs, labels[:, 1:], targets)
        logits, loss = self._logits_and_loss(outputs.last_hidden_state, keep, targets, kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )

    def _refuse_part(self) -> None:
        """Raises where the loss is not that of logits, of which a part could be kept."""
        pairs = self.config.head_loss == "one_vs_each"
        if pairs or self.config.loss_chunk is not None:
            why = "head_loss is one_vs_each" if pairs else "loss_chunk is given"
            raise ValueError(f"logits_to_keep must be left out where {why}.")

    def _all_real(self, ids: Tensor, mask: Tensor | None, cache: CosformerCache) -> bool:
        """Whether every token of a call is real."""
        if mask is None:
            return True
        return bool(self.model.own_mask(mask, ids.shape[0], ids.shape[1], cache.past).all())


class CosformerForMaskedLM(_LanguageModel):
    """Predicts masked tokens from both sides."""

    causal = False

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """As `CosformerModel.forward`; labels [B, T] hold the masked tokens, -100 elsewhere. Padding is never
        predicted."""
        refuse_unread(self, kwargs, *CACHE)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cu_seqlens=packed_bounds(cu_seqlens, position_ids, kwargs),
            output_hidden_states=output_hidden_states,
            output_attentions=kwargs.get("output_attentions"),
            return_dict=True,
        )
        if kwargs.get("shift_labels") is not None:
            raise ValueError(
                f"shift_labels must be left out: {type(self).__name__} predicts the token of its own column, "
                "so give labels."
            )
        targets = None
        if labels is not None:
            shape = outputs.last_hidden_state.shape[:2]
            targets = real_targets(labels, shape, attention_mask, kwargs.get("ignore_index"))
            recount(kwargs, labels, targets)
        logits, loss = self._logits_and_loss(outputs.last_hidden_state, slice(0, None), targets, kwargs)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)
