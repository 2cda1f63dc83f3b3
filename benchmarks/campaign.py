"""Attacks on what is promised, with drawn cases: spoilt files and command lines with mistakes, calls of the
operator against the paper's equation, and faults in training.

Every case is drawn from a seed and its number. Files and command lines run in a process of their own with a
limit of memory and of time, without a network; training in forks that faults strike. A campaign that is
stopped goes on where it was. Its report has the counts, and every case that ended as none may: in a
traceback, a hang, a kill, a question, a connection, with code run, a wrong number, a run that is lost or that
ended otherwise.
"""

import argparse
import collections
import datetime
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import drawn_calls, hostile_files, hostile_lines, sandbox, training_faults
from benchmarks.record import check_out
from benchmarks.terminal import Parser, Progress
from cosformer import atomic, reading
from cosformer import machine as hardware
from cosformer.cli.parser import positive_int, seed

EXAMPLES = """examples:
  python -m benchmarks.campaign                                all of it: an hour on one core
  python -m benchmarks.campaign --parts operator,faults        two parts; the record keeps the others
  python -m benchmarks.campaign --parts files --files 5000     a longer one
  python -m benchmarks.campaign --only files:17                one case again
  python -m benchmarks.campaign --again                        those that are recorded as wrong, mended now
"""
ROOT = Path(__file__).resolve().parents[1]
FORMAT = "cosformer campaign 2"
SECONDS = sandbox.SECONDS


@dataclass(frozen=True)
class Part:
    """cases: how many of `unit` are drawn unless said otherwise, `each` of them in a case. run(base, folder,
    number, generator, seconds) makes a case and says how it ended, {what, end, said}, and what it was of:
    `kinds`. prepare makes in `base` what all cases of the part start from."""

    unit: str
    cases: int
    right: tuple[str, ...]
    run: Callable[[Path, Path, int, random.Random, float], dict[str, Any]]
    prepare: Callable[[Path], None] = lambda base: None
    each: int = 1
    limits: dict[str, float] | None = None


