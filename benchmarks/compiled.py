"""What `compile=True` gains in training: tokens per second of the study's language models, eager and
compiled, each as a run of its own; the losses of both have to agree.

    PYTHONPATH=src python3 -m benchmarks.compiled --out compiled.json     # on a GPU, about 90 s
"""

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from benchmarks import enwik8_plan, machine
from benchmarks.plan import build
from benchmarks.terminal import Parser, size
from cosformer import reading
from cosformer.atomic import write_json
from cosformer.training import Run, train

FORMAT = "cosformer compiled training benchmark 1"
RATE = 1e-3
COMPARED = 20  # steps whose losses have to agree
NEAR = 0.01  # of the loss; in bfloat16, fused kernels round less often


def made(run: Run) -> dict[str, Any]:
    """The figures of a run, and its first losses."""
    counters.clear()
    with tempfile.TemporaryDirectory() as folder:
        record = train(run, folder, progress=False, results=Path(folder) / "results.jsonl")
        losses = [
            line["loss"] for line in reading.json_lines(Path(folder) / "log.jsonl") if "event" not in line
        ]
    speed = record["tokens_per_s"]
    return {
        "tokens_per_s": speed,
        # Everything but the steps: compilation, how much longer the first ones take, evaluation, checkpoints.
        "other_s": None if speed is None else record["wall_time_s"] - record["tokens"] / speed,
        "peak_memory_bytes": record["peak_memory_bytes"],
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "losses": losses[:COMPARED],
    }


def variant(name: str, **changes: Any) -> Run:
    """A run of the plan, at a learning rate that all families train with."""
    entry = enwik8_plan.of(name, "short", changes["steps"])
    overrides = {**entry.overrides, "learning_rate": RATE, **changes}
    return build(dataclasses.replace(entry, tries=(), overrides=overrides), {})


def compared(run: Run) -> dict[str, Any]:
    """A run eager and compiled; refused where the losses differ."""
    made(run.replace(steps=2))  # compiles the operator's own kernels, and prepares the data
    eager, compiled = made(run), made(run.replace(compile=True))
    apart = max(abs(a - b) / a for a, b in zip(eager["losses"], compiled["losses"], strict=True))
    if not apart < NEAR:
        raise RuntimeError(f"compiled, the losses of the first {COMPARED} steps differ by {apart:.2%}.")
    return {
        "eager": eager,
        "compiled": compiled,
        "gain": compiled["tokens_per_s"] / eager["tokens_per_s"],
        "compile_s": compiled["other_s"] - eager["other_s"],
        "losses_apart": apart,
    }


def main() -> None:
    parser = Parser(prog="python -m benchmarks.compiled", description=__doc__.split("\n\n")[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    usual = f"softmax, rotary|{enwik8_plan.OURS}"
    parser.add_argument("--variants", default=usual, help="names of the plan, with | between them")
    parser.add_argument("--steps", type=int, default=200, help="of each run")
    parser.add_argument("--out", type=Path, help="a JSON file")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data: dict[str, Any] = {
        "format": FORMAT, "hardware": machine.hardware(device), "versions": machine.versions(),
        "commit": machine.commit(), "measured": {},
    }  # fmt: skip
    for name in args.variants.split("|"):
        # A slow warm-up: at a high rate the first steps are so unstable that any rounding changes them.
        run = variant(name, steps=args.steps, warmup=args.steps, eval_every=args.steps, save_every=args.steps)
        found = data["measured"][name] = compared(run)
        for how in ("eager", "compiled"):
            one = found[how]
            speed, memory = f"{one['tokens_per_s']:,.0f} tokens/s", size(one["peak_memory_bytes"])
            graphs = f"{one['graphs']} graphs, {one['graph_breaks']} breaks"
            print(f"{name}, {how}: {speed}, {memory}, {one['other_s']:.1f} s beside the steps, {graphs}")
        print(
            f"    {found['gain']:.2f} times, {found['compile_s']:.1f} s to compile, "
            f"losses of {COMPARED} steps within {found['losses_apart']:.2%}", flush=True,
        )  # fmt: skip
        if args.out is not None:
            write_json(args.out, data)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; what was measured is kept.")
