"""Heads with an output per token: its label, or whether an answer begins or ends there."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput, TokenClassifierOutput
from transformers.utils import can_return_tuple

from cosformer.models.base import CosformerPreTrainedModel
from cosformer.models.config import CosformerConfig
from cosformer.models.keywords import CACHE, packed_bounds, refuse_packing, refuse_unread
from cosformer.models.model import CosformerModel
from cosformer.models.targets import check_targets, real_targets, recount


class _Tagger(CosformerPreTrainedModel):
    """The model, and a linear layer to the scores of each token."""

    splits_sequences = False

    def __init__(self, config: CosformerConfig):
        super().__init__(config.for_head(type(self).__name__, causal=None))
        self.num_labels = config.num_labels
        self.model = CosformerModel(self.config)
        self.dropout = nn.Dropout(config.classifier_dropout)


class CosformerForTokenClassification(_Tagger):
    """A label for each token, by a linear classifier over its hidden state."""

    def __init__(self, config: CosformerConfig):
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

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
    ) -> TokenClassifierOutput:
        """As `CosformerModel.forward`; labels [B, T], -100 (or `ignore_index`) where no loss is wanted.
        Padding never has a label."""
        refuse_unread(self, kwargs, *CACHE)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cu_seqlens=packed_bounds(cu_seqlens, position_ids, kwargs),
            use_cache=False,
            output_hidden_states=output_hidden_states,
            output_attentions=kwargs.get("output_attentions"),
            return_dict=True,
        )
        logits, loss = self.score(self.dropout(outputs.last_hidden_state)), None
        if labels is not None:
            targets = real_targets(labels, logits.shape[:2], attention_mask, kwargs.get("ignore_index"))
            check_targets(targets, self.config.num_labels, "the num_labels of the configuration")
            recount(kwargs, labels, targets)
            more = {name: kwargs[name] for name in ("num_items_in_batch",) if name in kwargs}
            loss = self.loss_function(logits=logits, labels=targets, config=self.config, **more)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class CosformerForQuestionAnswering(_Tagger):
    """Where in a text the answer to a question is: for each token, how likely the answer begins there, and
    ends there. Padding is neither, whatever a batch adds of it."""

    def __init__(self, config: CosformerConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """start_positions and end_positions [B] are columns of each row, the first and the last of its
        answer; one that lies outside, or in padding, has no loss."""
        refuse_packing(self, kwargs)
        refuse_unread(self, kwargs, *CACHE)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            output_attentions=kwargs.get("output_attentions"),
            return_dict=True,
        )
        scores = self.qa_outputs(self.dropout(outputs.last_hidden_state))  # (B, T, 2)
        if attention_mask is not None:
            scores = scores.masked_fill((attention_mask == 0)[..., None], torch.finfo(scores.dtype).min)
        start, end = (x.contiguous() for x in scores.unbind(-1))
        loss = None
        if start_positions is not None and end_positions is not None:
            targets = (_in_text(x, attention_mask, start.shape[1]) for x in (start_positions, end_positions))
            loss = self.loss_function(start, end, *targets)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=outputs.hidden_states
        )


def _in_text(columns: Tensor, mask: Tensor | None, length: int) -> Tensor:
    """Columns [B] (or [B, 1]) as they are, or the one behind the last where there is padding."""
    if mask is None:
        return columns
    columns = columns.reshape(-1)
    real = mask.gather(1, columns.clamp(0, length - 1)[:, None])[:, 0] != 0
    return columns.where(real, length)
