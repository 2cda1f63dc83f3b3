"""transformers' own server for one model that is loaded and checked already."""

import asyncio
import inspect
import socket
import threading
from typing import Any

import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse
from jinja2 import TemplateError
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.server import build_server

from cosformer.serving.manager import SEED, Generation, OneModel
from cosformer.serving.requests import check_chat, check_fields
from cosformer.serving.stream import GONE

# For models that were trained on plain text: the messages without roles, one per line.
PLAIN = "{{ messages | map(attribute='content') | join('\n') }}"
# The routes of transformers' server that are kept: none that loads another model, transcribes, or needs a
# script.
SERVED = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health")
LARGEST = 64 * 2**20  # bytes of a request


class _Chat(ChatCompletionHandler):
    def _validate_request(self, body: dict[str, Any]) -> None:
        check_chat(body)
        SEED.set(body.pop("seed", None))  # or all of PyTorch would be seeded, and so other requests
        super()._validate_request(body)


class _Completions(CompletionHandler):
    def _validate_request(self, body: dict[str, Any]) -> None:
        check_fields(body)
        SEED.set(body.pop("seed", None))
        super()._validate_request(body)

    def _build_generation_config(self, body: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        made = super()._build_generation_config(body, *args, **kwargs)
        if body.get("logit_bias"):  # which only chats have in transformers' server
            made.sequence_bias = {(int(token),): bias for token, bias in body["logit_bias"].items()}
        return made


def application(name: str, model: Any, tokenizer: Any, *, batch_size: int) -> "Connected":
    """The server of a CosformerForCausalLM, for uvicorn or another ASGI server.

    Args:
        name: of the model, in requests.
        model: on its device, in evaluation mode. Requests without settings sample from its probabilities
            unchanged, as with other servers of this API.
        tokenizer: without a chat template it gets `PLAIN`.
        batch_size: requests that share the steps of one batch; further ones wait.
    """
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN
    own = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    model.generation_config.update(**own)
    models, generation = OneModel(name, model, tokenizer), Generation(model, batch_size)
    handlers = {"chat_handler": _Chat, "completion_handler": _Completions}
    wanted = [p for p in inspect.signature(build_server).parameters if p.endswith("_handler")]
    made = {p: handlers[p](models, generation) if p in handlers else None for p in wanted}
    app = build_server(models, generation_state=generation, **made)
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") in SERVED]
    for kind in (ValueError, TemplateError):
        app.add_exception_handler(kind, _refused)
    return Connected(app)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """Errors of the model, the chat template or transformers are caused by the request."""
    return JSONResponse({"detail": str(error)}, status_code=400)


class Connected:
    """Wraps an ASGI application: cancels its work for a client that has disconnected, streaming or not, and
    refuses requests that are too large."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > LARGEST:
                refusal = JSONResponse({"detail": f"a request has at most {LARGEST:,} bytes."}, 413)
                await refusal(scope, receive, send)
                return
        given = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_again() -> Any:
            if given:
                return given.pop()
            return await asyncio.get_running_loop().create_future()  # the task below sees the disconnect

        events: list[threading.Event] = []
        GONE.set(events)
        work = asyncio.ensure_future(self.app(scope, receive_again, send))
        watch = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not work.done():
                work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            if not work.cancelled():
                raise
        finally:
            for event in events:
                event.set()


def serve(app: Connected, listening: socket.socket) -> None:
    """Serves on a socket until the process is told to stop; requests in progress have five seconds."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    uvicorn.Server(config).run(sockets=[listening])
