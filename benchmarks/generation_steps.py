"""Time a token through `model.generate`, by each way that a step can take: the general one, the short one,
captured as it is, and compiled (with the decoding kernel, and with plain operations). Tokens are compared
first, in float32, with those of no cache. Prints one JSON object."""

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.generation.configuration_utils import CompileConfig

from benchmarks import machine
from benchmarks.generation import numbers
from benchmarks.terminal import Parser
from cosformer.models import CosformerConfig, CosformerForCausalLM, step
from cosformer.ops import one_token

TOKENS = (8, 72)  # generated; the difference of the two is timed
CHECKED = 200  # tokens that are compared
WAYS = ("general", "short", "captured", "compiled", "compiled, plain operations")


def parser() -> Parser:
    p = Parser(prog="python -m benchmarks.generation_steps", description=__doc__)
    p.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    p.add_argument("--batches", default="1,256", help="batch sizes, separated by commas (default: 1,256)")
    p.add_argument("--contexts", default="1024,131072", help="tokens, separated by commas")
    p.add_argument("--most_tokens", type=int, default=2**20, help="leave out batch times context above this")
    p.add_argument("--hidden", type=int, default=768, help="width of the model (default: 768)")
    p.add_argument("--layers", type=int, default=12, help="layers of the model (default: 12)")
    p.add_argument("--vocabulary", type=int, default=32_000, help="tokens of the model (default: 32,000)")
    p.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    p.add_argument("--backend", default="inductor", help="of torch.compile (default: inductor)")
    return p


def build(args: Any, dtype: torch.dtype, longest: int, **changes: Any) -> CosformerForCausalLM:
    """A model with random weights, in evaluation mode."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": args.vocabulary, "hidden_size": args.hidden, "num_hidden_layers": args.layers,
        "num_attention_heads": args.hidden // 64, "max_position_embeddings": longest, "position": "rotary",
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
    }  # fmt: skip
    model = CosformerForCausalLM(CosformerConfig.paper(**sizes | changes))
    return model.to(args.device, dtype).eval()


@contextmanager
def way(name: str, args: Any) -> Iterator[dict[str, Any]]:
    """Arguments of generate() that make its steps take this way."""
    devices, kernel = step.DEVICES, one_token.USE_KERNEL
    try:
        step.DEVICES = () if name == "general" else ("cpu", "cuda")
        if name == "compiled, plain operations":
            one_token.USE_KERNEL = False
        if not name.startswith("compiled"):
            # On CUDA steps are captured unless it is forbidden.
            yield {} if name == "captured" else {"disable_compile": True}
            return
        # As transformers has it by default, and on a CPU too; graphs are captured on CUDA alone.
        on_gpu = args.device.startswith("cuda") and args.backend == "inductor"
        mode = "reduce-overhead" if on_gpu else None
        settings = CompileConfig(backend=args.backend, mode=mode, dynamic=False)
        settings._compile_all_devices = True
        yield {"cache_implementation": "static", "compile_config": settings}
    finally:
        step.DEVICES, one_token.USE_KERNEL = devices, kernel


def synchronize(args: Any) -> None:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize(args.device)


def generate(model: CosformerForCausalLM, ids: torch.Tensor, count: int, **options: Any) -> torch.Tensor:
    made = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False} | options
    out: torch.Tensor = model.generate(ids, **made)
    return out


def differing(args: Any, name: str, **changes: Any) -> int:
    """Tokens of CHECKED, greedy and float32, that are not those which a call without a cache finds best."""
    model = build(args, torch.float32, CHECKED + 64, initializer_range=0.1, **changes)
    ids = torch.randint(2, args.vocabulary, (3, 33), device=args.device)
    with torch.no_grad(), way(name, args) as options:
        out = generate(model, ids, CHECKED, **options)
        logits = model(out, use_cache=False).logits[:, 32:-1]
    return int((logits.argmax(-1) != out[:, 33:]).sum())


def seconds_a_token(args: Any, name: str, model: CosformerForCausalLM, ids: torch.Tensor) -> dict[str, float]:
    found: dict[str, float] = {}
    with way(name, args) as options:
        begun = time.perf_counter()
        generate(model, ids, 4, **options)
        synchronize(args)
        found["first_call_s"] = time.perf_counter() - begun  # compilation included
        took: dict[int, list[float]] = {count: [] for count in TOKENS}
        for _ in range(3):
            for count in TOKENS:
                begun = time.perf_counter()
                generate(model, ids, count, **options)
                synchronize(args)
                took[count].append(time.perf_counter() - begun)
    few, many = (min(took[count]) for count in TOKENS)
    found["ms_a_token"] = (many - few) / (TOKENS[1] - TOKENS[0]) * 1e3
    found["prefill_s"] = few
    return found


def measure(args: Any, batches: list[int], contexts: list[int]) -> dict[str, Any]:
    windows = {
        "attention_parameters": {"windows": [4, 64] + [None] * (args.hidden // 64 - 2)},
        "conv_size": 4,
    }
    data: dict[str, Any] = {
        "hardware": machine.hardware(torch.device(args.device)),
        "versions": machine.versions(),
        "settings": vars(args),
        "differing_tokens": {},
        "results": [],
    }
    for name in WAYS:
        for kind, changes in (("plain", {}), ("windows and convolution", windows)):
            torch.compiler.reset()
            data["differing_tokens"][f"{name}, {kind}"] = differing(args, name, **changes)
    model = build(args, getattr(torch, args.dtype), max(contexts) + 128)
    for name in WAYS:
        torch.compiler.reset()
        model._decoding = None
        for batch in batches:
            for context in contexts:
                if batch * context > args.most_tokens:
                    continue
                gc.collect()
                ids = torch.randint(2, args.vocabulary, (batch, context), device=args.device)
                row: dict[str, Any] = {"way": name, "batch": batch, "context": context}
                if args.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                row |= seconds_a_token(args, name, model, ids)
                if args.device.startswith("cuda"):
                    row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
                data["results"].append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    return data


def main() -> None:
    p = parser()
    args = p.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        p.error("--device cuda needs a CUDA GPU, and there is none here: give --device cpu and small sizes.")
    batches, contexts = numbers(p, "batches", args.batches), numbers(p, "contexts", args.contexts)
    print(json.dumps(measure(args, batches, contexts), indent=1))


if __name__ == "__main__":
    main()
