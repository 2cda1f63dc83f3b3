"""Time, peak memory and state of every registered attention against sequence length, and how they grow
beside what each claims. Writes a report: JSON (everything), Markdown and a plot."""

import argparse
import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, memory
from benchmarks.attention_cases import examine, find, state_numbers
from benchmarks.attention_operator import DTYPES, folder_for, settings
from benchmarks.contenders import MODES, PHASES, Contender, Shape
from benchmarks.record import earlier, new_record, publish
from benchmarks.terminal import Parser, Progress
from benchmarks.timing import ROUNDS, Case, race
from cosformer import attention
from cosformer.report.sections.attention import FORMAT, document
from cosformer.report.write import write_beside

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
LONGEST_UNMEASURED = 4096  # for what is not linear, where nobody has looked at its memory first

EXAMPLES = """examples:
  python -m benchmarks.attention                          the whole report on this CPU
  python -m benchmarks.attention --only cosformer,relu --lengths 512,1024 --quick --out try
  python -m benchmarks.attention --device cuda --dtype bfloat16 --batch 4 --heads 16
"""


def parser() -> Parser:
    p = Parser(
        prog="python -m benchmarks.attention",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    p.add_argument("--dtype", default="float32", choices=DTYPES, help="of q, k and v (default: float32)")
    p.add_argument("--lengths", default=",".join(map(str, LENGTHS)), metavar="T,T,...", help="tokens")
    p.add_argument("--only", metavar="NAME,NAME,...", help="these attentions (default: all)")
    p.add_argument("--heads", type=int, default=8, help="default: 8")
    p.add_argument("--dim", type=int, default=64, help="of a head (default: 64)")
    p.add_argument("--batch", type=int, default=1, help="default: 1")
    p.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    p.add_argument("--seconds", type=float, help="time for each case (default: 1, with --quick 0.1)")
    p.add_argument("--quick", action="store_true", help="little repetition")
    p.add_argument("--out", type=Path, help="folder of the reports (default: benchmarks/reports)")
    p.add_argument(
        "--no-memory", action="store_true",
        help=f"leave memory out; what is not linear is then timed up to {LONGEST_UNMEASURED}",
    )  # fmt: skip
    p.add_argument("--render", type=Path, metavar="FILE.json", help="write report and plot of an earlier run")
    return p


def chosen(p: Parser, only: str | None, shape: Shape) -> list[Contender]:
    found, _ = find(shape)
    if only is None:
        return found
    wanted = only.split(",")
    for name in wanted:
        if name not in attention.names():
            p.error(f"--only {name} is not an attention; there are {', '.join(attention.names())}")
    return [c for c in found if c.name in wanted]


def measure_memory(
    contenders: list[Contender], shape: Shape, lengths: list[int], limit: int, progress: Progress
) -> list[dict[str, Any]]:
    """From short to long; what by its growth so far would not fit is not tried."""
    records = []
    progress.start(len(contenders) * len(MODES) * len(lengths))
    for contender in contenders:
        for mode in contender.modes:
            known: list[tuple[int, float]] = []
            for length in lengths:
                case = Case(contender, replace(shape, length=length), mode, memory.PHASE)
                progress.step(f"memory: {contender.name}, {mode}, T = {length}")
                expected = predict(known, length)
                if expected > limit:
                    words = f"skipped: needs {expected / 2**30:.0f} GiB"
                    records.append({**case.key(), "skipped": words})
                    continue
                records.append(memory.measure(case))
                if "extra_bytes" in records[-1]:
                    known.append((length, records[-1]["extra_bytes"]))
    progress.end()
    return records


def predict(known: list[tuple[int, float]], length: int) -> float:
    """The power law through the last two points, taken further; 0 where there is none yet."""
    if not known:
        return 0.0
    (t1, m1), (t0, m0) = known[-1], known[-2] if len(known) > 1 else (0, 0.0)
    power = math.log(m1 / m0) / math.log(t1 / t0) if t0 and m0 > 0 and m1 > m0 else 1.0
    return m1 * (length / t1) ** power


def plan(
    contenders: list[Contender], shape: Shape, lengths: list[int], measured: list[dict[str, Any]] | None
) -> tuple[list[Case], list[dict[str, Any]]]:
    """The cases to time, and a record for each that is left out, with the reason."""
    skipped = {
        (m["contender"], m["mode"], m["length"]): m["skipped"] for m in measured or [] if "skipped" in m
    }
    cases, left_out = [], []
    for length in lengths:
        for c in contenders:
            for mode in c.modes:
                why = skipped.get((c.name, mode, length))
                if (
                    measured is None
                    and length > LONGEST_UNMEASURED
                    and attention.traits(c.name).cost != "linear"
                ):
                    why = f"skipped: timed up to {LONGEST_UNMEASURED} where memory is not measured"
                for phase in PHASES:
                    case = Case(c, replace(shape, length=length), mode, phase)
                    if why is None:
                        cases.append(case)
                    else:
                        left_out.append({**case.key(), "skipped": why})
    return cases, left_out


def measure(
    args: argparse.Namespace, found: list[Contender], shape: Shape, lengths: list[int]
) -> dict[str, Any]:
    progress = Progress()
    seconds, rounds = args.seconds or (0.1 if args.quick else 1.0), 2 if args.quick else ROUNDS
    data = new_record(shape, lengths, found, {})
    data |= {"format": FORMAT, "costs": {c.name: attention.traits(c.name).cost for c in found}}
    kept = [a for a in sys.argv[1:] if not a.startswith("--out") and a != str(args.out)]
    data["command"] = shlex.join(["python", "-m", "benchmarks.attention", *kept])
    limit = machine.memory_limit(shape.device)
    data["settings"] |= {"seconds": seconds, "rounds": rounds, "memory_limit_bytes": limit}
    data["gate"] = [examine(c, shape) for c in found]
    failed = {v["contender"] for v in data["gate"] if v["verdict"] != "passed"}
    admitted = [c for c in found if c.name not in failed]
    measured = None if args.no_memory else measure_memory(admitted, shape, lengths, limit, progress)
    data["memory"] = measured or []
    cases, left_out = plan(admitted, shape, lengths, measured)
    others = machine.Others()
    data["timings"] = race(cases, seconds, progress, rounds) + left_out
    data["others_share"] = others.share()
    data["states"] = {}
    for c in found:
        sizes = {str(t): state_numbers(c.name, replace(shape, length=t)) for t in lengths}
        data["states"][c.name] = None if None in sizes.values() else sizes
    return data


def main() -> None:
    p = parser()
    args = p.parse_args()
    if args.render:
        data = earlier(p, args.render, FORMAT)
        folder = folder_for(p, args.out or args.render.parent)
        print(*write_beside(document(data), folder / args.render.name), sep="\n")
        return
    shape, lengths = settings(p, args)
    found = chosen(p, args.only, shape)
    folder = folder_for(p, args.out or Path(__file__).resolve().parent / "reports")
    data = measure(args, found, shape, lengths)
    path = folder / f"attention-{shape.device.type}-{data['date'][:10].replace('-', '')}.json"
    publish(data, document, path)


if __name__ == "__main__":
    if not __package__:
        sys.exit("Run it as a module, from the root of the project: python -m benchmarks.attention")
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; nothing was written.")
