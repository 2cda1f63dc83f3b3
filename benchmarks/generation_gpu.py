"""Generation on a CUDA GPU, through `model.generate`, greedy: as it comes, with steps captured as a graph;
with compiled steps; in eager mode; and transformers' Llama of the same size with its static cache and
compiled steps.

    python -m benchmarks.generation_gpu --minutes 9 --out generation-gpu-cuda.json

`--acceptance` measures only what was promised, in rounds (generation_acceptance.py), in some two minutes.
Without it, what was promised is measured first, then contexts and batches around it, for as many minutes as
are given; the same command with the same file goes on where it stopped. Tokens are compared first, in
float32, with those of no cache. The caches of cosFormer are those of a short text that are told to stand
behind a long one: what a token costs does not depend on what is in them. Llama reads its context.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import generation_steps as steps
from benchmarks.generation import numbers
from benchmarks.record import check_out, header
from benchmarks.terminal import Parser, Progress
from cosformer.atomic import write_json
from cosformer.attention.base import with_positions
from cosformer.models import CosformerCache, CosformerForCausalLM
from cosformer.report.render import terminal
from cosformer.report.sections.generation_gpu import FORMAT, document
from cosformer.report.write import write_beside

CONTEXTS = (1024, 4096, 16_384, 65_536, 131_072, 524_288)
BATCHES = (1, 16, 64, 256, 1024)
TOKENS = (8, 200)  # generated; the difference of the two is timed
REPEATS = 4
MOST_TOKENS = 2**27  # batch times context: generate() keeps their ids
MOST_READ = 2**20  # of those that are read, and not only told
MOST_AT_ONCE = 2**18  # tokens of all rows that Llama reads in one piece: its mask is their square
CHUNK = 2048  # columns that Llama reads at a time, where it has many
WAYS = {
    "captured": "captured",
    "compiled": "compiled",
    "eager": "general",
}  # in the words of generation_steps

Case = tuple[str, int, int]  # contender, batch, context


def parser() -> Parser:
    p = Parser(
        prog="python -m benchmarks.generation_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    p.add_argument("--minutes", type=float, default=9.0, help="no case is begun that would not fit")
    p.add_argument("--acceptance", action="store_true", help="only what was promised, in rounds")
    p.add_argument("--contexts", default=",".join(map(str, CONTEXTS)), help="tokens, separated by commas")
    p.add_argument("--batches", default=",".join(map(str, BATCHES)), help="sizes, separated by commas")
    p.add_argument("--hidden", type=int, default=768, help="width of the models (default: 768)")
    p.add_argument("--layers", type=int, default=12, help="layers of the models (default: 12)")
    p.add_argument("--vocabulary", type=int, default=32_000, help="tokens of the models (default: 32,000)")
    p.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    p.add_argument("--backend", default="inductor", help="of torch.compile (default: inductor)")
    p.add_argument("--compile_s", type=float, default=75.0, help="guess of a first compilation's seconds")
    p.add_argument(
        "--out", type=Path, required=True, metavar="FILE.json", help="the record, also to go on with"
    )
    return p


def plan(contexts: list[int], batches: list[int]) -> list[Case]:
    """What was promised first; a batch size of one contender in a row, for it is compiled once."""
    first: list[Case] = [
        ("captured", 1, 1024), ("captured", 1, 131_072), ("captured", 1, 16_384), ("captured", 256, 1024),
        ("captured", 64, 16_384),
        ("compiled", 1, 1024), ("compiled", 1, 131_072), ("compiled", 1, 16_384), ("prefill", 1, 131_072),
        ("compiled", 256, 1024), ("compiled", 256, 131_072), ("eager", 1, 1024), ("eager", 256, 1024),
        ("llama", 1, 16_384), ("compiled", 64, 16_384), ("llama", 64, 16_384),
    ]  # fmt: skip
    wanted = [case for case in first if case[1] in batches and case[2] in contexts]
    rest = [("prefill", 1, context) for context in contexts]
    rest += [(way, batch, context) for way in ("captured", "compiled") for batch in batches
             for context in contexts]  # fmt: skip
    rest += [("eager", batch, context) for batch in batches for context in (contexts[0], contexts[-1])]
    rest += [("prefill", batch, contexts[0]) for batch in batches]
    rest += [("llama", batch, context) for batch in batches for context in contexts]
    for case in rest:
        read = case[0] in ("captured", "llama", "prefill")
        fits = case[1] * case[2] <= (MOST_READ if read else MOST_TOKENS)
        if fits and case not in wanted:
            wanted.append(case)
    return wanted


def clock(args: Any, call: Callable[[], object]) -> float:
    steps.synchronize(args)
    begun = time.perf_counter()
    call()
    steps.synchronize(args)
    return time.perf_counter() - begun


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def timed(args: Any, batch: int, generate: Callable[[int], object]) -> dict[str, Any]:
    """Seconds of the first call, compilation included, and of a token; graphs that were compiled for it."""
    before = graphs()
    found: dict[str, Any] = {"first_call_s": clock(args, lambda: generate(TOKENS[1]))}
    clock(args, lambda: generate(TOKENS[0]))  # what is captured, is captured now
    found["graphs"] = graphs() - before
    took = {n: min(clock(args, lambda n=n: generate(n)) for _ in range(REPEATS)) for n in TOKENS}  # type: ignore[misc]
    found["token_s"] = (took[TOKENS[1]] - took[TOKENS[0]]) / (TOKENS[1] - TOKENS[0])
    found["tokens_per_s"] = batch / found["token_s"]
    return found


def standing_behind(model: CosformerForCausalLM, batch: int, context: int, *, static: bool) -> CosformerCache:
    """A cache that takes itself for one behind `context` tokens."""
    cache = CosformerCache(model.config, static=static)
    ids = torch.full((batch, 16), 2, device=model.device)
    with torch.inference_mode():
        model(ids, past_key_values=cache, logits_to_keep=1)
    for entry in cache.layers:
        state = entry.state
        assert state is not None
        entry.fill(with_positions(state, torch.full_like(state.positions, context), context), None, context)
    return cache


def decode(
    args: Any, model: CosformerForCausalLM, contender: str, batch: int, context: int
) -> dict[str, Any]:
    ids = torch.randint(2, args.vocabulary, (batch, context + 1), device=args.device)
    with steps.way(WAYS[contender], args) as options:
        if contender == "captured":  # its cache is generate()'s own, and has read the context
            return timed(args, batch, lambda count: steps.generate(model, ids, count, **options))
        cache = standing_behind(model, batch, context, static="cache_implementation" in options)
        options.pop("cache_implementation", None)  # it is the cache that is static
        kept = cache.snapshot()

        def generate(count: int) -> None:
            cache.restore(kept)
            steps.generate(model, ids, count, past_key_values=cache, **options)

        return {"cache_bytes": cache.nbytes, **timed(args, batch, generate)}


def prefill(args: Any, model: Any, batch: int, context: int) -> dict[str, Any]:
    """Time to the first token."""
    ids = torch.randint(2, args.vocabulary, (batch, context), device=args.device)
    steps.generate(model, ids, 1)
    if args.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    found: dict[str, Any] = {
        "first_token_s": min(clock(args, lambda: steps.generate(model, ids, 1)) for _ in "12")
    }
    if args.device.startswith("cuda"):
        found["prefill_peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return found


def llama_config(args: Any, context: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=args.vocabulary, hidden_size=args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64, intermediate_size=4 * args.hidden * 2 // 3,
        max_position_embeddings=context + 1024, tie_word_embeddings=True, eos_token_id=None, pad_token_id=0,
        attn_implementation="sdpa",
    )  # fmt: skip


def llama(args: Any, batch: int, context: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config(args, context)).to(args.device, getattr(torch, args.dtype)).eval()
    ids = torch.randint(2, args.vocabulary, (batch, context), device=args.device)
    with steps.way("compiled", args) as options:
        options.pop("compile_config") if args.device.startswith("cuda") else None  # its own, there
        if batch * context > MOST_AT_ONCE:
            options["prefill_chunk_size"] = CHUNK
        found = timed(args, batch, lambda count: steps.generate(model, ids, count, **options))
        found["first_token_s"] = min(
            clock(args, lambda: steps.generate(model, ids, 1, **options)) for _ in "12"
        )
        return {"parameters": model.num_parameters(), **found}


def measured(args: Any, model: CosformerForCausalLM, case: Case) -> dict[str, Any]:
    """A row of the record; what does not fit into the memory of the device says so."""
    contender, batch, context = case
    row: dict[str, Any] = {"contender": contender, "batch": batch, "context": context}
    on_gpu = args.device.startswith("cuda")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    try:
        if contender == "llama":
            row |= llama(args, batch, context)
        elif contender == "prefill":
            row |= prefill(args, model, batch, context)
        else:
            row |= decode(args, model, contender, batch, context)
        if on_gpu:
            row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    except torch.OutOfMemoryError:
        row["skipped"] = "out of memory"
    except Exception as error:  # one case that fails must not lose the others
        row["skipped"] = (
            f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
        )
    if contender == "llama" or "skipped" in row:
        torch.compiler.reset()
        model._decoding = None
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    return row


def gate(args: Any) -> dict[str, int]:
    """Tokens that are not those of no cache, of two layers, plain and with windows and convolutions."""
    heads = args.hidden // 64
    windows = {"attention_parameters": {"windows": [4, 64][:heads] + [None] * (heads - 2)}, "conv_size": 4}
    found = {}
    for way in ("captured", "compiled"):
        for kind, changes in (("plain", {}), ("windows and convolution", windows)):
            torch.compiler.reset()
            found[f"{way}, {kind}"] = steps.differing(args, way, **{"num_hidden_layers": 2} | changes)
    torch.compiler.reset()
    return found


def measure(args: Any, contexts: list[int], batches: list[int], data: dict[str, Any]) -> dict[str, Any]:
    until, progress = time.perf_counter() + 60 * args.minutes, Progress(every=10.0)
    cases = plan(contexts, batches)
    done = {(row["contender"], row["batch"], row["context"]) for row in data["results"]}
    data["planned"] = len(cases)
    if data["differing_tokens"] is None:
        data["differing_tokens"] = gate(args)
        save(args, data)
    model = steps.build(args, getattr(torch, args.dtype), max(contexts) + 1024)
    data["settings"]["parameters"] = model.num_parameters()
    progress.start(len(cases))
    ready: tuple[str, int] | None = None  # what is compiled
    for case in cases:
        contender, batch, _ = case
        progress.step(f"{contender}, batch {batch:,}, context {case[2]:,}")
        compiles = contender in ("compiled", "llama") and (contender == "llama" or ready != case[:2])
        guess = args.compile_s if compiles else args.compile_s / 4
        if contender == "llama" and batch * case[2] > MOST_AT_ONCE:
            guess *= 2  # its reading in pieces is compiled too
        if case in done or time.perf_counter() + guess > until:
            continue
        if contender == "compiled":
            ready = case[:2]
        data["results"].append(measured(args, model, case))
        if contender == "llama":
            ready = None
        print(json.dumps(data["results"][-1]), file=sys.stderr, flush=True)
        save(args, data)
    progress.end()
    return data


def save(args: Any, data: dict[str, Any]) -> None:
    write_json(args.out, data)


def new_record(args: Any) -> dict[str, Any]:
    names = ("device", "hidden", "layers", "vocabulary", "dtype", "backend")
    command = f"python -m benchmarks.generation_gpu{' --acceptance' * args.acceptance} --out FILE.json"
    return header(FORMAT, torch.device(args.device)) | {
        "command": command,
        "settings": {name: getattr(args, name) for name in names},
        "differing_tokens": None,
        "results": [],
    }


def main(words: list[str] | None = None) -> None:
    p = parser()
    args = p.parse_args(words)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        p.error("--device cuda needs a CUDA GPU, and there is none here: give --device cpu and small sizes")
    check_out(p, args.out)
    contexts, batches = numbers(p, "contexts", args.contexts), numbers(p, "batches", args.batches)
    data = new_record(args)
    if args.out.exists():
        old = json.loads(args.out.read_text())
        settings = {k: v for k, v in old.get("settings", {}).items() if k != "parameters"}
        if old.get("format") != FORMAT or settings != data["settings"]:
            p.error(f"--out {args.out} holds another record: give another file")
        data = old
    if args.acceptance:
        from benchmarks import generation_acceptance

        if data["results"]:
            p.error(f"--out {args.out} holds a record, and --acceptance begins one: give another file")
        generation_acceptance.measure(args, data, time.perf_counter() + 60 * args.minutes)
    else:
        data = measure(args, contexts, batches, data)
    made = document(data)
    print(terminal(made) + "\n", args.out, sep="\n", flush=True)
    print(*write_beside(made, args.out), sep="\n")


if __name__ == "__main__":
    main()
