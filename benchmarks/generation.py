"""Time per token, cache bytes and peak memory of generation against the length of the context: cosFormer,
the same model with softmax, and transformers' Llama of the same size. Writes a report: JSON, Markdown
and a plot."""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import machine
from benchmarks.generation_cases import CONTENDERS, Decoder, Sizes, build, cache_bytes, disagreement
from benchmarks.record import earlier, publish
from benchmarks.terminal import Parser, Progress, size
from benchmarks.timing import summary
from cosformer.report.sections.generation import FORMAT, document
from cosformer.report.write import write_beside

CONTEXTS = (1024, 4096, 16384, 65536)
BATCHES = (1, 16)
ROUNDS = 6
TOKENS = 8  # of one turn
PEAK_TOKENS = 4
ALLOWED = 1e-4  # between cached and uncached logits, float32


def parser() -> Parser:
    p = Parser(prog="python -m benchmarks.generation", description=__doc__)
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    p.add_argument("--contexts", default=",".join(map(str, CONTEXTS)), help="tokens, separated by commas")
    p.add_argument("--batches", default=",".join(map(str, BATCHES)), help="batch sizes, separated by commas")
    p.add_argument("--hidden", type=int, default=256, help="width of the models (default: 256)")
    p.add_argument("--layers", type=int, default=4, help="layers of the models (default: 4)")
    p.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each case (default: {ROUNDS})")
    p.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    p.add_argument("--no-memory", action="store_true", help="leave out the peak memory")
    p.add_argument("--out", type=Path, help="folder of the reports (default: benchmarks/reports)")
    p.add_argument("--render", type=Path, metavar="FILE.json", help="write an earlier report again")
    p.add_argument("--peak", help=argparse.SUPPRESS)
    return p


