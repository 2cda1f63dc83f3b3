"""`cosformer train`: a recipe, trained to its end."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from cosformer.cli import runs
from cosformer.cli.errors import UsageError
from cosformer.cli.parser import Parser, positive_int
from cosformer.terminal import seconds, size

HELP = "train a recipe; a stopped run continues from its last checkpoint"
DESCRIPTION = f"""Trains a recipe and appends its record to the results. Ctrl-C saves a checkpoint, and the
same command continues from there.

{runs.SETTINGS}"""
EXAMPLES = """examples:
  cosformer train mqar --scale tiny
  cosformer train mqar --attention softmax steps=2000 model.hidden_size=64 seed=1
  cosformer train python --attention recommended compile=true
  cosformer train pathfinder --scale tiny --pretrain 500
  cosformer train mqar --print_config
  cosformer train my_recipe.py --folder runs/mine
"""


def arguments(p: Parser) -> None:
    runs.add(p)
    p.add_argument(
        "--attention",
        default="cosformer",
        help="attention mechanism (see `cosformer.attention.names()`), or `recommended` for the default "
        "model of CosformerConfig; `cosformer` is the paper's model, except at scale small of enwik8, "
        "python, wikitext2 and wikitext103, where it has windows, a gate and norms (default: cosformer)",
    )
    p.add_argument(
        "--folder",
        type=Path,
        help="output folder of the run (default: runs/<recipe>-<scale>-<attention>-<seed>)",
    )
    p.add_argument(
        "--pretrain", type=positive_int, metavar="STEPS",
        help="self-pretrain for STEPS steps (masked-token prediction on the task's inputs) before training",
    )  # fmt: skip
    p.add_argument("--print_config", action="store_true", help="show the complete run and do nothing")


def run(args: argparse.Namespace) -> int:
    show = args.print_config
    chosen = runs.build(args.recipe, args.scale, args.attention, args.settings, needs_data=not show)
    name = f"{Path(args.recipe).stem}-{args.scale}-{args.attention}-{chosen.seed}"
    folder = args.folder or Path("runs") / (name + ("-pretrained" if args.pretrain else ""))
    first = None
    if args.pretrain:
        first, chosen = _with_pretraining(chosen, args.pretrain, before := _before(folder))
    if show:
        print(json.dumps(chosen.to_dict(), indent=1))
        return 0
    again = ["cosformer", "train", args.recipe, *runs.repeated(args.settings), "--scale", args.scale]
    again += ["--attention", args.attention, "--folder", str(folder)]
    again += ["--pretrain", str(args.pretrain)] if args.pretrain else []
    again += ["--results", str(args.results)] if args.results else []
    finished = runs.finished(folder, args)
    if first is not None and not finished:
        record = runs.train(first, before, args, again)
        if os.environ.get("RANK", "0") == "0":
            print(f"Pretrained in {before}: {runs.score_words(record)}")
    record = runs.train(chosen, folder, args, again)
    if os.environ.get("RANK", "0") != "0":  # only the first process prints
        return 0
    if finished:
        print(f"Nothing was trained: {folder} holds this run, finished; --fresh trains it again.")
    print(f"{record['task']}, {record['mechanism']}: {runs.score_words(record)}")
    speed = f"{record['tokens_per_s']:,.0f} tokens/s" if record["tokens_per_s"] else "too short to be timed"
    took, memory = seconds(record["wall_time_s"]), size(record["peak_memory_bytes"])
    print(f"{record['steps']:,} steps in {took}, {speed}, {memory} at most")
    from cosformer import record_file

    recorded = runs.results(record["task"], args)
    # A finished run may be on a read-only disk.
    there = "" if record_file.holds(recorded, record, "id") else "not "
    print(f"Kept in {folder}; {there}recorded in {recorded}")
    return 0


def _before(folder: Path) -> Path:
    """Where the weights lie that a run starts from."""
    return folder.with_name(f"{folder.name.removesuffix('-pretrained')}-pretraining")


def _with_pretraining(run: Any, steps: int, folder: Path) -> tuple[Any, Any]:
    """The run before a run, and the run as it begins then."""
    from cosformer.training import pretraining

    if run.initial is not None:
        raise UsageError(
            "--pretrain makes the weights that the run starts from: leave out --pretrain or initial."
        )
    try:
        return pretraining(run, steps=steps), run.replace(initial=str(folder))
    except ValueError as error:
        raise UsageError(f"--pretrain: {error}") from None
