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
DEFAULTS = Path("results"), Path("benchmarks/reports")


def arguments(p: Parser) -> None:
    results, benchmarks = DEFAULTS
    p.add_argument("--results", type=Path, default=results, help=f"records of runs (default: {results})")
    p.add_argument(
        "--benchmarks", type=Path, default=benchmarks, help=f"records of benchmarks (default: {benchmarks})"
    )
    p.add_argument("--out", type=Path, default=Path("report"), help="folder to write to (default: report)")


def run(args: argparse.Namespace) -> int:
    from cosformer.report.odd import told
    from cosformer.report.records import RecordError
    from cosformer.report.write import report, write

    given = {"--results": args.results, "--benchmarks": args.benchmarks}
    for option, folder in given.items():
        if folder.is_file():
            raise UsageError(f"{option} {folder} is a file; the folder of the records is expected.")
    if not args.results.is_dir() and not args.benchmarks.is_dir():
        raise UsageError(
            f"there are no records: neither the folder {args.results} nor {args.benchmarks} exists. Run this "
            "in the root of the project, or say where they are with --results and --benchmarks."
        )
    for option, folder in given.items():
        if folder not in DEFAULTS and not folder.is_dir():
            raise UsageError(f"{option} {folder}: there is no such folder.")
    try:
        with told(f"a record in {args.results} or {args.benchmarks}"):
            document = report(args.results, args.benchmarks)
            written = write(document, writable_folder("--out", args.out))
    except RecordError as error:
        raise UsageError(str(error)) from None
    for path in written:
        print(path)
    return 0
