"""`cosformer report`: what was recorded, as a page and as Markdown."""

import argparse
from pathlib import Path

from cosformer.cli.errors import UsageError, writable_folder
from cosformer.cli.parser import Parser

HELP = "a page (HTML) and Markdown from the records of runs and benchmarks"
DESCRIPTION = """Renders every finished run (results/*.jsonl) and the newest benchmarks
(benchmarks/reports/*.json) as one page, report.html, that needs no network and no other file, and as
report.md with its plots beside it."""
EXAMPLES = """examples:
  cosformer report
  cosformer report --results results --out site
"""
DEFAULTS = {"results": Path("results"), "benchmarks": Path("benchmarks/reports")}


def arguments(p: Parser) -> None:
    for name, what in (("results", "runs"), ("benchmarks", "benchmarks")):
        p.add_argument(
            f"--{name}", type=Path, help=f"folder of the records of {what} (default: {DEFAULTS[name]})"
        )
    p.add_argument("--out", type=Path, default=Path("report"), help="folder to write to (default: report)")


def run(args: argparse.Namespace) -> int:
    from cosformer.report.odd import told
    from cosformer.report.records import RecordError
    from cosformer.report.write import report, write

    given = {name: getattr(args, name) for name in DEFAULTS}
    results, benchmarks = (given[name] or default for name, default in DEFAULTS.items())
    for name, folder in (("results", results), ("benchmarks", benchmarks)):
        if folder.is_file():
            raise UsageError(f"--{name} {folder} is a file; the folder of the records is expected.")
    if not results.is_dir() and not benchmarks.is_dir():
        raise UsageError(
            f"there are no records: neither the folder {results} nor {benchmarks} exists. Run this in the "
            "root of the project, or say where they are with --results and --benchmarks."
        )
    for name, folder in given.items():
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--{name} {folder}: there is no such folder.")
    try:
        with told(f"a record in {results} or {benchmarks}"):
            document = report(results, benchmarks)
            written = write(document, writable_folder("--out", args.out))
    except RecordError as error:
        raise UsageError(str(error)) from None
    for path in written:
        print(path)
    return 0
