"""The cases of benchmarks/generation_gpu.py that were promised, in some two minutes, on a host that is not
quiet: cases that are compared take turns, and the median of the rounds counts.

A logits processor notes when each token is chosen. The loop of generate() waits for the device once a
token, so the distance of two notes is the time of a token; reading the context is not in it. The caches of
Llama and of compiled steps are told to stand behind a context: what a token costs does not depend on what is
in them.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from transformers import LlamaForCausalLM, LogitsProcessor, LogitsProcessorList, StaticCache

from benchmarks import generation_gpu as whole
from benchmarks import generation_steps as steps
from cosformer.models import CosformerForCausalLM, generation

TOKENS = 136  # generated in a round
TOKENS_OF_MANY = 40  # by Llama with many rows
FIRST = 8  # tokens that are not timed: reading the context and capturing are in them
ROUNDS = 7
SHORT, BESIDE, LONG = 1024, 16_384, 131_072  # contexts
GROUPS: tuple[tuple[whole.Case, ...], ...] = (
    (
        *(("captured", 1, n) for n in (SHORT, LONG, BESIDE)),
        *(("replayed", 1, n) for n in (SHORT, LONG, BESIDE)),
        ("llama", 1, BESIDE),
    ),
    (("prefill", 1, LONG),),
    (("captured", 64, BESIDE), ("llama", 64, BESIDE)),
    (("captured", 256, SHORT), ("replayed", 256, SHORT), ("replayed", 256, LONG)),
    tuple(("compiled", 1, n) for n in (SHORT, LONG, BESIDE)),
    (("compiled", 256, SHORT), ("compiled", 256, LONG)),
)  # the most important first; the cases of a group take turns


class Notes(LogitsProcessor):  # type: ignore[misc]
    """When each token was chosen."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.at.append(time.perf_counter())
        return scores

    @property
    def token_s(self) -> float:
        return (self.at[-1] - self.at[FIRST]) / (len(self.at) - 1 - FIRST)

    @property
    def middle_s(self) -> float:
        """The median of single tokens."""
        return median(b - a for a, b in zip(self.at[FIRST:], self.at[FIRST + 1 :], strict=False))


@dataclass
class Running:
    """A case that is warm: `generate(count, **options)`, its row of the record, and how much it generates."""

    generate: Callable[..., object]
    row: dict[str, Any]
    tokens: int = TOKENS
    rounds: list[Notes] = field(default_factory=list)

    def go(self, args: Any) -> None:
        notes = Notes()
        self.generate(self.tokens, logits_processor=LogitsProcessorList([notes]))
        steps.synchronize(args)
        self.rounds.append(notes)
        each = [notes.token_s for notes in self.rounds]
        self.row["token_s"] = median(each)
        self.row["tokens_per_s"] = self.row["batch"] / self.row["token_s"]
        self.row["rounds_s"] = each
        self.row["median_token_s"] = median(notes.middle_s for notes in self.rounds)


@contextmanager
def steps_of(model: CosformerForCausalLM, way: str, batch: int, known: dict[Any, Any]) -> Iterator[None]:
    """The model's compiled steps are those of this way and batch size: each keeps its own, so that cases can
    take turns without being compiled again."""
    before = generation.CAPTURE_COMPILED
    generation.CAPTURE_COMPILED = way == "replayed"
    model._decoding = known.get((way, batch))
    try:
        yield
    finally:
        known[way, batch] = model._decoding
        generation.CAPTURE_COMPILED = before


def ours(args: Any, model: Any, case: whole.Case, known: dict[Any, Any]) -> Callable[..., None]:
    """A cache that is told to stand behind the context is given the last token and a mask of all of them:
    generate() copies the ids that it was given at every token."""
    way, batch, context = case
    with steps.way("captured" if way == "captured" else "compiled", args) as options:
        static = options.pop("cache_implementation", None) is not None
    if args.device.startswith("cuda"):
        options.pop("compile_config", None)  # what generate() takes by itself
    cache = whole.standing_behind(model, batch, context, static=True) if static else None
    kept: Any = None if cache is None else cache.snapshot()
    ids = torch.randint(2, args.vocabulary, (batch, 1 if static else context + 1), device=args.device)
    mask = torch.ones((batch, context + 1), dtype=torch.long, device=args.device) if static else None

    def generate(count: int, **more: Any) -> None:
        with steps_of(model, way, batch, known):
            if cache is not None:
                cache.restore(kept)
                more |= {"past_key_values": cache, "attention_mask": mask}
            steps.generate(model, ids, count, **options, **more)

    return generate


