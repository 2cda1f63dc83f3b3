"""`cosformer bench`: the benchmarks, which belong to the source tree and not to the installed package.

They measure the sources of their own checkout and record its commit; a wheel has neither. So they are
searched beside the package (an editable installation, or PYTHONPATH=src), then in the current folder.
"""

import argparse
import runpy
import shlex
import sys
from pathlib import Path

from cosformer import machine
from cosformer.cli.errors import Stopped, UsageError, needs_models
from cosformer.cli.parser import Parser, one_of

HELP = "time the operator, the attentions, or generation; write a report"
DESCRIPTION = """Runs a benchmark of the source tree: time and memory against length, with a report in
benchmarks/reports. What is not correct is not timed. All further options go to the benchmark;
`cosformer bench operator --help` lists them."""
EXAMPLES = """examples:
  cosformer bench operator --quick --out try      a first impression: three lengths, few repetitions
  cosformer bench operator --device cuda          the operator on a GPU
  cosformer bench attention --only cosformer,softmax
  cosformer bench generation --contexts 1024,16384
"""
# By name, the module under benchmarks/.
BENCHMARKS = {"operator": "attention_operator", "attention": "attention", "generation": "generation"}


def root() -> Path:
    """The source tree."""
    for folder in (machine.CHECKOUT, Path.cwd()):
        if (folder / "benchmarks" / "attention_operator.py").is_file():
            return folder
    raise UsageError(
        "the benchmarks are part of the source tree, not of the installed package: run this in a clone of "
        "the repository."
    )


def arguments(p: Parser) -> None:
    p.add_argument("benchmark", type=one_of(*BENCHMARKS), help=", ".join(BENCHMARKS))
    p.add_argument("options", nargs=argparse.REMAINDER, help="for the benchmark").required = False


def run(args: argparse.Namespace) -> int:
    tree = root()
    if args.benchmark == "generation":
        with needs_models():
            import transformers  # noqa: F401
    # As `python -m benchmarks.<module>` in the root of the tree: with its own options, help and messages.
    module = f"benchmarks.{BENCHMARKS[args.benchmark]}"
    sys.path.insert(0, str(tree))
    before, sys.argv = sys.argv, [module, *args.options]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    except SystemExit as left:
        said = left.code.strip() if isinstance(left.code, str) else ""
        if not said.startswith("Stopped"):
            raise
        again = shlex.join(["cosformer", "bench", args.benchmark, *args.options])
        raise Stopped(f"{said} Start again with: {again}") from None
    finally:
        sys.argv = before
        sys.path.remove(str(tree))
    return 0
