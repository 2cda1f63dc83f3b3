"""Attacks on everything that reads what somebody else wrote: spoilt files and command lines with mistakes.

Every case is drawn from a seed and its number, and runs in a process of its own with a limit of memory and of
time, without a network. A campaign that is stopped goes on where it was; its report has the counts, and every
case that ended as none may: in a traceback, a hang, a kill, a question, a connection, or with code run.
"""

import argparse
import collections
import datetime
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import hostile_files, hostile_lines, sandbox
from benchmarks.record import check_out
from benchmarks.terminal import Parser, Progress
from cosformer import machine as hardware
from cosformer.cli.parser import positive_int, seed
from cosformer.training import files

EXAMPLES = """examples:
  python -m benchmarks.campaign                             500 files and 300 command lines
  python -m benchmarks.campaign --files 5000 --lines 3000   a longer one
  python -m benchmarks.campaign --only files:17             one case again
"""
PARTS: dict[str, Any] = {"files": hostile_files.case, "lines": hostile_lines.case}
RIGHT = ("answered", "refused")
ROOT = Path(__file__).resolve().parents[1]
FORMAT = "campaign 1"


def one(part: str, number: int, seed: int, base: Path, seconds: float) -> dict[str, Any]:
    """Makes one case and runs it: {part, number, what, end, said}."""
    rng = random.Random(f"{part} {number} {seed}")
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        what, run = PARTS[part](base, folder, rng)
        found = sandbox.run(run, folder, seconds)
    if found["end"] == "refused" and not found["said"].startswith("cosformer"):
        found["end"] = "no sentence"
    return {"part": part, "number": number, "seed": seed, "what": what, **found}


def attack(
    wanted: dict[str, int], seed: int, kept: Path, seconds: float = sandbox.SECONDS
) -> list[dict[str, Any]]:
    """All cases that are asked for; those that `kept` has are not run again."""
    torch.set_num_threads(1)  # or a fork would wait for threads that it does not have
    done = {(r["part"], r["number"]): r for r in files.lines(kept) if r["seed"] == seed}
    todo = [(p, n) for p, count in wanted.items() for n in range(count) if (p, n) not in done]
    progress = Progress()
    progress.start(len(todo))
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        base = Path(name) / "whole"
        if todo:
            hostile_files.prepare(base, ROOT)
        for part, number in todo:
            progress.step(f"{part} {number}")
            found = one(part, number, seed, base, seconds)
            done[part, number] = found
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
    progress.end()
    return [done[key] for key in sorted(done) if key[0] in wanted and key[1] < wanted[key[0]]]


def report(found: list[dict[str, Any]], seed: int, commit: dict[str, Any]) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {}
    for part in PARTS:
        own = collections.Counter(r["end"] for r in found if r["part"] == part)
        counts[part] = {"cases": sum(own.values()), **dict(sorted(own.items()))}
    return {
        "format": FORMAT, "seed": seed, "counts": counts,
        "wrong": [r for r in found if r["end"] not in RIGHT],
        "limits": {"seconds": sandbox.SECONDS, "memory_bytes": sandbox.MEMORY},
        "hardware": hardware.hardware(torch.device("cpu")), "versions": hardware.versions(),
        "commit": commit,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }  # fmt: skip


def words(made: dict[str, Any]) -> Iterator[str]:
    for part, counts in made["counts"].items():
        yield f"{part}: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    for r in made["wrong"]:
        yield f"{r['end']}: {r['part']} {r['number']}: {r['what']}\n    {r['said'].strip().splitlines()[-1:]}"


def main(arguments: list[str] | None = None) -> int:
    p = Parser(prog="python -m benchmarks.campaign", description=__doc__, epilog=EXAMPLES)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument("--files", type=positive_int, default=500, help="spoilt files (default: 500)")
    p.add_argument("--lines", type=positive_int, default=300, help="command lines (default: 300)")
    p.add_argument("--seed", type=seed, default=0)
    p.add_argument("--only", help="PART:NUMBER, one case, shown with what it said")
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "reports" / "campaign.json")
    args = p.parse_args(arguments)
    check_out(p, args.out)
    if args.only:
        part, _, number = args.only.partition(":")
        if part not in ("files", "lines") or not number.isdecimal():
            p.error(f"--only wants files:NUMBER or lines:NUMBER, not {args.only}")
        with tempfile.TemporaryDirectory(prefix="campaign-") as name:
            hostile_files.prepare(Path(name) / "whole", ROOT)
            print(
                json.dumps(one(part, int(number), args.seed, Path(name) / "whole", sandbox.SECONDS), indent=1)
            )
        return 0
    kept, commit = args.out.with_suffix(".part.jsonl"), hardware.commit()  # before files are written
    found = attack({"files": args.files, "lines": args.lines}, args.seed, kept)
    made = report(found, args.seed, commit)
    files.write_json(args.out, made)
    kept.unlink(missing_ok=True)
    print("\n".join(words(made)))
    return 1 if made["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
