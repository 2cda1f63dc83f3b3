"""`cosformer serve`: a saved model behind transformers' own HTTP server."""

from __future__ import annotations

import argparse
import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from cosformer.cli import devices
from cosformer.cli.errors import UsageError, readable_file
from cosformer.cli.generate import load
from cosformer.cli.parser import Parser, positive_int

if TYPE_CHECKING:
    import torch

HELP = "serve a saved model through an OpenAI-compatible HTTP server"
DESCRIPTION = """Serves a language model from a folder that save_pretrained or `cosformer demo` wrote, from
the folder of a run (its best weights), or from one of its checkpoints, through the server of transformers:
/v1/chat/completions and /v1/completions, with streaming. Requests share one batch (continuous batching).
There is no password and no encryption: it listens on this machine only, unless --host says otherwise. Needs
pip install ".[models,serve]" in a clone of cosformer."""
EXAMPLES = """examples:
  cosformer serve demo/cosformer
  cosformer serve demo/cosformer --port 8080 --batch_size 256 --device cuda --dtype bfloat16
  curl localhost:8000/v1/completions -H "Content-Type: application/json" \\
      -d '{"prompt": "def main(", "max_tokens": 50, "stream": true}'
"""
NEEDED = ("fastapi", "openai", "uvicorn")


def arguments(p: Parser) -> None:
    p.add_argument("folder", type=Path, help="a saved model and its tokenizer, a run or a checkpoint")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    p.add_argument("--port", type=port, default=8000, help="default: 8000; 0 takes any free port")
    p.add_argument("--name", help="name of the model for clients (default: name of the folder)")
    p.add_argument("--batch_size", type=positive_int, default=64, help="requests at a time (default: 64)")
    p.add_argument(
        "--chat_template",
        type=Path,
        metavar="FILE.jinja",
        help="how messages become a text (default: the tokenizer's; else the messages, a line each)",
    )
    devices.add(p)


def port(word: str) -> int:
    if not word.isascii() or not word.isdigit() or int(word[:6]) > 65_535:
        raise argparse.ArgumentTypeError(f"a number from 0 to 65,535 is expected, not {word!r}")
    return int(word)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that an error comes before the model is loaded."""
    found = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, UnicodeError) as error:
        if found is not None:
            found.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--host {host} --port {port} cannot be listened on: {reason.lower()}.") from None
    return found


def run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {args.folder}; give one that holds a saved model or a run.")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'the package {missing[0]} is missing: pip install ".[models,serve]" in a clone.')
    template = None
    if args.chat_template is not None:
        template = readable_file("--chat_template", args.chat_template).read_text("utf-8", errors="replace")
    device = devices.choose(args.device)
    with listen(args.host, args.port) as listening:
        return _serve(args, device, template, listening)


def _serve(
    args: argparse.Namespace, device: torch.device, template: str | None, listening: socket.socket
) -> int:
    import torch

    model, tokenizer = load(args.folder, device, getattr(torch, args.dtype))
    from cosformer.serving.server import application, serve

    if template is not None:
        tokenizer.chat_template = template
    name = args.name or args.folder.resolve().name
    app = application(name, model, tokenizer, batch_size=args.batch_size)
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except Exception as error:  # a template can raise anything
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"the chat template cannot be used: {said}; give another --chat_template.") from None
    listening.listen(2048)  # a client that reads the line below may connect at once
    host, bound = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"{name} is served on http://{shown}:{bound}/v1 (Ctrl-C ends it)", flush=True)
    serve(app, listening)
    return 0
