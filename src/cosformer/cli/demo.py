"""`cosformer demo`: train, compare and report, on this machine."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from cosformer.cli import info
from cosformer.cli.errors import Stopped, UsageError, needs_models, writable_folder
from cosformer.cli.parser import Parser, number
from cosformer.lock import locked
from cosformer.terminal import Progress, plain

HELP = "train a small cosFormer and a softmax model, compare them, write a report; five minutes"
DESCRIPTION = """Trains a small cosFormer and the same model with softmax side by side on the source of
Python's standard library, compares quality, speed and memory, and writes report.html. Nothing is downloaded.
Stopped with Ctrl-C, it continues after the last finished part when it is run again."""
EXAMPLES = """examples:
  cosformer demo
  cosformer demo --out try --seconds 60            a shorter training
  cosformer generate demo/cosformer --prompt "import "     afterwards
"""


def arguments(p: Parser) -> None:
    p.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)")
    p.add_argument(
        "--seconds", type=number(0, 86400), help="training time of both models together (default: 150)"
    )
    p.add_argument(
        "--tiny", action="store_true", help="a smoke test of some seconds; the models learn nothing"
    )
    p.add_argument("--fresh", action="store_true", help="start again and overwrite an earlier demo")


def run(args: argparse.Namespace) -> int:
    with needs_models():
        import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    from cosformer.demo.settings import TINY, Settings

    settings = TINY if args.tiny else Settings()
    if args.seconds is not None:
        settings = replace(settings, seconds=args.seconds)
    folder = writable_folder("--out", args.out)
    with locked(folder, "makes a demonstration"):
        return _demonstrate(args, folder, settings)


def _demonstrate(args: argparse.Namespace, folder: Path, settings: Any) -> int:
    from cosformer.demo.run import Demo, Occupied
    from cosformer.report.sections.demo import figures

    versions, cpu = info.versions(), info.devices()[0]
    machine = {
        "name": cpu["name"],
        "threads": cpu["threads"],
        "torch": versions["torch"],
        "cosformer": versions["cosformer"],
    }
    try:
        demo = Demo(folder, settings, machine, Progress(every=10.0), args.fresh)
    except Occupied as error:
        raise UsageError(f"--out {error}") from None
    if demo.finished():
        print(f"Continuing in {folder}: {', '.join(demo.finished())} finished already.")
    try:
        print("Training a cosFormer and the same model with softmax, then measuring both.", flush=True)
        page = demo.run()
    except KeyboardInterrupt:
        kept = ", ".join(demo.finished()) or "nothing yet"
        again = " ".join(["cosformer demo", f"--out {folder}", *(["--tiny"] if args.tiny else [])])
        if args.seconds is not None:
            again += f" --seconds {args.seconds:g}"
        raise Stopped(f"stopped. Finished and kept in {folder}: {kept}. Continue with: {again}") from None
    table = figures(demo.record)
    print(plain(table.header, table.rows))
    print(f"\n{table.caption}\nThe report: {page.resolve()}")
    print(f'Next: cosformer generate {folder / "cosformer"} --prompt "import "')
    return 0
