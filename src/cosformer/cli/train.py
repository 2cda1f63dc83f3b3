"""`cosformer train`: a recipe, trained to its end."""

import argparse
import json
import os
from pathlib import Path

from cosformer.cli import runs
from cosformer.cli.parser import Parser
from cosformer.terminal import seconds, size

HELP = "train a recipe; continues where it was stopped"
DESCRIPTION = f"""Trains a recipe and appends a record of it to the results. Stopped with Ctrl-C it leaves a
checkpoint, and the same command continues from there.

{runs.SETTINGS}"""
EXAMPLES = """examples:
  cosformer train mqar --scale tiny
  cosformer train mqar --attention softmax steps=2000 model.hidden_size=64 seed=1
  cosformer train enwik8 --attention recommended compile=true
  cosformer train mqar --print_config
  cosformer train my_recipe.py --folder runs/mine
"""


def arguments(p: Parser) -> None:
    runs.add(p)
    p.add_argument(
        "--attention", default="cosformer", help="a mechanism, or `recommended` (default: cosformer)"
    )
    p.add_argument(
        "--folder", type=Path, help="of the run (default: runs/<recipe>-<scale>-<attention>-<seed>)"
    )
    p.add_argument("--print_config", action="store_true", help="show the complete run and do nothing")


def run(args: argparse.Namespace) -> int:
    chosen = runs.build(args.recipe, args.scale, args.attention, args.settings)
    if args.print_config:
        print(json.dumps(chosen.to_dict(), indent=1))
        return 0
    name = f"{Path(args.recipe).stem}-{args.scale}-{args.attention}-{chosen.seed}"
    folder = args.folder or Path("runs") / name
    again = ["cosformer", "train", args.recipe, *runs.repeated(args.settings), "--scale", args.scale]
    again += ["--attention", args.attention, "--folder", str(folder)]
    again += ["--results", str(args.results)] if args.results else []
    finished = runs.finished(folder, args)
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
