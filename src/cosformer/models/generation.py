"""Generation with one state per layer in place of keys and values."""

import copy
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.generation import GenerationMode, StoppingCriteriaList
from transformers.generation.configuration_utils import CompileConfig
from transformers.utils import logging

from cosformer.models.cache import CosformerCache, checked
from cosformer.models.captured import can_capture
from cosformer.models.config import CosformerConfig
from cosformer.models.decoding import Decoding
from cosformer.models.horizon import HorizonError
from cosformer.models.turns import Watched, as_turned, without_ended

if TYPE_CHECKING:
    from cosformer.models.language import CosformerForCausalLM

logger = logging.get_logger(__name__)

_PLAIN_MODES = (
    GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)  # fmt: skip
FEWEST_CAPTURED = 8  # tokens: fewer are not worth a graph
CAPTURE_COMPILED = True  # compiled steps on CUDA; False leaves their graphs to torch.compile, which is slower
_FORWARDED = frozenset({"past_key_values", "use_cache", "logits_to_keep"})  # to the model, at each token
_OF_A_STEP = _FORWARDED | {"next_sequence_length", "is_first_iteration", "attention_mask", "position_ids"}
MIN_STATIC_TOKENS = 256  # least number of columns of states that grow, in compiled steps


class StatefulGenerationMixin(GenerationMixin):
    """`generate()` for the models of the family."""

    config: CosformerConfig
    _decoding: Decoding | None
    _is_stateful: bool

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        config = self.config
        static = generation_config.cache_implementation == "static"
        if generation_config.cache_implementation is not None and not static:
            raise ValueError(
                'cache_implementation must be left out, or "static" for compiled steps, but got '
                f"{generation_config.cache_implementation!r}: the model brings its own cache, a state for "
                "each layer."
            )
        given = model_kwargs.get("past_key_values")
        if given is not None:
            checked(given, config)
            mask = model_kwargs.get(f"{self._prefix}attention_mask")
            # transformers has removed a mask of ones by now, and kept its length.
            length = getattr(generation_config, "_mask_length", None) if mask is None else mask.shape[1]
            _refuse_what_was_read(given, length)
            given._is_user_defined = True
            given.guesses = generation_mode == GenerationMode.ASSISTED_GENERATION
            self._compile_steps(given, generation_config, model_kwargs)
            return
        if generation_config.use_cache is False:
            return
        unable = config.lacking("recurrent")
        if unable is not None:
            logger.warning_once(
                f"attention {unable!r} carries no state: the whole text is computed again for each token."
            )
            generation_config.use_cache = False
            return
        captured = not static and self._can_capture(generation_config, generation_mode)
        cache = model_kwargs["past_key_values"] = CosformerCache(config, static=static or captured)
        self._compile_steps(cache, generation_config, model_kwargs, captured)
        if captured and cache.decoding is None:
            model_kwargs["past_key_values"] = CosformerCache(config)

    def _prefill(
        self, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **more: Any
    ) -> Any:
        """As usual, where transformers gets it right.

        The target of an encoder-decoder is not read twice: how much of it is in a cache is known by its mask
        alone, and it may have none. And a prompt is cut by `prefill_chunk_size` only where its last token is
        in the last chunk, and its mask is that of the prompt.
        """
        whole, mask = self.config.is_encoder_decoder, model_kwargs.get(f"{self._prefix}attention_mask")
        cache = model_kwargs.get("past_key_values")
        rows = None if cache is None or cache.past is None else len(cache.past.positions)
        if rows is not None and rows != input_ids.shape[0]:
            raise ValueError(
                f"past_key_values has {rows} rows, and {input_ids.shape[0]} are generated: for num_beams or "
                f"num_return_sequences give each row as often, cache.batch_repeat_interleave("
                f"{max(1, input_ids.shape[0] // rows)})."
            )
        if whole and mask is None and cache is not None and cache.get_seq_length():
            _refuse_what_was_read(cache, input_ids.shape[1])
            model_kwargs["decoder_attention_mask"] = as_turned(torch.ones_like(input_ids), cache, input_ids)
        if cache is not None:
            cache.padded = None
        if generation_config.prefill_chunk_size is not None:
            whole = whole or model_kwargs.get("inputs_embeds") is not None
            if whole or (mask is not None and not mask[:, -1].all()):
                generation_config = copy.copy(generation_config)
                generation_config.prefill_chunk_size = None
        return super()._prefill(input_ids, generation_config, model_kwargs, *args, **more)

    def _sample(
        self, input_ids: Tensor, *, stopping_criteria: StoppingCriteriaList, generation_config: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """As in transformers, but a row that has ended reads no padding into a cache that is kept."""
        cache = kwargs.get("past_key_values")
        kept = generation_config.return_dict_in_generate or getattr(cache, "_is_user_defined", False)
        # Without an end token nothing is filled with padding, and a single row stops at its end.
        filled = len(input_ids) > 1 and any(hasattr(x, "eos_token_id") for x in stopping_criteria)
        if cache is not None and kept and filled:
            stopping_criteria = Watched(stopping_criteria, cache, generation_config._pad_token_tensor)
        return super()._sample(
            input_ids, stopping_criteria=stopping_criteria, generation_config=generation_config, **kwargs
        )

    def _validate_generation_mode(
        self, generation_mode: Any, generation_config: Any, *args: Any, **kwargs: Any
    ) -> None:
        config = self.config
        helper = (args[0] if args else kwargs.get("generation_mode_kwargs") or {}).get("assistant_model")
        if getattr(helper, "_is_stateful", False):
            raise ValueError(
                f"assistant_model must keep its keys, to take guesses back, and the {type(helper).__name__} "
                'given carries states of constant size: give one with attention="softmax", or another model.'
            )
        if generation_config.assistant_early_exit is not None:
            raise ValueError(
                "assistant_early_exit must be left out: all layers are computed, or none. Give a smaller "
                "model as assistant_model."
            )
        if generation_mode == GenerationMode.ASSISTED_GENERATION and self._is_stateful:
            what = "a convolution"
            if config.conv_size is None:
                what = f"attention {config.attention_names[config.growing_layers.index(False)]!r}"
            raise ValueError(
                "prompt_lookup_num_tokens and assistant models must be left out: they take guesses back, and "
                f"the state of {what}, of constant size, cannot forget tokens."
            )
        super()._validate_generation_mode(generation_mode, generation_config, *args, **kwargs)

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but no guess lies beyond the greatest length, of the model or of its assistant:
        a text that fits would be refused for it."""
        text, told = kwargs["input_ids"], kwargs["model_kwargs"]
        mask, embedded = told.get(f"{self._prefix}attention_mask"), told.get("inputs_embeds") is not None
        columns = getattr(kwargs["generation_config"], "_mask_length", 0) if mask is None else mask.shape[1]
        if columns > text.shape[1] > 0:
            raise ValueError(
                f"input_ids must be the whole text where tokens are guessed, but got {text.shape[1]} tokens "
                f"and an attention_mask of {columns}: give those that past_key_values has read, too."
            )
        if embedded and kwargs.get("assistant_model") is not None and not text.shape[1]:
            raise ValueError("input_ids is missing beside inputs_embeds: an assistant_model reads tokens.")
        made: Any = super()._get_candidate_generator(*args, **kwargs)
        guess, limit = made.get_candidates, self.config.max_position_embeddings

        def within(input_ids: Tensor, *more: Any, **others: Any) -> tuple[Tensor, Tensor | None]:
            if embedded and input_ids.shape == text.shape:  # guesses have no place in embeddings
                return input_ids, None
            try:
                ids, logits = guess(input_ids, *more, **others)
            except HorizonError:  # the assistant's: it guesses no more
                return input_ids, None
            if not self._bounded:
                return ids, logits
            length = max(limit, input_ids.shape[1])
            return ids[:, :length], None if logits is None else logits[:, : length - input_ids.shape[1]]

        made.get_candidates = within
        return made

    def _can_capture(self, generation_config: Any, generation_mode: Any) -> bool:
        """Whether steps are captured by default: on CUDA, where no state grows and a step depends on weights
        and states alone."""
        config, count = self.config, generation_config.max_new_tokens
        return (
            self.device.type == "cuda"
            and generation_mode in _PLAIN_MODES
            and not self.training
            and not torch.is_autocast_enabled("cuda")
            and not generation_config.disable_compile
            and generation_config.compile_config is None
            and not config.is_encoder_decoder
            and config.lacking("constant_state") is None
            and (count is None or count >= FEWEST_CAPTURED)
            and can_capture(self)
        )

    def _captures_compiled(self, settings: dict[str, Any] | None) -> bool:
        """Whether the graph of compiled steps is captured.py's and not torch.compile's."""
        return (
            CAPTURE_COMPILED
            and settings is not None
            and self.device.type == "cuda"
            and (settings.get("backend"), settings.get("mode")) == ("inductor", "reduce-overhead")
            and self.config.lacking("constant_state") is None
            and can_capture(self)
        )

    def _compile_steps(
        self, cache: CosformerCache, generation_config: Any, model_kwargs: dict[str, Any],
        captured: bool = False,
    ) -> None:  # fmt: skip
        """Gives a static cache the model's compiled or `captured` steps, on the devices where transformers
        compiles."""
        if not cache.is_compileable or not self._valid_auto_compile_criteria(model_kwargs, generation_config):
            return
        decoding = self._decoding
        if decoding is not None and decoding.thread is not threading.current_thread():
            if decoding.thread.is_alive():
                # A captured graph belongs to a thread, and its tensors to one text at a time.
                cache.decoding = None
                return
            decoding = None
        settings = None if captured else (generation_config.compile_config or CompileConfig()).to_dict()
        if settings is not None and generation_config.compile_config is None:
            settings["dynamic"] = False  # a graph for each batch size, with its sizes known
        wanted = (settings, captured or self._captures_compiled(settings))
        if decoding is None or (decoding.settings, decoding.captured) != wanted:
            decoding = self._decoding = Decoding(cast("CosformerForCausalLM", self), *wanted)
        decoding.begin()
        cache.decoding = decoding
        if self.config.lacking("constant_state") is not None:
            # Powers of two: a graph is compiled for each.
            longest = max(MIN_STATIC_TOKENS, generation_config.max_length or 0)
            cache.capacity = max(cache.capacity, 1 << (longest - 1).bit_length())

    def _prepare_attention_mask_for_generation(
        self, inputs_tensor: Tensor, generation_config: Any, model_kwargs: dict[str, Any]
    ) -> Tensor:
        """Where no mask is given, padding is told by its token; behind a cache, of the new columns alone."""
        mask: Tensor = super()._prepare_attention_mask_for_generation(
            inputs_tensor, generation_config, model_kwargs
        )
        cache = model_kwargs.get("past_key_values")
        if self.config.is_encoder_decoder or not isinstance(cache, CosformerCache):
            return mask  # that of a source is not of the cache
        return as_turned(mask, cache, inputs_tensor)

    def _prepare_position_ids_for_generation(self, *args: Any, **kwargs: Any) -> None:
        """None: positions follow from the mask and the cache. transformers would count from the last column,
        padding or not, and pass position_ids that the caller did not give."""

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "transformers' continuous batching keeps pages of keys and values, and the models of this family "
            "carry states: use cosformer.models.batching.generate_many, or `cosformer serve`."
        )

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, **kwargs: Any) -> Tensor | None:
        """The 2-D padding mask unchanged: no model of the family uses a 4-D mask."""
        return attention_mask

    @cached_property
    def _bounded(self) -> bool:
        """`config.bounded`, cached because every token needs it."""
        return self.config.bounded

    @property
    def _prefix(self) -> str:
        """The prefix of the arguments that hold what was generated so far."""
        return "decoder_" if self.config.is_encoder_decoder else ""

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """As in transformers, after a check that the next token is within the greatest length.

        (transformers looks for `inputs_embeds` in this signature before it allows them.)
        """
        step = self._graph_step(input_ids, inputs_embeds, kwargs)
        if step is not None:
            return step
        given = kwargs.get("past_key_values")
        if given is not None and given.guesses and kwargs.get("is_first_iteration"):
            # Assisted decoding would read the columns of the cache again.
            new = (input_ids if inputs_embeds is None else inputs_embeds).shape[1] - given.get_seq_length()
            kwargs["next_sequence_length"] = new if new > 0 else None
        prepared: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids, inputs_embeds=inputs_embeds, **kwargs
        )
        prefix = self._prefix
        new, mask = prepared.get(f"{prefix}input_ids"), prepared.get(f"{prefix}attention_mask")
        new = prepared["inputs_embeds"] if new is None else new
        cache = prepared.get("past_key_values")
        length = new.shape[1] + (0 if cache is None else cache.seen)
        if _is_generated(kwargs) and cache is not None and cache.decoding is not None:
            prepared.pop(f"{prefix}attention_mask", None)  # generated tokens are no padding
        if _is_generated(kwargs) and cache is not None and cache.padded is not None:
            mask = without_ended(cache)
            prepared |= {} if mask is None else {f"{prefix}attention_mask": mask}
        limit = self.config.max_position_embeddings
        if length <= limit or not self._bounded:
            return prepared
        if mask is not None:
            columns = new.shape[1] + (0 if cache is None else cache.get_seq_length())
            # Padding has no position; the mask may end with the prompt.
            length = int(mask.sum(1).max()) + max(0, columns - mask.shape[1])
        if length > limit:
            assert self.config.horizon is not None
            raise HorizonError(
                horizon=self.config.horizon,
                length=limit,
                position=length - 1,
                sequences=input_ids,
                past_key_values=cache,
            )
        return prepared

    def _graph_step(
        self, input_ids: Tensor, inputs_embeds: Tensor | None, kwargs: dict[str, Any]
    ) -> dict[str, Any] | None:
        """What `prepare_inputs_for_generation` returns for a generated token whose step is compiled or
        captured; None elsewhere. The GPU waits for this code after every token, so it is short."""
        cache: Any = kwargs.get("past_key_values")
        decoding = getattr(cache, "decoding", None)
        if decoding is None or not _is_generated(kwargs) or not kwargs.keys() <= _OF_A_STEP:
            return None
        if inputs_embeds is not None or kwargs.get("position_ids") is not None:
            return None
        if input_ids.device != decoding.device:
            return None
        if cache.padded is not None and without_ended(cache) is not None:
            return None
        if cache.seen >= self.config.max_position_embeddings and self._bounded:
            return None
        step = {name: value for name, value in kwargs.items() if name in _FORWARDED}
        step["input_ids"] = input_ids[:, -1:]
        return step

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """As in transformers, but the mask of the prompt does not grow while steps are compiled or captured:
        they have no mask, and a copy of a long one would cost more than a token."""
        decoding = getattr(model_kwargs.get("past_key_values"), "decoding", None)
        mask = None if decoding is None else model_kwargs.pop("attention_mask", None)
        model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        if mask is not None:
            model_kwargs["attention_mask"] = mask
        return model_kwargs

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """transformers' continuous batching, which is refused."""
        raise ValueError(
            "generate_batch pages keys and values, which these models do not have: pad the prompts on the "
            "left and call generate(), or use cosformer.models.batching.generate_many."
        )


def _is_generated(kwargs: dict[str, Any]) -> bool:
    """Whether `prepare_inputs_for_generation` was called for one token that was generated."""
    return kwargs.get("next_sequence_length") == 1 and not kwargs.get("is_first_iteration")


def _refuse_what_was_read(cache: CosformerCache, length: int | None) -> None:
    """Raises where a text of this length, if that is known, has nothing that a cache has not read."""
    if length is not None and length <= cache.get_seq_length():
        raise ValueError(
            f"the prompt has {length} tokens, but past_key_values has read {cache.get_seq_length()} "
            "already: give the whole text, with at least one token more, or restore() an earlier "
            "snapshot()."
        )
