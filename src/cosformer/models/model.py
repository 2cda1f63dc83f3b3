"""The model without a head: embeddings, positions, layers. One class serves as encoder and as decoder."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import can_return_tuple, logging

from cosformer.attention.base import with_positions
from cosformer.models import cache_tree as cache_tree  # registers the cache as a pytree
from cosformer.models import layout as layouts
from cosformer.models.base import CosformerLayer, CosformerPreTrainedModel
from cosformer.models.cache import CosformerCache, checked
from cosformer.models.config import CosformerConfig
from cosformer.models.horizon import HorizonError
from cosformer.models.keywords import packed_bounds, refuse_misspelt
from cosformer.models.layout import Layout, Past
from cosformer.models.step import fast_step
from cosformer.nn import CrossAttentionState, build_norm
from cosformer.ops.checks import readable

logger = logging.get_logger(__name__)


class CosformerModel(CosformerPreTrainedModel):
    """Tokens in, hidden states [B, T, hidden_size] out.

    The output of a token depends on the real tokens of its own document alone, however they were
    padded (attention_mask), packed (cu_seqlens or restarting position_ids) or cut (past_key_values).

    Args:
        config: of the family; `config.causal` decides what a token sees.
        cross_attention: the layers also look at encoder_hidden_states.
    """

    sequence_group: Any = None  # set by `sequence_parallel`

    def __init__(self, config: CosformerConfig, *, cross_attention: bool = False):
        config.check()
        if config.is_encoder_decoder:
            raise ValueError(
                "this configuration is of an encoder-decoder: use CosformerForConditionalGeneration "
                "(AutoModelForSeq2SeqLM), or CosformerEncoderDecoderModel, which has no head."
            )
        super().__init__(config.for_head(type(self).__name__, causal=None))
        config = self.config
        self.cross_attention = cross_attention
        self.traits = config.traits
        self.bounded = cross_attention or config.bounded  # cross-attention has no windows
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = config.build_position()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            CosformerLayer(config, i, causal=bool(config.causal), cross_attention=cross_attention)
            for i in range(config.num_hidden_layers)
        )
        # Pre-norm needs a norm after the last layer; post-norm has one in every layer, and one after the
        # embedding.
        self.norm = build_norm(config.norm, config.hidden_size, config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: CosformerCache | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        only_state: bool = False,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """
        Args:
            input_ids: [B, T]; or inputs_embeds [B, T, hidden_size] in their place.
            attention_mask: [B, T], 1 for real tokens and 0 for padding, anywhere; with a cache
                [B, columns so far + T].
            position_ids: [B, T]; needed only to mark packed documents, by starting at 0 again.
            past_key_values: the cache of the tokens before.
            encoder_hidden_states, encoder_attention_mask: [B, S, hidden_size] and [B, S].
            cu_seqlens: bounds of documents packed into one row (B = 1).
            use_cache: return the cache after this call.
            only_state: only the cache is used, and no output; a row may then have no token in this call.
        """
        refuse_misspelt(self, kwargs)
        output_hidden_states = self.hidden_states_wanted(output_hidden_states, output_attentions)
        cu_seqlens = packed_bounds(cu_seqlens, position_ids, kwargs)
        if self.sequence_group is not None:
            from cosformer.models import split

            refused = {
                "past_key_values": past_key_values, "use_cache": use_cache, "position_ids": position_ids,
                "encoder_hidden_states": encoder_hidden_states,
            }  # fmt: skip
            return split.forward(
                self, input_ids, inputs_embeds, attention_mask, cu_seqlens, output_hidden_states, refused
            )
        if encoder_hidden_states is not None and not self.cross_attention:
            raise ValueError(
                f"encoder_hidden_states must be left out: this {type(self).__name__} has no cross-attention. "
                "CosformerForConditionalGeneration has."
            )
        x = self._embed(input_ids, inputs_embeds)
        cache = self._cache(past_key_values, use_cache)
        if not output_hidden_states and cu_seqlens is None and cache is not None:
            stepped = fast_step(self, x, attention_mask, cache, encoder_hidden_states)
            if stepped is not None:
                return BaseModelOutputWithPastAndCrossAttentions(
                    last_hidden_state=stepped, past_key_values=cache
                )
        if torch.compiler.is_compiling() and (use_cache or past_key_values is not None):
            position_ids = None  # a graph cannot check whether they restart, and with a cache they do not
        layout = self._layout(x, attention_mask, position_ids, cu_seqlens, cache, only_state)
        if layout.cu_seqlens is not None and cache is not None:
            if use_cache or past_key_values is not None:
                raise ValueError("packed documents are whole: there is no cache to fill with them.")
            cache = None
        x = layout.pack(x)
        x = self.dropout(self.position.embed(x, layout.positions))
        if not self.config.pre_norm:
            x = self.norm(x)
        source, source_mask = self._source(encoder_hidden_states, encoder_attention_mask, layout)
        rotate = self.position.rotation(layout.positions)
        hidden = [layout.unpack(x)] if output_hidden_states else []
        after = layout.starts + layout.counts
        with nullcontext() if cache is None or torch.compiler.is_compiling() else cache.all_or_nothing():
            for i, block in enumerate(self.layers):
                entry = None if cache is None else cache.layers[i]
                before = None if entry is None else entry.state
                if before is not None:
                    before = with_positions(before, layout.starts, layout.seen)
                finished = None if entry is None else entry.memory
                x, state, memory_state = block(
                    x,
                    source,
                    rotate=rotate,
                    lengths=None if layout.real is None else layout.counts,
                    cu_seqlens=layout.cu_seqlens,
                    state=before,
                    return_state=entry is not None,
                    memory=CrossAttentionState(source_mask, finished, layout.starts, layout.seen),
                )
                if entry is not None:
                    # `seen` counts padding, because the lengths would have to be read from the device.
                    state = layout.unpack_state(with_positions(state, after, layout.longest))
                    entry.put(state, memory_state, layout.columns)
                    entry.made_with = (x.dtype, x.device)
                if output_hidden_states:
                    hidden.append(layout.unpack(x))
        if self.config.pre_norm:
            x = self.norm(x)
        x = layout.unpack(x)
        if output_hidden_states:
            hidden[-1] = x
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x,
            past_key_values=cache,
            hidden_states=tuple(hidden) if output_hidden_states else None,
        )

    def _embed(self, ids: Tensor | None, embedded: Tensor | None) -> Tensor:
        if ids is None and embedded is not None:
            if embedded.dim() != 3 or embedded.shape[2] != self.config.hidden_size:
                raise ValueError(
                    f"inputs_embeds must have shape [B, T, hidden_size] = [B, T, {self.config.hidden_size}], "
                    f"but got {list(embedded.shape)}."
                )
            return embedded
        if ids is None:
            raise ValueError("input_ids is missing: give input_ids, or inputs_embeds in their place.")
        if embedded is not None:
            raise ValueError("give either input_ids or inputs_embeds, and not both.")
        self.check_ids(ids)
        return self.embed_tokens(ids)

    def check_ids(self, ids: Tensor) -> None:
        """Raises where input_ids are not tokens of the vocabulary."""
        if not isinstance(ids, Tensor):
            raise TypeError(f"input_ids must be a tensor [B, T], but got {type(ids).__name__}.")
        if ids.dim() != 2 or ids.numel() == 0:
            raise ValueError(
                f"input_ids must have shape [B, T], with at least one row and one token, but got "
                f"{list(ids.shape)}."
            )
        if ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"input_ids must be integers, but got {ids.dtype}; embeddings go to inputs_embeds."
            )
        if readable(ids) and ids.numel():
            least, most = (int(n) for n in ids.aminmax())
            size = self.embed_tokens.weight.shape[0]  # of whatever a package has put around the module, too
            if least < 0 or most >= size:
                raise ValueError(
                    f"input_ids must be from 0 to {size - 1}, the model's vocabulary, but got "
                    f"{least if least < 0 else most}: the tokenizer belongs to another model."
                )

    def _cache(self, given: Any, use_cache: bool | None) -> CosformerCache | None:
        """The cache to read and write, or None."""
        config = self.config
        if given is not None:
            if not config.causal:
                raise ValueError(
                    "past_key_values needs a causal model: later tokens would change earlier ones."
                )
            return checked(given, config)
        if use_cache is None:
            use_cache = (
                config.use_cache and bool(config.causal) and self.traits.recurrent and not self.training
            )
        if not use_cache:
            return None
        if self.gradient_checkpointing and self.training:
            logger.warning_once(
                "use_cache=True does not go with gradient checkpointing: no cache is returned."
            )
            return None
        if not config.causal:
            raise ValueError("use_cache=True needs a causal model: later tokens would change earlier ones.")
        return CosformerCache(config)

    def _layout(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cu_seqlens: Tensor | None,
        cache: CosformerCache | None,
        only_state: bool,
    ) -> Layout:
        batch, length = x.shape[:2]
        if position_ids is not None and position_ids.shape[-1] != length:
            raise ValueError(
                f"position_ids must be of the {length} tokens of this call, but got {position_ids.shape[-1]} "
                "of them."
            )
        past = None if cache is None else cache.past
        if cu_seqlens is None and attention_mask is None and past is None and position_ids is not None:
            bounds = layouts.restarts(position_ids.expand(batch, -1))
            if bounds is not None:
                layout = layouts.packed(bounds, batch * length, (batch, length))
                return self._within(layout, None)
            position_ids = None
        if cu_seqlens is not None:
            if attention_mask is not None or past is not None:
                raise ValueError(
                    "cu_seqlens goes with neither attention_mask nor a filled cache: a packed row has no "
                    "padding, and its documents are whole."
                )
            if batch != 1:
                raise ValueError(f"cu_seqlens needs a batch of 1 (one packed row), but got {batch}.")
            return self._within(layouts.packed(cu_seqlens, length), None)
        mask = None if attention_mask is None else self.own_mask(attention_mask, batch, length, past)
        if mask is None or (readable(mask) and mask.all()):  # of ones, it hides nothing
            layout = layouts.whole(batch, length, x.device, past)
        else:
            layout = layouts.padded(mask, past, self.limit, keeps=cache is not None, empty_rows=only_state)
        self._within(layout, cache)
        if position_ids is not None:
            layouts.check_positions(position_ids, layout)
        return layout

    def own_mask(self, mask: Tensor, batch: int, length: int, past: Past | None) -> Tensor:
        """The part of attention_mask that belongs to this call, as bool. The rest must say of the columns
        before it what the cache has read: its state can forget no token. (Compared on a CPU alone: on a GPU
        it would wait for the device, and in a graph there are no values.)"""
        columns = 0 if past is None else past.columns
        if mask.dim() != 2 or mask.shape != (batch, columns + length):
            raise ValueError(
                f"attention_mask must have shape [B, T] = [{batch}, {columns + length}]"
                f"{' (the cache included)' if columns else ''}, 1 for real tokens and 0 for padding, but got "
                f"{list(mask.shape)}."
            )
        own = mask[:, columns:]
        if not readable(mask):
            return own != 0
        if mask.dtype != torch.bool:
            wrong = (own != 0) & (own != 1)
            if wrong.any():
                raise ValueError(
                    "attention_mask must hold 1 for real tokens and 0 for padding, or be bool, but got "
                    f"{own[wrong][0].item():g}: a mask to be added to scores is not understood here."
                )
        if past is not None:
            told = mask[:, :columns].sum(1)
            for row in (told != past.positions).nonzero()[:1, 0].tolist():
                read = int(past.positions[row])
                raise ValueError(
                    f"attention_mask has {int(told[row])} real tokens among the {columns} columns before "
                    f"this call in row {row}, but past_key_values has read {read}, and cannot forget or add "
                    "any. "
                    + (
                        "What it was given as padding, or behind the end of a row, must have 0 in every mask."
                        if told[row] > read
                        else "Go on from a snapshot() of the cache, or read the texts again without one."
                    )
                )
        return own != 0

    @property
    def limit(self) -> int | None:
        """The greatest length of a text; None: there is none."""
        return self.config.max_position_embeddings if self.bounded else None

    def _within(self, layout: Layout, cache: CosformerCache | None) -> Layout:
        self.check_length(layout.longest, cache)
        return layout

    def check_length(self, longest: int, cache: CosformerCache | None) -> None:
        """Raises where a text of this length is too long for the model."""
        limit = self.limit
        if limit is not None and longest > limit:
            assert self.config.horizon is not None
            raise HorizonError(
                horizon=self.config.horizon, length=limit, position=longest - 1, past_key_values=cache
            )

    def _source(
        self, hidden: Tensor | None, mask: Tensor | None, layout: Layout
    ) -> tuple[Tensor | None, Tensor | None]:
        """The source of cross-attention, real tokens first, and its mask of real tokens."""
        if hidden is None:
            return None, None
        if layout.cu_seqlens is not None:
            raise ValueError(
                "packed documents and cross-attention do not go together: pad the batch instead."
            )
        if mask is None:
            return hidden, None
        own = layouts.padded(
            self.own_mask(mask, hidden.shape[0], hidden.shape[1], None), None, self.limit, keeps=False
        )
        return own.pack(hidden), own.real
