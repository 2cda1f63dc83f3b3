"""`cosformer eval`: the score of a trained run on one of its splits."""

import argparse
from pathlib import Path

from cosformer.cli import runs
from cosformer.cli.errors import UsageError, needs_models
from cosformer.cli.parser import Parser, one_of, positive_int

HELP = "evaluate a trained run on a split"
DESCRIPTION = """Scores the best weights of a run's folder, as `cosformer train` left it, or those of one of
its checkpoints, on the test split unless another is named. The batch size does not change the score."""
EXAMPLES = """examples:
  cosformer eval runs/mqar-tiny-cosformer-0
  cosformer eval runs/mqar-tiny-cosformer-0 --split valid --batch_size 64
  cosformer eval runs/mqar-tiny-cosformer-0/checkpoint-200
  cosformer eval runs/mine --recipe my_recipe.py
"""


def arguments(p: Parser) -> None:
    p.add_argument("folder", type=Path, help="folder of a run or of a checkpoint")
    p.add_argument(
        "--split",
        type=one_of("train", "valid", "test"),
        default="test",
        help="train, valid or test (default)",
    )
    p.add_argument("--batch_size", type=positive_int, help="samples at once (default: as in the run)")
    runs.add_recipe(p)


def run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise UsageError(f"there is no folder {args.folder}; give one that `cosformer train` wrote.")
    with needs_models():
        from safetensors import SafetensorError

        from cosformer.training import best, evaluate
    runs.load_recipe(args.recipe)
    try:
        weights = best(args.folder)
        about, scores = _about(weights), evaluate(weights, args.split, args.batch_size)
    except (ValueError, KeyError, TypeError, FileNotFoundError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"{args.folder} cannot be scored: {error}{runs.recipe_hint(error)}") from None
    print(f"{args.split} split, {about}")
    for name, value in scores.items():
        print(f"{name} {value:.6g}")
    return 0


def _about(weights: Path) -> str:
    """The step of the weights, and whether the run is unfinished."""
    from cosformer import reading
    from cosformer.training.status import Status

    said, folder = f"step {Status.read(weights).step:,}", weights.parent
    if (folder / "run.json").is_file() and not (folder / "record.json").is_file():
        said += f" of an unfinished run ({reading.json_file(folder / 'run.json')['run']['steps']:,} steps)"
    return f"{said}, {weights}"
