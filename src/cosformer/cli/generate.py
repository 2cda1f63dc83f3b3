"""`cosformer generate`: text from a saved model, token by token."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer.cli import devices, generate_file, runs
from cosformer.cli.errors import Stopped, UsageError, needs_models, out_of_memory, readable_file
from cosformer.cli.parser import Parser, number, positive_int, seed
from cosformer.reading import json_object
from cosformer.terminal import Progress

if TYPE_CHECKING:
    import torch

    from cosformer.models.continuation import Continuation

HELP = "generate text from a saved model (streamed)"
DESCRIPTION = """Continues a text with a language model from a folder that save_pretrained or `cosformer
demo` wrote, from the folder of a run (its best weights), or from one of its checkpoints. If every head has
a window, the context may have any length; otherwise the model's horizon limits it. The context is read in
chunks, with a display of the time left, and kept as a state of constant size. With --prompts it generates
one text for every line of a file, with continuous batching. If it was stopped, the same command continues."""
EXAMPLES = """examples:
  cosformer generate demo/cosformer --prompt "def main("
  cosformer generate demo/cosformer --context README.md --tokens 500 --temperature 0.7
  cosformer generate demo/cosformer --prompt "import " --greedy
  cosformer generate demo/cosformer --prompts prompts.jsonl --out texts.jsonl --tokens 100
"""

_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
LONGEST = 1 << 30  # bytes of a context
TEMPERATURE, COLDEST = 0.8, 1e-3
CHUNK = 2048  # tokens of a chunk of the context


def arguments(p: Parser) -> None:
    p.add_argument("folder", type=Path, help="a saved model and its tokenizer, a run or a checkpoint")
    p.add_argument("--prompt", default="", help="the text to continue")
    p.add_argument(
        "--context", type=Path, metavar="FILE", help="a file with the text that precedes the prompt"
    )
    p.add_argument("--tokens", type=positive_int, default=200, help="number of new tokens (default: 200)")
    p.add_argument("--temperature", type=number(COLDEST, 100), help=f"default: {TEMPERATURE}")
    p.add_argument("--top_k", type=positive_int, help="sample from the K most likely tokens (default: all)")
    p.add_argument(
        "--top_p",
        type=number(0, 1),
        help="sample from the most likely tokens up to this probability (default: all)",
    )
    p.add_argument("--greedy", action="store_true", help="always take the most likely token")
    p.add_argument("--seed", type=seed, help="default: 0")
    p.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help='many prompts: each line is {"prompt": "..."}, with an optional "id"',
    )
    p.add_argument("--out", type=Path, metavar="FILE.jsonl", help="output file for --prompts")
    p.add_argument(
        "--batch_size",
        type=positive_int,
        help=f"batch size for --prompts (default: {generate_file.BATCH})",
    )
    runs.add_recipe(p)
    devices.add(p)


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """The causal language model of a folder and its tokenizer, ready to generate."""
    with needs_models():
        import transformers

        from cosformer.models import CosformerConfig, CosformerForCausalLM, guard, loading
        from cosformer.training import best
    if (folder / "run.json").is_file():
        try:
            folder = best(folder)
        except (OSError, ValueError) as error:
            raise UsageError(_first(error)) from None
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json, so it is no saved model.")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        kind = json_object(guard.checked(folder) / guard.CONFIG)
        if kind.get("model_type") != CosformerConfig.model_type:
            found = kind.get("model_type", "none")
            raise UsageError(f"{folder} holds a model of type {found!r}, and none of cosformer.models.")
        heads = kind.get("architectures") or []
        if heads != [CosformerForCausalLM.__name__]:
            named = isinstance(heads, list) and all(isinstance(head, str) for head in heads)
            made = ", ".join(heads) or "a model without a head" if named else f"architectures {heads!r}"
            raise UsageError(f"{folder} holds {made}; a CosformerForCausalLM is expected to continue a text.")
        model = loading.load_model(CosformerForCausalLM, folder, dtype=dtype)
    except UsageError:
        raise
    except Exception as error:  # libraries raise many classes for malformed files
        if out_of_memory(error):
            raise
        raise UsageError(f"{folder} cannot be loaded: {_first(error)}{runs.recipe_hint(error)}") from None
    # Only the command line decides how tokens are chosen: a saved file could ask for a million beams.
    ends = {name: getattr(model.generation_config, name) for name in _ENDS}
    for name, given in ends.items():
        for token in given if isinstance(given, list) else [given]:
            if token is not None and (not isinstance(token, int) or not 0 <= token < 2**31):
                raise UsageError(f"{folder} cannot be loaded: {name} is {given!r:.60}, and no token.")
    model.generation_config = transformers.GenerationConfig(**ends)
    return model.to(device).eval(), _tokenizer(folder, model.config)


def _tokenizer(folder: Path, config: Any) -> Any:
    """The tokenizer saved beside the model; a model over bytes needs none."""
    from cosformer.models import byte_tokenizer, loading

    if not any(folder.glob("*token*")) and config.vocab_size == 256:
        return byte_tokenizer()
    try:
        return loading.load_tokenizer(folder)
    except FileNotFoundError:
        raise UsageError(f"{folder} has a model but no tokenizer.json: save a tokenizer beside it.") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _first(error: Exception) -> str:
    """The first sentence of an error message."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return said if said.endswith((".", "?")) else said + "."