def _sandboxed(case: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A case in a process of its own; a refusal is a sentence of the command."""

    def run(base: Path, folder: Path, number: int, rng: random.Random, seconds: float) -> dict[str, Any]:
        what, call = case(base / "files", folder, rng)
        found = sandbox.run(call, folder, seconds)
        if found["end"] == "refused" and not found["said"].startswith("cosformer"):
            found["end"] = "no sentence"
        return {"what": what, **found}

    return run


def _files(base: Path) -> None:
    if not (base / "files").exists():
        hostile_files.prepare(base / "files", ROOT)


_SANDBOX = {"seconds": SECONDS, "memory_bytes": sandbox.MEMORY}
PARTS = {
    "files": Part("spoilt files", 500, ("answered", "refused"), _sandboxed(hostile_files.case), _files,
                  limits=_SANDBOX),
    "lines": Part("command lines", 300, ("answered", "refused"), _sandboxed(hostile_lines.case), _files,
                  limits=_SANDBOX),
    "operator": Part("calls of the operator", 10_000, ("right",),
                     lambda base, folder, number, rng, seconds: drawn_calls.run(number, rng, seconds),
                     limits={"seconds": SECONDS}),
    "faults": Part("faults in training", 2_000, ("identical",),
                   lambda base, folder, number, rng, seconds: training_faults.run(base / "runs", folder, rng),
                   lambda base: training_faults.prepare(base / "runs"), each=training_faults.FAULTS,
                   limits={"seconds": training_faults.SECONDS}),
}  # fmt: skip


def one(part: str, number: int, seed: int, base: Path, seconds: float) -> dict[str, Any]:
    """Makes one case and runs it: {part, number, what, end, said, kinds}."""
    rng = random.Random(f"{part} {number} {seed}")
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as name:
        found = PARTS[part].run(base, Path(name), number, rng, seconds)
    return {"part": part, "number": number, "seed": seed, **found}


def attack(wanted: dict[str, int], seed: int, kept: Path, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """All cases that are asked for; those that `kept` has are not run again."""
    torch.set_num_threads(1)  # or a fork would wait for threads that it does not have
    done = {(r["part"], r["number"]): r for r in reading.json_lines(kept) if r["seed"] == seed}
    todo = [(p, n) for p, count in wanted.items() for n in range(count) if (p, n) not in done]
    progress = Progress()
    progress.start(len(todo))
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as name:
        for part in dict.fromkeys(p for p, _ in todo):
            PARTS[part].prepare(Path(name))
        for part, number in todo:
            progress.step(f"{part} {number}")
            began = time.monotonic()
            found = one(part, number, seed, Path(name), seconds)
            found["seconds"] = round(time.monotonic() - began, 3)
            done[part, number] = found
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
    progress.end()
    return [done[key] for key in sorted(done) if key[0] in wanted and key[1] < wanted[key[0]]]


def report(part: str, found: list[dict[str, Any]], seed: int, commit: dict[str, Any]) -> dict[str, Any]:
    """The record of one part."""
    ends = collections.Counter(r["end"] for r in found)
    kinds = collections.Counter(kind for r in found for kind in r.get("kinds", ()))
    return {
        "seed": seed, "cases": len(found), "ends": dict(sorted(ends.items())),
        "kinds": dict(sorted(kinds.items())), "limits": PARTS[part].limits,
        "wrong": [r for r in found if r["end"] not in PARTS[part].right],
        "seconds": round(sum(r.get("seconds", 0.0) for r in found), 1),
        "hardware": hardware.hardware(torch.device("cpu")), "versions": hardware.versions(),
        "commit": commit, "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }  # fmt: skip


def words(made: dict[str, Any]) -> Iterator[str]:
    for part, told in made["parts"].items():
        counts = {**told["ends"], **told["kinds"]}
        yield f"{part}: {told['cases']:,} cases: " + ", ".join(f"{n:,} {name}" for name, n in counts.items())
        for r in told["wrong"]:
            yield f"{r['end']}: {part} {r['number']}: {r['what']}\n    {r['said'].strip().splitlines()[-1:]}"


def _known(out: Path) -> dict[str, Any]:
    """The parts that a record has already."""
    try:
        made = json.loads(out.read_text(encoding="utf-8"))
        return dict(made["parts"]) if made["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def main(arguments: list[str] | None = None) -> int:
    p = Parser(prog="python -m benchmarks.campaign", description=__doc__, epilog=EXAMPLES)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)} (default: all)")
    for name, part in PARTS.items():
        p.add_argument(f"--{name}", type=positive_int, default=part.cases, metavar="N",
                       help=f"{part.unit} (default: {part.cases:,})")  # fmt: skip
    p.add_argument("--seed", type=seed, default=0)
    p.add_argument("--only", metavar="PART:NUMBER", help="one case, shown with what it said")
    p.add_argument("--again", action="store_true", help="run the cases once more that are recorded as wrong")
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "reports" / "campaign.json")
    args = p.parse_args(arguments)
    check_out(p, args.out)
    parts = args.parts.split(",")
    for name in parts:
        if name not in PARTS:
            p.error(f"--parts: there is no part {name!r}; there are {', '.join(PARTS)}")
    if args.only:
        return _only(p, args)
    kept, commit = args.out.with_suffix(".part.jsonl"), hardware.commit()  # before files are written
    if args.again:
        return _write(args.out, again(_known(args.out), commit))
    wanted = {name: -(-getattr(args, name) // PARTS[name].each) for name in PARTS if name in parts}
    found = attack(wanted, args.seed, kept)
    new = {name: report(name, [r for r in found if r["part"] == name], args.seed, commit) for name in wanted}
    code = _write(args.out, _known(args.out) | new)
    others = [line for line in reading.json_lines(kept) if line["part"] not in wanted]
    atomic.replace(kept, "".join(json.dumps(line) + "\n" for line in others))
    if not others:
        kept.unlink()
    return code


def again(parts: dict[str, Any], commit: dict[str, Any]) -> dict[str, Any]:
    """The parts of a record, with every case that was wrong as it ends now; `again` says which and when."""
    torch.set_num_threads(1)
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as name:
        for part, told in parts.items():
            before, told["wrong"] = told["wrong"], []
            if before:
                PARTS[part].prepare(Path(name))
            for was in before:
                found = one(part, was["number"], was["seed"], Path(name), SECONDS)
                ends = collections.Counter(told["ends"])
                ends.subtract([was["end"]])
                ends.update([found["end"]])
                told["ends"] = {end: count for end, count in sorted(ends.items()) if count}
                told["wrong"] += [] if found["end"] in PARTS[part].right else [found]
                was_then = {name: was[name] for name in ("number", "end", "what")}
                told.setdefault("again", []).append(
                    {**was_then, "now": found["end"], "commit": commit, "date": now}
                )
    return parts


def _write(out: Path, parts: dict[str, Any]) -> int:
    """Writes and tells the record; 1 where something is wrong."""
    told = {name: parts[name] for name in PARTS if name in parts}
    made = {
        "format": FORMAT,
        "date": max((part["date"] for part in told.values()), default=""),
        "parts": told,
    }
    atomic.write_json(out, made)
    print("\n".join(words(made)))
    return 1 if any(part["wrong"] for part in told.values()) else 0


def _only(p: Parser, args: argparse.Namespace) -> int:
    part, _, number = args.only.partition(":")
    if part not in PARTS or not number.isdecimal():
        p.error(f"--only wants PART:NUMBER, of the parts {', '.join(PARTS)}, not {args.only}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as name:
        PARTS[part].prepare(Path(name))
        print(json.dumps(one(part, int(number), args.seed, Path(name), SECONDS), indent=1))
    return 0


def _with_interpreter() -> None:
    """Begins again with Triton's interpreter, which has to be chosen before anything is imported."""
    wanted = importlib.util.find_spec("triton") is not None and not torch.cuda.is_available()
    if wanted and os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.campaign", *sys.argv[1:]])


if __name__ == "__main__":
    _with_interpreter()
    sys.exit(main())
