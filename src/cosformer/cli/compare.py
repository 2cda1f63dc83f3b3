"""`cosformer compare`: one recipe with several attentions, in one table and one page."""

import argparse
from pathlib import Path
from typing import Any

from cosformer.cli import runs
from cosformer.cli.errors import writable_folder
from cosformer.cli.parser import Parser
from cosformer.terminal import plain

HELP = "train one recipe with several attentions; writes one table and one page"
DESCRIPTION = f"""Trains the same recipe with each of the attentions, one after another, and compares them.
Ctrl-C keeps what is finished, and the same command continues from there.

{runs.SETTINGS}"""
EXAMPLES = """examples:
  cosformer compare mqar --scale tiny --attentions cosformer,softmax
  cosformer compare mqar --attentions cosformer,relu,linear,softmax steps=2000 --folder runs/recall
  cosformer compare python --attentions recommended,softmax learning_rate=0.002
"""


def arguments(p: Parser) -> None:
    runs.add(p)
    p.add_argument(
        "--attentions",
        default="cosformer,softmax",
        help="names, separated by commas (default: cosformer,softmax)",
    )
    p.add_argument(
        "--folder", type=Path, help="output folder of all runs (default: runs/compare-<recipe>-<scale>)"
    )


def run(args: argparse.Namespace) -> int:
    from cosformer.report.sections.comparison import document, table
    from cosformer.report.write import write

    names = list(dict.fromkeys(word.strip() for word in args.attentions.split(",")))
    folder = args.folder or Path("runs") / f"compare-{Path(args.recipe).stem}-{args.scale}"
    chosen = [runs.build(args.recipe, args.scale, name, args.settings, "--attentions") for name in names]
    writable_folder("--folder", folder)
    again = ["cosformer", "compare", args.recipe, *runs.repeated(args.settings), "--scale", args.scale]
    again += ["--attentions", ",".join(names), "--folder", str(folder)]
    again += ["--results", str(args.results)] if args.results else []
    made: list[dict[str, Any]] = []
    for name, each in zip(names, chosen, strict=True):
        finished = "; finished already, not trained again" if runs.finished(folder / name, args) else ""
        made.append(runs.train(each, folder / name, args, again))
        print(f"{name}: {runs.score_words(made[-1])}{finished}", flush=True)
    found = table(made)
    print("\n" + plain(found.header, found.rows))
    page, _ = write(document(made, {name: folder / name for name in names}), folder)
    print(f"\nThe report: {page.resolve()}")
    return 0
