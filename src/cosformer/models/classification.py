"""Classification of a sequence, and of a pair of sequences."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from cosformer.models.base import CosformerPreTrainedModel
from cosformer.models.config import CosformerConfig
from cosformer.models.keywords import CACHE, refuse_packing, refuse_unread
from cosformer.models.model import CosformerModel
from cosformer.models.pooling import pool
from cosformer.models.targets import check_targets


class _Classifier(CosformerPreTrainedModel):
    """The model, pooling, and a classifier over a number of pooled features."""

    accepts_loss_kwargs = False  # the loss is a mean over rows: the Trainer divides it by accumulation steps

    def __init__(self, config: CosformerConfig):
        super().__init__(config.for_head(type(self).__name__, causal=None))
        self.num_labels = config.num_labels
        self.model = CosformerModel(self.config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.loss_type = "ForSequenceClassification"  # for both heads

    def _pooled(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        inputs_embeds: Tensor | None,
        kwargs: dict[str, Any],
    ) -> tuple[Tensor, Any]:
        refuse_packing(self, kwargs)
        refuse_unread(self, kwargs, *CACHE)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=kwargs.get("output_hidden_states"),
            output_attentions=kwargs.get("output_attentions"),
            return_dict=True,
        )
        hidden, group = outputs.last_hidden_state, self.model.sequence_group
        if group is not None:
            from cosformer.models.split import pool_over_group

            return pool_over_group(hidden, attention_mask, self.config.pooling, group), outputs.hidden_states
        return pool(hidden, attention_mask, self.config.pooling), outputs.hidden_states

    def _output(self, logits: Tensor, labels: Tensor | None, hidden: Any) -> SequenceClassifierOutput:
        loss = None
        if labels is not None:
            self._check(labels, len(logits))
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden)

    def _check(self, labels: Any, rows: int) -> None:
        """Raises where labels are none of the loss that `config.problem_type`, or their type, asks for."""
        kind, count = self.config.problem_type, self.config.num_labels
        dtype, shape = getattr(labels, "dtype", None), tuple(getattr(labels, "shape", ()))
        each, several = shape in ((rows,), (rows, 1)), shape == (rows, count)
        floats = dtype is not None and dtype.is_floating_point
        size = [rows] if count == 1 else [rows, count]
        possible = {
            "regression": (
                each if count == 1 else several,
                f"numbers {size}",
            ),
            "single_label_classification": (
                each and dtype == torch.int64,
                f"whole numbers (int64) [B] = [{rows}], a class for each row",
            ),
            "multi_label_classification": (
                several and floats,
                f"floats [B, num_labels] = [{rows}, {count}], one for each class",
            ),
        }
        if kind is not None and kind not in possible:
            raise ValueError(f"problem_type must be one of {', '.join(possible)}, but got {kind!r}.")
        kinds = [kind] if kind is not None else list(possible)[:1] if count == 1 else list(possible)[1:]
        if not any(possible[k][0] for k in kinds):
            got = type(labels).__name__ if dtype is None else f"{dtype} of shape {list(shape)}"
            raise ValueError(
                f"labels must be a tensor of {', or '.join(possible[k][1] for k in kinds)}, but got {got}."
            )
        if "single_label_classification" in kinds and not floats:
            check_targets(labels, count, "the num_labels of the configuration")


class CosformerForSequenceClassification(_Classifier):
    """A label for a sequence: hidden states pooled (`config.pooling`), then a linear classifier."""

    def __init__(self, config: CosformerConfig):
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """labels [B] (or [B, num_labels]); which loss follows from `config.problem_type`, as usual."""
        pooled, hidden = self._pooled(input_ids, attention_mask, inputs_embeds, kwargs)
        return self._output(self.score(self.dropout(pooled)), labels, hidden)


class CosformerForSequencePairClassification(_Classifier):
    """A label for two sequences, each read by the same model: the retrieval head of the Long Range Arena.

    With a and b the pooled sequences, a classifier of two layers reads [a, b, a * b, a - b] (Tay et al.,
    2020, arXiv:2011.04006, after Mou et al., 2016, arXiv:1512.08422). Where `config.pair_difference` is
    "absolute", the last is |a - b|, as in the baselines of GLUE (Wang et al., 2018, arXiv:1804.07461).
    """

    def __init__(self, config: CosformerConfig):
        super().__init__(config)
        self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pair_input_ids: Tensor | None = None,
        pair_attention_mask: Tensor | None = None,
        pair_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """The first sequences [B, T] and, as pair_..., the second ones [B, T'].

        Hidden states, where asked for, are those of the first sequences.
        """
        if pair_input_ids is None and pair_inputs_embeds is None:
            raise ValueError(
                f"pair_input_ids (or pair_inputs_embeds) is missing: {type(self).__name__} reads two "
                "sequences."
            )
        a, hidden = self._pooled(input_ids, attention_mask, inputs_embeds, kwargs)
        b, _ = self._pooled(pair_input_ids, pair_attention_mask, pair_inputs_embeds, kwargs)
        difference = (a - b).abs() if self.config.pair_difference == "absolute" else a - b
        features = torch.cat([a, b, a * b, difference], -1)
        return self._output(self.score(F.gelu(self.dense(self.dropout(features)))), labels, hidden)
