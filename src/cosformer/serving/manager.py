"""The model and its generation as classes of transformers' server.

Requests that greedy search or plain sampling can serve share one batch; every other goes to `generate()`, one
at a time, as in transformers' own server.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from fastapi import HTTPException
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerateManager, GenerationState, _GenerationCancelled

from cosformer.models.batching import Choice
from cosformer.serving.shared import Request, SharedBatch
from cosformer.serving.stream import Stream, gone

# Settings that each row of the shared batch has.
_OF_A_ROW = frozenset({
    "max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "eos_token_id",
    "pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version", "_from_model_config",
})  # fmt: skip
# The seed of the current request; transformers' server would seed all of PyTorch with it, for every request.
SEED: ContextVar[int | None] = ContextVar("seed", default=None)
_USUAL = GenerationConfig._get_default_generation_params()


class OneModel(ModelManager):
    """The model that is served, already loaded and checked: no request makes the server load another."""

    def __init__(self, name: str, model: Any, tokenizer: Any):
        self._model, self._tokenizer, self._since = model, tokenizer, int(time.time())
        super().__init__(force_model=name)

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        return self._model

    def _load_processor(self, *args: Any, **kwargs: Any) -> Any:
        return self._tokenizer

    def process_model_name(self, model_id: str) -> str:
        return model_id  # without a revision

    def get_gen_models(self) -> list[dict[str, Any]]:
        return [{"id": self.force_model, "object": "model", "created": self._since, "owned_by": "cosformer"}]


class Generation(GenerationState):
    """Returns the manager of the model."""

    def __init__(self, model: Any, batch_size: int):
        super().__init__()
        self._manager = BatchManager(model, batch_size)

    def get_manager(self, model_id: str, use_cb: bool = False) -> "BatchManager":
        return self._manager


class BatchManager(GenerateManager):
    """Lets requests share a batch, where the states of the model have a constant size."""

    def __init__(self, model: Any, batch_size: int):
        super().__init__()
        able = model.config.lacking("recurrent") is None and model.config.lacking("constant_state") is None
        self._shared = SharedBatch(model, batch_size) if able else None

    def generate_streaming(
        self,
        model: Any,
        processor: Any,
        inputs: Any,
        gen_config: GenerationConfig,
        request_id: str,
        response_parser: Any = None,
    ) -> tuple[asyncio.Queue[Any], Any]:
        """The queue of events for the client, and the object that counts tokens and can be cancelled."""
        ids = fitted(model, processor, inputs, gen_config)
        if response_parser is not None:  # a tokenizer with a format for tool calls and reasoning
            return super().generate_streaming(
                model, processor, inputs, gen_config, request_id, response_parser=response_parser
            )
        stream = Stream(processor, asyncio.get_running_loop())
        if self._shares(gen_config):
            self._submit(model, ids, gen_config, stream)
        else:
            self.submit(self._alone, model, processor, inputs, gen_config, stream)
        return stream.queue, stream

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: GenerationConfig, request_id: str
    ) -> tuple[str, int, Any]:
        """(text, tokens of the prompt, new tokens)"""
        ids = fitted(model, processor, inputs, gen_config)
        if self._shares(gen_config):
            stream = Stream(processor, asyncio.get_running_loop())
            self._submit(model, ids, gen_config, stream)
            return await stream.whole(), ids.shape[1], stream.text.tokens
        given = {**inputs, "stopping_criteria": StoppingCriteriaList([_Gone(gone())])}
        made = asyncio.ensure_future(
            super().generate_non_streaming(model, processor, given, gen_config, request_id)
        )
        # A cancelled task still ends with a result or an exception, which has to be retrieved.
        made.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(made)

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Jobs of the thread that generates, one at a time; each draws from the seed of its request."""
        return super().submit(_seeded(fn, SEED.get()), *args, **kwargs)

    def async_submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return super().async_submit(_seeded(fn, SEED.get()), *args, **kwargs)

    def _shares(self, gen_config: GenerationConfig) -> bool:
        """Whether a row of the batch can do what is asked for: greedy search, or plain sampling."""
        asked = gen_config.to_dict().items()
        return self._shared is not None and all(
            value is None or name in _OF_A_ROW or value == _USUAL.get(name) for name, value in asked
        )

    def _submit(self, model: Any, ids: Any, gen_config: GenerationConfig, stream: Stream) -> None:
        assert self._shared is not None

        def setting(name: str) -> Any:
            found = getattr(gen_config, name)
            return getattr(model.generation_config, name) if found is None else found

        ends = setting("eos_token_id")
        generator, seed = torch.Generator(), SEED.get()
        generator.seed() if seed is None else generator.manual_seed(seed)
        choice = Choice(greedy=True)
        if setting("do_sample"):
            choice = Choice(
                temperature=setting("temperature") or 1.0,
                top_k=setting("top_k") or None,
                top_p=setting("top_p"),
            )
        choice.tokens(torch.zeros(1, 2), [torch.Generator()])  # raises here, and not in the shared batch
        row = Request(
            ids[0],
            gen_config.max_new_tokens,
            choice,
            generator,
            frozenset(ends if isinstance(ends, list) else [ends]),
            say=stream.say,
            end=stream.end,
            cancelled=stream.cancelled,
        )
        self._shared.submit(row)

    def _alone(
        self, model: Any, processor: Any, inputs: Any, gen_config: GenerationConfig, stream: Stream
    ) -> None:
        try:
            model.generate(**inputs, generation_config=gen_config, tokenizer=processor, streamer=stream)
        except _GenerationCancelled:
            stream.end()
        except Exception as error:
            stream.end(error)


def _seeded(fn: Callable[..., Any], seed: int | None) -> Callable[..., Any]:
    """The same function, with PyTorch's numbers seeded by a request, or by nothing that another one has
    asked for."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.seed() if seed is None else torch.manual_seed(seed)
            return fn(*args, **kwargs)

    return run


class _Gone(StoppingCriteria):
    """Ends a generation whose client has disconnected."""

    def __init__(self, event: threading.Event):
        self.event = event

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)


def fitted(model: Any, tokenizer: Any, inputs: Any, gen_config: GenerationConfig) -> Any:
    """The prompt [1, T], if the model can read it. Limits the number of new tokens to what fits
    after it: transformers' server asks for 1,024 by default."""
    config, ids = model.config, inputs["input_ids"]
    if ids.shape[1] == 0:
        begin = tokenizer.bos_token_id
        if begin is None or begin >= config.vocab_size:
            raise HTTPException(400, "there is nothing to continue: the prompt is empty.")
        ids = inputs["input_ids"] = torch.full((1, 1), begin, device=ids.device)
        inputs["attention_mask"] = torch.ones_like(ids)
    if int(ids.max()) >= config.vocab_size:
        raise HTTPException(
            400, f"the prompt has token {int(ids.max())}, but the model knows {config.vocab_size:,}."
        )
    length, most = ids.shape[1], gen_config.max_new_tokens
    if most is None:
        most = (gen_config.max_length or _USUAL["max_length"]) - length
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise HTTPException(400, f"max_tokens must be a positive whole number, but got {most!r:.60}.")
    if config.bounded:
        longest = config.max_position_embeddings
        if length >= longest:
            raise HTTPException(
                400,
                f"the prompt has {length:,} tokens, but the model takes {longest:,}, prompt and answer "
                "together (max_position_embeddings): shorten the prompt.",
            )
        most = min(most, longest - length)
    gen_config.max_new_tokens, gen_config.max_length = most, None
    return ids