def encode(tokenizer: Any, config: Any, text: str, tokens: int) -> torch.Tensor:
    """Token ids [1, T] of a text, if it and the tokens to generate fit into the model."""
    longest, vocabulary = config.max_position_embeddings, config.vocab_size
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    if ids.shape[1] == 0:
        if tokenizer.bos_token_id is None or tokenizer.bos_token_id >= vocabulary:
            raise UsageError("there is nothing to continue: give --prompt or --context.")
        import torch

        ids = torch.tensor([[tokenizer.bos_token_id]])
    if config.bounded and ids.shape[1] + tokens > longest:
        raise UsageError(
            f"the text has {ids.shape[1]:,} tokens and {tokens:,} are to come, but the model takes "
            f"{longest:,} (max_position_embeddings): shorten the context, or ask for fewer --tokens."
        )
    return ids


def read(model: Any, ids: torch.Tensor, progress: Progress | None = None) -> Any:
    """A cache of ids [1, T], read in chunks so that memory does not grow with the length."""
    import torch

    from cosformer.models import CosformerCache

    cache = CosformerCache(model.config)
    chunks = ids.split(CHUNK, 1)
    if progress is not None:
        progress.start(len(chunks))
    with torch.inference_mode():
        for at, chunk in enumerate(chunks):
            if progress is not None:
                progress.step(f"reading: {at * CHUNK:,} of {ids.shape[1]:,} tokens")
            model(chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)
    if progress is not None:
        progress.end()
    return cache


class TokenStreamer:
    """A streamer for `generate`: passes text to `write` once its characters are complete."""

    def __init__(self, tokenizer: Any, write: Callable[[str], object]):
        self.tokenizer, self.write = tokenizer, write
        self.text: Continuation | None = None  # the first call passes the prompt

    @property
    def tokens(self) -> int:
        return 0 if self.text is None else len(self.text.tokens)

    def put(self, ids: torch.Tensor) -> None:
        from cosformer.models.continuation import Continuation

        if self.text is None:
            self.text = Continuation(self.tokenizer, ids.flatten().tolist())
        else:
            self.write(self.text.add(ids.flatten().tolist()))

    def end(self) -> None:
        if self.text is not None:
            self.write(self.text.rest())


def stream_generate(
    model: Any,
    ids: torch.Tensor,
    tokens: int,
    streamer: TokenStreamer,
    progress: Progress | None = None,
    **how: Any,
) -> None:
    """Generates `tokens` tokens after ids [1, T], each passed to the streamer; `how` goes to `generate`."""
    import torch

    ids = ids.to(model.device)
    cache = None
    if model.config.traits.recurrent and ids.shape[1] > 1:
        cache = read(model, ids[:, :-1], progress)  # generate() reads the one token that the cache lacks
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            past_key_values=cache,
            streamer=streamer,
            **how,
        )


def _file(args: argparse.Namespace, model: Any, tokenizer: Any) -> int:
    from cosformer.models.batching import Choice

    unable = model.config.lacking("recurrent")
    if unable is not None:
        raise UsageError(f"--prompts needs an attention that carries a state, and {unable!r} does not.")
    choice = Choice(greedy=True)
    if not args.greedy:
        temperature = args.temperature or TEMPERATURE
        choice = Choice(False, temperature, args.top_k, args.top_p, args.seed or 0)
    return generate_file.run(args, model, tokenizer, choice)


def run(args: argparse.Namespace) -> int:
    try:
        args.prompt.encode()
    except UnicodeEncodeError:  # the shell passed bytes that are not UTF-8
        raise UsageError("--prompt is not text in UTF-8.") from None
    if not args.folder.is_dir():
        raise UsageError(
            f"there is no folder {args.folder}; give one that `cosformer train` or `cosformer demo` wrote."
        )
    drawn = [x for x in ("temperature", "top_k", "top_p", "seed") if getattr(args, x) is not None]
    if args.greedy and drawn:
        raise UsageError(f"--greedy goes with no --{drawn[0]}: it takes the likeliest token and draws none.")
    import torch

    device = devices.choose(args.device)
    generate_file.check(args)
    context = ""
    if args.context is not None:
        path = readable_file("--context", args.context)
        if path.stat().st_size > LONGEST:
            raise UsageError(
                f"--context {path} has {path.stat().st_size:,} bytes; at most {LONGEST:,} are read."
            )
        try:
            context = path.read_bytes().decode("utf-8")  # line ends as they are
        except UnicodeDecodeError as error:
            raise UsageError(f"--context {path} is not text in UTF-8 (byte {error.start:,}).") from None
    runs.load_recipe(args.recipe)
    model, tokenizer = load(args.folder, device, getattr(torch, args.dtype))
    if args.prompts is not None:
        return _file(args, model, tokenizer)
    ids = encode(tokenizer, model.config, context + args.prompt, args.tokens)
    torch.manual_seed(args.seed or 0)
    how: dict[str, Any] = {"do_sample": False}
    if not args.greedy:
        how = {
            "do_sample": True,
            "temperature": args.temperature or TEMPERATURE,
            "top_k": args.top_k or 0,
            "top_p": args.top_p or 1.0,
        }
    streamer = TokenStreamer(tokenizer, lambda text: print(text, end="", flush=True))
    print(args.prompt, end="", flush=True)
    try:
        stream_generate(model, ids, args.tokens, streamer, Progress(every=5.0), **how)
    except KeyboardInterrupt:
        raise Stopped(f"stopped after {streamer.tokens} tokens; only the text above is kept.") from None
    finally:
        print()
    return 0