def numbers(p: Parser, name: str, text: str) -> list[int]:
    try:
        found = sorted({int(x) for x in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        p.error(f"--{name} wants positive whole numbers separated by commas, got {text}")
    return found


def command(args: argparse.Namespace) -> str:
    """How to get these figures again; where they were written does not matter for that."""
    given = {"device": args.device, "contexts": args.contexts, "batches": args.batches, "hidden": args.hidden,
             "layers": args.layers, "rounds": args.rounds, "threads": args.threads}  # fmt: skip
    defaults = parser()
    told = [f"--{k}={v}" for k, v in given.items() if v != defaults.get_default(k)]
    return shlex.join(["python", "-m", "benchmarks.generation", *told])


def measure(args: argparse.Namespace, contexts: list[int], batches: list[int]) -> dict[str, Any]:
    device, sizes, progress = torch.device(args.device), Sizes(args.hidden, args.layers), Progress()
    models = {name: build(name, sizes, max(contexts) + 1024, device) for name in CONTENDERS}
    gate = {name: disagreement(model) for name, model in models.items()}
    limit = machine.memory_limit(device)
    data: dict[str, Any] = {
        "format": FORMAT,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": command(args),
        "hardware": machine.hardware(device),
        "versions": machine.versions() | {"transformers": transformers.__version__},
        "commit": machine.commit(),
        "settings": {
            "device": device.type,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "hidden_size": sizes.hidden,
            "layers": sizes.layers,
            "heads": sizes.heads,
            "parameters": {name: model.num_parameters() for name, model in models.items()},
            "contexts": contexts,
            "batches": batches,
            "rounds": args.rounds,
            "memory_limit_bytes": limit,
        },
        "contenders": CONTENDERS,
        "gate": {name: {"error": e, "allowed": ALLOWED, "passed": e <= ALLOWED} for name, e in gate.items()},
        "results": [],
    }
    others = machine.Others()
    for batch in batches:
        data["results"] += race(models, data["gate"], sizes, batch, contexts, args.rounds, limit, progress)
    data["others_share"] = others.share()
    if not args.no_memory:
        for result in data["results"]:
            if "median_s" in result:
                result["peak_bytes"] = peak_in_new_process(result, sizes, device, max(contexts) + 1024)
    return data


def race(
    models: dict[str, Any],
    gate: dict[str, Any],
    sizes: Sizes,
    batch: int,
    contexts: list[int],
    rounds: int,
    limit: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """All contexts of all contenders in turns, so that a slow spell of the machine hits all alike."""
    results: list[dict[str, Any]] = []
    cases: list[tuple[dict[str, Any], Decoder, list[float]]] = []
    room = limit
    for name, model in models.items():
        for context in contexts:
            key = {"contender": name, "batch": batch, "context": context}
            needed = sizes.cache_bytes(name, batch, context)
            if not gate[name]["passed"]:
                results.append({**key, "skipped": "not correct"})
            elif 2 * needed > room:  # a cache that grows by concatenation is there twice for a moment
                results.append({**key, "skipped": f"not measured: a cache of {size(needed)}"})
            else:
                room -= needed
                cases.append((key, Decoder(name, model, sizes, batch, context), []))
    progress.start(rounds * len(cases))
    for round_ in range(rounds):
        for key, decoder, samples in cases[:: -1 if round_ % 2 else 1]:
            progress.step(f"{key['contender']}, batch {batch}, {key['context']:,} tokens")
            samples += decoder.times(TOKENS)
    progress.end()
    for key, decoder, samples in cases:
        results.append({**key, **summary(samples), "cache_bytes": cache_bytes(decoder.cache)})
    return results


def peak_in_new_process(
    result: dict[str, Any], sizes: Sizes, device: torch.device, longest: int
) -> int | None:
    """Peak memory of decoding beyond the model: the cache and what a token needs on top of it."""
    case = {
        **{k: result[k] for k in ("contender", "batch", "context")},
        "hidden": sizes.hidden, "layers": sizes.layers, "device": device.type, "longest": longest,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    # Freed memory has to leave the process at once, or the peak would count what is no longer in use.
    allocator = {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.generation", "--peak", json.dumps(case)],
        cwd=machine.ROOT, env={**os.environ, **allocator}, capture_output=True, text=True,
    )  # fmt: skip
    return int(done.stdout) if done.returncode == 0 else None


def peak(case: dict[str, Any]) -> int:
    torch.set_num_threads(case["threads"])
    device, sizes = torch.device(case["device"]), Sizes(case["hidden"], case["layers"])
    model = build(case["contender"], sizes, case["longest"], device)
    Decoder(case["contender"], model, sizes, case["batch"], 16).step()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        decoder = Decoder(case["contender"], model, sizes, case["batch"], case["context"])
        torch.cuda.reset_peak_memory_stats(device)
    else:
        before = _held("VmRSS")
        decoder = Decoder(case["contender"], model, sizes, case["batch"], case["context"])
        machine.forget_peak()
    decoder.kept = None  # nothing but the cache itself shall keep a state
    for _ in range(PEAK_TOKENS):
        decoder.step()
    after = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _held("VmHWM")
    return int(after - before)


def _held(field: str) -> int:
    held = machine.resident(field)
    if held is None:
        raise RuntimeError("this system does not tell a process its memory (there is no /proc/self/status).")
    return held


def main() -> None:
    p = parser()
    args = p.parse_args()
    if args.peak:
        print(peak(json.loads(args.peak)))
        return
    if args.render:
        data = earlier(p, args.render, FORMAT)
        print(*write_beside(document(data), (args.out or args.render.parent) / args.render.name), sep="\n")
        return
    if args.threads:
        torch.set_num_threads(args.threads)
    contexts, batches = numbers(p, "contexts", args.contexts), numbers(p, "batches", args.batches)
    folder = args.out or machine.ROOT / "benchmarks" / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    data = measure(args, contexts, batches)
    path = folder / f"generation-{data['settings']['device']}-{data['date'][:10].replace('-', '')}.json"
    publish(data, document, path)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; nothing was written.")
