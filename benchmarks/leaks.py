"""A thousand generations in one process: does memory stay where it was?

    python -m benchmarks.leaks --out benchmarks/reports/leaks-cpu.json

Greedy search, sampling, beams, compiled steps, kept caches, batches of many texts, and texts that run into
the end of the model take turns. After a first part, which fills what is filled once, living tensors and the
resident memory of the process are looked at now and then.
"""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.generation.configuration_utils import CompileConfig

from benchmarks import machine
from benchmarks.record import check_out, header
from benchmarks.terminal import Parser, Progress
from cosformer.atomic import write_json
from cosformer.cli.parser import positive_int
from cosformer.models import CosformerCache, CosformerConfig, CosformerForCausalLM, HorizonError
from cosformer.models.batching import Choice, generate_many

FORMAT = "cosformer leaks benchmark 1"
ALLOWED = 4 * 2**20  # bytes that the process may grow by after the first part: its allocator's, not ours
LONGEST = 40
LENGTHS = 3  # of prompts


def build() -> CosformerForCausalLM:
    """Two layers of different kinds, with a convolution and windows."""
    torch.manual_seed(0)
    config = CosformerConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=LONGEST, attention=["cosformer", "softmax"], conv_size=3,
        attention_parameters=[{"windows": [1, 5, None, None]}, {}], pad_token_id=0, bos_token_id=1,
        eos_token_id=None,
    )  # fmt: skip
    return CosformerForCausalLM(config).eval()


def ways(model: CosformerForCausalLM) -> list[Callable[[torch.Tensor], object]]:
    """What takes turns, each with a prompt [2, T]."""
    settings = CompileConfig(backend="eager", mode=None, dynamic=False)
    settings._compile_all_devices = True
    static = {"cache_implementation": "static", "compile_config": settings}

    def generate(ids: torch.Tensor, **options: Any) -> Any:
        return model.generate(ids, **{"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False} | options)

    def kept(ids: torch.Tensor) -> None:
        cache = CosformerCache(model.config)
        text = generate(ids, past_key_values=cache)
        before = cache.snapshot()
        generate(text, past_key_values=cache)
        cache.restore(before)

    def past_the_end(ids: torch.Tensor) -> None:
        try:
            generate(ids, max_new_tokens=LONGEST + 9)
        except HorizonError:
            return
        raise AssertionError("the text has no end")

    def many(ids: torch.Tensor) -> None:
        for _ in generate_many(model, [ids[0], ids[1, :3]], tokens=5, choice=Choice(greedy=True)):
            pass

    return [
        generate,
        lambda ids: generate(ids, do_sample=True),
        lambda ids: generate(ids, num_beams=2),
        lambda ids: generate(ids, **static),
        lambda ids: generate(ids, num_beams=2, **static),
        kept,
        many,
        past_the_end,
    ]


def living() -> tuple[int, int]:
    """Tensors that somebody still holds, and their bytes."""
    gc.collect()
    # By type alone: to ask an object for its class may run code of its own.
    found = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    return len(found), sum(x.nbytes for x in found)


def look(done: int) -> dict[str, Any]:
    tensors, nbytes = living()
    return {"generations": done, "tensors": tensors, "tensor_bytes": nbytes,
            "resident_bytes": machine.resident("VmRSS")}  # fmt: skip


def measure(generations: int, progress: Progress) -> dict[str, Any]:
    model = build()
    turns = ways(model)
    # Each way with each length, more than once: buffers are kept for a number of shapes.
    first, every = max(3 * len(turns) * LENGTHS, generations // 5), max(len(turns), generations // 10)
    looks: list[dict[str, Any]] = []
    progress.start(generations)
    for done in range(generations + 1):
        if (done >= first and (done - first) % every == 0) or done == generations:
            looks.append(look(done))
        if done < generations:
            turns[done % len(turns)](torch.randint(2, 64, (2, 4 + done // len(turns) % LENGTHS)))
            progress.step(f"{done + 1:,} of {generations:,} generations")
    progress.end()
    before, after = looks[0], looks[-1]
    grown = {name: after[name] - before[name] for name in ("tensors", "tensor_bytes") if before[name]}
    if before["resident_bytes"] is not None:
        grown["resident_bytes"] = after["resident_bytes"] - before["resident_bytes"]
    return {"generations": generations, "looks": looks, "grown": grown, "allowed_bytes": ALLOWED}


def leaks(data: dict[str, Any]) -> bool:
    grown = data["grown"]
    return bool(grown["tensors"] > 0 or grown.get("resident_bytes", 0) > data["allowed_bytes"])


def main(words: list[str] | None = None) -> int:
    p = Parser(prog="python -m benchmarks.leaks", description=__doc__)
    p.add_argument("--generations", type=positive_int, default=1000, help="default: 1,000")
    p.add_argument("--out", type=Path, help="where the record goes (default: nowhere)")
    args = p.parse_args(words)
    check_out(p, args.out)
    torch.set_num_threads(1)
    data = header(FORMAT, torch.device("cpu")) | measure(args.generations, Progress())
    if args.out is not None:
        write_json(args.out, data)
    grown = {name: f"{value:+,}" for name, value in data["grown"].items()}
    print(f"{data['generations']:,} generations; grown by {grown}")
    return int(leaks(data))


if __name__ == "__main__":
    sys.exit(main())