def llama(args: Any, batch: int, context: int) -> Callable[..., None]:
    """With a static cache, made once, that is told to stand behind the context."""
    config = whole.llama_config(args, context)
    model = LlamaForCausalLM(config).to(args.device, getattr(torch, args.dtype)).eval()
    cache = StaticCache(config, max_cache_len=context + 1 + TOKENS)
    heads, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    cache.early_initialization(batch, heads, dim, model.dtype, model.device)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    ids = torch.randint(2, args.vocabulary, (batch, context + 1), device=args.device)
    with steps.way("compiled", args) as options:
        options.pop("cache_implementation")
    if args.device.startswith("cuda"):
        options.pop("compile_config")  # its own, there

    def generate(count: int, **more: Any) -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)
        steps.generate(model, ids, count, past_key_values=cache, **options, **more)

    return generate


def warm(args: Any, model: Any, case: whole.Case, known: dict[Any, Any]) -> Running:
    contender, batch, context = case
    is_llama = contender == "llama"
    generate = llama(args, batch, context) if is_llama else ours(args, model, case, known)
    before = whole.graphs()
    row: dict[str, Any] = {"contender": contender, "batch": batch, "context": context}
    row["first_call_s"] = whole.clock(args, lambda: generate(FIRST + 2))
    row["graphs"] = whole.graphs() - before
    return Running(generate, row, TOKENS_OF_MANY if is_llama and batch > 1 else TOKENS)


def gate(args: Any, way: str) -> int:
    """Tokens that are not those of no cache: windows, heads without one and a convolution together."""
    heads = args.hidden // 64
    windows = {"attention_parameters": {"windows": [4, 64][:heads] + [None] * (heads - 2)}, "conv_size": 4}
    before = generation.CAPTURE_COMPILED
    generation.CAPTURE_COMPILED = way == "replayed"
    torch.compiler.reset()
    try:
        name = "captured" if way == "captured" else "compiled"
        return steps.differing(args, name, num_hidden_layers=2, **windows)
    finally:
        generation.CAPTURE_COMPILED = before
        torch.compiler.reset()


def allowed(args: Any, data: dict[str, Any]) -> list[str]:
    """The ways whose tokens are right; torch.compile's own graphs take the place of captured.py's if need
    be."""
    right: list[str] = []
    data["differing_tokens"] = {}
    for way in ("captured", "replayed", "compiled"):
        if way == "compiled" and "replayed" in right:
            right.append(way)  # the same steps
            break
        try:
            wrong = data["differing_tokens"][f"{way}, windows and convolution"] = gate(args, way)
            right += [way] if wrong == 0 else []
        except Exception as error:
            data.setdefault("failed", {})[way] = f"{type(error).__name__}: {error}"[:300]
            print(f"{way} failed: {error}", file=sys.stderr, flush=True)
        whole.save(args, data)
    return right


def groups(right: list[str]) -> list[list[whole.Case]]:
    """Cases of the ways that are right."""
    wanted: list[list[whole.Case]] = []
    seen: set[whole.Case] = set()
    for group in GROUPS:
        wanted.append([])
        for asked, batch, context in group:
            way = "compiled" if asked == "replayed" and asked not in right else asked
            case = (way, batch, context)
            if (way in right or way in ("llama", "prefill")) and case not in seen:
                wanted[-1].append(case)
                seen.add(case)
    return [group for group in wanted if group]


def begun(args: Any, model: Any, case: whole.Case, known: dict[Any, Any]) -> tuple[dict[str, Any], Any]:
    """The row of a case after its first round, so that a group that is cut off has its figures; and the case,
    None if it has no rounds."""
    try:
        if case[0] == "prefill":
            return whole.measured(args, model, case), None
        running = warm(args, model, case, known)
        running.go(args)
        return running.row, running
    except torch.OutOfMemoryError:
        skipped = "out of memory"
    except Exception as error:  # one case that fails must not lose the others
        skipped = f"failed: {type(error).__name__}: {error}"[:200]
    return dict(zip(("contender", "batch", "context"), case, strict=True)) | {"skipped": skipped}, None


def measure(args: Any, data: dict[str, Any], until: float) -> None:
    """Adds to the record, and saves it after every case of every round."""
    data["timing"] = "rounds"
    plan = groups(allowed(args, data))
    data["planned"] = sum(map(len, plan))
    model = steps.build(args, getattr(torch, args.dtype), LONG + 1024)
    data["settings"]["parameters"] = model.num_parameters()
    known: dict[Any, Any] = {}
    for group in plan:
        running: list[Running] = []
        for case in group:
            ready = case[0] in ("captured", "prefill") or case[:2] in known
            now = time.perf_counter()
            if now + args.compile_s / (4 if ready else 1) > until:
                continue
            row, one = begun(args, model, case, known)
            running += [] if one is None else [one]
            data["results"].append(row)
            whole.save(args, data)
            print(f"{time.perf_counter() - now:5.1f} s {json.dumps(row)}", file=sys.stderr, flush=True)
        for _ in range(1, ROUNDS):
            for each in running:
                if time.perf_counter() < until:
                    each.go(args)
                    whole.save(args, data)
        running.clear()
        gc.collect()
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()
