"""The overhead of training: tokens per second of the trainer, with data, clipping, optimiser and log, beside
those of forward and backward alone over the same batches.

    PYTHONPATH=src python3 -m benchmarks.training
"""

import argparse
import datetime
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.terminal import Parser, plain
from cosformer import tasks
from cosformer.atomic import write_json
from cosformer.report.sections.training import speeds, training_document
from cosformer.report.write import write_beside
from cosformer.tasks.io.sources import DataError
from cosformer.training import Run, recipes, train
from cosformer.training.evaluation import autocast
from cosformer.training.main import device_of, source
from cosformer.training.model import build
from cosformer.training.order import Order
from cosformer.training.parallel import compile_layers

FORMAT = "cosformer training benchmark 1"
# Data that would take minutes to generate: the speed follows from the lengths of the rows, not their number.
_FEWER = {
    "listops": {"train_rows": 8192, "valid_rows": 64, "test_rows": 64},
    "pathfinder": {"train_rows": 8192, "valid_rows": 64, "test_rows": 64},
}
_MOST_BATCHES = 400


def bare(run: Run, seconds: float) -> float:
    """Tokens a second of forward and backward, over the batches of the run in turn: those of a few steps may
    hold more padding, or less, than those of all."""
    device = torch.device(device_of(run))
    task = tasks.build(run.task, **run.task_settings)
    data = source(run, task, "train", device)
    batches = list(data.training(Order.of(run, data), 0, min(_MOST_BATCHES, run.steps)))
    model: Any = build(run, task).to(device).train()
    if run.compile:
        compile_layers(model, run)

    def step(number: int) -> None:
        with autocast(run.precision, device):
            loss = model(**batches[number % len(batches)]).loss
        loss.backward()
        model.zero_grad()

    for number in range(len(batches)):
        step(number)
    tokens = [
        int(b["attention_mask"].sum() if "attention_mask" in b else b["input_ids"].numel()) for b in batches
    ]
    machine.wait(device)
    began, done, seen = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        for _ in range(len(batches)):
            step(done)
            seen += tokens[done % len(batches)]
            done += 1
        machine.wait(device)
    return seen / (time.perf_counter() - began)


def measure(run: Run, seconds: float) -> dict[str, Any]:
    """The two speeds of a run, and their ratio. The bare one is taken before and after."""
    before = bare(run, seconds)
    with tempfile.TemporaryDirectory() as folder:
        record = train(run, folder, progress=False, results=Path(folder) / "results.jsonl")
    own = max(before, bare(run, seconds))
    return {
        "recipe": run.recipe,
        "attention": run.attention,
        "settings": run.to_dict(),
        "bare_tokens_per_s": own,
        "tokens_per_s": record["tokens_per_s"],
        "share": record["tokens_per_s"] / own,
        "peak_memory_bytes": record["peak_memory_bytes"],
        "parameters": record["parameters"],
    }


def main() -> None:
    parser = Parser(prog="python -m benchmarks.training", description=__doc__.splitlines()[0])
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--recipes", default="listops,image,enwik8", help="names, with commas between them")
    parser.add_argument("--attentions", default="cosformer,softmax", help="likewise")
    parser.add_argument("--scale", default="small", choices=recipes.SCALES)
    parser.add_argument("--steps", type=int, default=300, help="that are trained")
    parser.add_argument("--seconds", type=float, default=5.0, help="that the bare model runs for, at least")
    parser.add_argument("--compile", action="store_true", help="compile the model, in both")
    parser.add_argument("--out", type=Path, default=machine.ROOT / "benchmarks" / "reports")
    args = parser.parse_args()
    data: dict[str, Any] = {
        "format": FORMAT,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "scale": args.scale,
        "versions": machine.versions(),
        "commit": machine.commit(),
        "measured": [],
        "absent": {},
    }
    path = args.out
    for name in args.recipes.split(","):
        for attention in args.attentions.split(","):
            try:
                run = recipes.build(
                    name, scale=args.scale, attention=attention, steps=args.steps, warmup=0,
                    eval_every=args.steps, save_every=args.steps, compile=args.compile,
                    task_settings=_FEWER.get(name, {}),
                )  # fmt: skip
            except ValueError as error:
                parser.error(f"this run cannot be made: {error}")
            device = torch.device(device_of(run))
            data["hardware"] = machine.hardware(device)
            try:
                data["measured"].append(measure(run, args.seconds))
            except DataError as error:
                data["absent"][name] = str(error)
            path = save(data, args.out, device)
            if name in data["absent"]:
                break
            print(plain((table := speeds(data)).header, table.rows[-1 - len(data["absent"]) :]), flush=True)
    print(plain((table := speeds(data)).header, table.rows), path, sep="\n")


def save(data: dict[str, Any], folder: Path, device: torch.device) -> Path:
    """After every measurement, so that a run cut short leaves what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"training-{device.type}-{data['date'][:10].replace('-', '')}"
    write_json(path.with_suffix(".json"), data)
    return write_beside(training_document(data), path.with_suffix(".json"))[0]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; what was measured is kept.")
