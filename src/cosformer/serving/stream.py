"""Text for a client, from the thread that generates to the event loop that sends."""

import asyncio
import json
import threading
from contextvars import ContextVar
from typing import Any

from transformers.cli.serving.utils import _GenerationCancelled, _StreamError

from cosformer.models.continuation import Continuation

# Events of the current request, set once its client has disconnected or has its answer; None outside of one.
GONE: ContextVar[list[threading.Event] | None] = ContextVar("gone", default=None)


def gone() -> threading.Event:
    """An event that is set when the client of the current request disconnects, or has its answer."""
    event, kept = threading.Event(), GONE.get()
    if kept is not None:
        kept.append(event)
    return event


class Stream:
    """Decodes tokens as they are generated. An incomplete character waits for the next token, or for the end.

    Its queue has parts of the text, then perhaps an error, then None, as the handlers of transformers' server
    expect; `put` and `end` are the methods that `generate()` calls of a streamer.
    """

    def __init__(self, tokenizer: Any, loop: asyncio.AbstractEventLoop):
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.text = Continuation(tokenizer)
        self.cancelled = gone()
        self._loop = loop
        self._seen_prompt = False
        self._error: Exception | None = None

    @property
    def total_tokens(self) -> int:
        return len(self.text.tokens)

    def cancel(self) -> None:
        self.cancelled.set()

    def put(self, tokens: Any) -> None:
        """Called by generate(): with the prompt first, then with one token at a time."""
        if self.cancelled.is_set():
            raise _GenerationCancelled()
        if self._seen_prompt:
            for token in tokens.tolist():
                self.say(token)
        self._seen_prompt = True

    def say(self, token: int) -> None:
        text = self.text.add([token])
        if text:
            self._send(text)

    def end(self, error: Exception | None = None) -> None:
        rest = self.text.rest()
        if rest:
            self._send(rest)
        if error is not None:
            self._error = error
            # The handlers write it between quotation marks without escaping.
            self._send(_StreamError(json.dumps(str(error))[1:-1]))
        self._send(None)

    def _send(self, item: Any) -> None:
        self._loop.call_soon_threadsafe(self.queue.put_nowait, item)

    async def whole(self) -> str:
        """All of the text, once it is complete."""
        parts = []
        while (item := await self.queue.get()) is not None:
            if self._error is not None:
                raise self._error
            parts.append(item)
        return "".join(parts)
