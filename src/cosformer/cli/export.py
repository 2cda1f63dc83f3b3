"""`cosformer export`: the model of a run, without what only training needs."""

import argparse
import os
import shutil
from pathlib import Path

from cosformer.cli.errors import UsageError, needs_models, writable_folder
from cosformer.cli.parser import Parser
from cosformer.terminal import size

HELP = "copy the model of a run, in the format of save_pretrained"
DESCRIPTION = """Copies the best weights of a run's folder, or those of one of its checkpoints, with their
configuration and tokenizer: a folder that from_pretrained, `cosformer generate` and others read. Optimiser,
random numbers and progress stay behind. Runs of several processes, shards included, are exported alike."""
EXAMPLES = """examples:
  cosformer export runs/python-tiny-cosformer-0 models/python
  cosformer export runs/python-tiny-cosformer-0/checkpoint-50 models/python-50
"""
_OF_TRAINING = ("manifest.json", "status.json", "run.json", "trainer_state.json", "optimizer.safetensors")


def arguments(p: Parser) -> None:
    p.add_argument("folder", type=Path, help="folder of a run or of a checkpoint")
    p.add_argument("out", type=Path, help="folder to create; must not exist or be empty")


def run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {args.folder}; give one that `cosformer train` wrote.")
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise UsageError(f"{args.out} is there already: give the name of a folder that is not.")
    with needs_models():
        from cosformer.training import best
    try:
        weights = best(args.folder)
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(f"{args.folder} cannot be exported: {error}") from None
    writable_folder("the folder", args.out.parent)
    aside = args.out.with_name(f".{args.out.name}.{os.getpid()}")  # whole, or not there
    try:
        aside.mkdir()
        for file in sorted(weights.iterdir()):
            if file.name not in _OF_TRAINING and not file.name.startswith("random-"):
                shutil.copyfile(file, aside / file.name)
        aside.replace(args.out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    total = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{weights} is now {args.out} ({size(total)}): {', '.join(sorted(os.listdir(args.out)))}")
    return 0
