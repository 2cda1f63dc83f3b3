"""Time and peak memory of cosFormer attention against sequence length, beside softmax attention and
the other ways to compute cosFormer. Writes a report: JSON (everything), Markdown and a plot."""

import os
import sys

# Run as a file, this folder would come first on the path and this file would pass for the standard
# library's `operator`; the packages beside this folder are what is wanted.
if not __package__:
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(_here)] + [p for p in sys.path if os.path.abspath(p or ".") != _here]

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import decoding, machine, memory
from benchmarks.contenders import MODES, PHASES, Contender, Shape, Work, find
from benchmarks.gate import admit
from benchmarks.gpu_targets import targets
from benchmarks.record import earlier, new_record, publish
from benchmarks.targets import missed, verdict
from benchmarks.terminal import Parser, Progress
from benchmarks.timing import ROUNDS, Case, profile, race
from cosformer.atomic import write_json
from cosformer.report.document import Document
from cosformer.report.sections import operator_cpu, operator_gpu
from cosformer.report.write import write_beside

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
QUICK = (256, 1024, 4096)
DTYPES = ("float32", "float64", "bfloat16", "float16")

EXAMPLES = """examples:
  python -m benchmarks.attention_operator                     the whole report on this CPU
  python -m benchmarks.attention_operator --quick --out try   a first impression: three lengths
  python -m benchmarks.attention_operator --device cuda       the promises made for a GPU, in bfloat16
  python -m benchmarks.attention_operator --lengths 1024,4096 --seconds 10 --no-memory
  python -m benchmarks.attention_operator --render benchmarks/reports/operator-cpu-20260101.json
"""


def parser() -> Parser:
    p = Parser(
        prog="python -m benchmarks.attention_operator",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    p.add_argument("--dtype", default="float32", choices=DTYPES, help="of q, k and v (default: float32)")
    p.add_argument("--lengths", metavar="T,T,...", help=f"default: {','.join(map(str, LENGTHS))}")
    p.add_argument("--heads", type=int, default=8, help="default: 8")
    p.add_argument("--dim", type=int, default=64, help="of a head (default: 64)")
    p.add_argument("--batch", type=int, default=1, help="default: 1")
    p.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    p.add_argument("--seconds", type=float, help="time budget of one case (default: 2; 0.1 with --quick)")
    p.add_argument(
        "--quick", action="store_true", help=f"lengths {','.join(map(str, QUICK))}, little repetition"
    )
    p.add_argument("--out", type=Path, help="folder of the reports (default: benchmarks/reports)")
    p.add_argument("--no-memory", action="store_true", help="leave out the memory measurements")
    p.add_argument(
        "--render", type=Path, metavar="FILE.json", help="write report and plot of an earlier run again"
    )
    return p


def device_for(p: Parser, name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        p.error(f"--device {name} is not a device; expected cpu, cuda or cuda:N")
    if device.type not in ("cpu", "cuda"):
        p.error(f"--device {name} is not supported; expected cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        p.error(f"--device {name}: PyTorch sees {torch.cuda.device_count()} CUDA devices here")
    return device


def settings(p: Parser, args: argparse.Namespace) -> tuple[Shape, list[int]]:
    """The shape to measure and its lengths; every mistake of the user's is found here."""
    device = device_for(p, args.device)
    for name in ("heads", "dim", "batch", "threads", "seconds"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            p.error(f"--{name} must be positive, got {value}")
    try:
        given = args.lengths.split(",") if args.lengths else QUICK if args.quick else LENGTHS
        lengths = sorted({int(t) for t in given})
    except ValueError:
        lengths = [0]
    if lengths[0] < 1:
        p.error(f"--lengths wants positive whole numbers separated by commas, got {args.lengths}")
    if args.threads:
        torch.set_num_threads(args.threads)
    return Shape(args.batch, lengths[0], args.heads, args.dim, getattr(torch, args.dtype), device), lengths


def plan(
    contenders: list[Contender],
    shape: Shape,
    lengths: list[int],
    memory_limit: int,
) -> tuple[list[Case], list[dict[str, Any]]]:
    """The cases to time, and a record for each that is left out, with the reason."""
    cases, left_out = [], []
    for length in lengths:
        for mode in MODES:
            for phase in PHASES:
                for c in contenders:
                    at = replace(shape, length=length)
                    why = c.refuses(at, mode, memory_limit)
                    if why is None:
                        cases.append(Case(c, at, mode, phase))
                    elif why:
                        left_out.append({**Case(c, at, mode, phase).key(), "skipped": why})
    return cases, left_out


def explain(data: dict[str, Any], contender: Contender, shape: Shape) -> list[dict[str, Any]]:
    """A profile for each case behind a missed target."""
    behind: dict[tuple[str, int], list[str]] = {}
    for target in missed(operator_cpu.Results(data)) if shape.device.type == "cpu" else []:
        if target.explained_by:
            behind.setdefault(target.explained_by, []).append(target.says)
    records = []
    for (mode, length), said in behind.items():
        if mode == "decoding":
            work, _ = decoding.decoder(shape, length)
            case = f"decoding {decoding.TOKENS} tokens at position {length:,}"
        else:
            work = Work(contender, replace(shape, length=length).inputs(), mode, memory.PHASE)
            case = f"{mode}, {memory.PHASE}, T = {length:,}"
        records.append({"case": case, "missed": said, "operations": profile(work, shape.device)})
    return records


def command(arguments: list[str]) -> str:
    """How to get these figures again; where they were written does not matter for that."""
    kept = [
        a
        for before, a in zip(["", *arguments], arguments, strict=False)
        if before != "--out" and not a.startswith("--out")
    ]
    return shlex.join(["python", "-m", "benchmarks.attention_operator", *kept])


def measure(args: argparse.Namespace, shape: Shape, lengths: list[int], progress: Progress) -> dict[str, Any]:
    seconds = args.seconds or (0.1 if args.quick else 2.0)
    rounds = 2 if args.quick else ROUNDS
    contenders, absent = find(shape)
    admitted, verdicts = admit(contenders, shape)
    memory_limit = machine.memory_limit(shape.device) // (4 if args.quick else 1)
    cases, left_out = plan(admitted, shape, lengths, memory_limit)
    data = new_record(shape, lengths, contenders, absent)
    data["command"] = command(sys.argv[1:])
    data["settings"] |= {"seconds": seconds, "rounds": rounds, "memory_limit_bytes": memory_limit}
    data["gate"] = verdicts
    others = machine.Others()
    data["timings"] = race(cases, seconds, progress, rounds) + left_out
    data["others_share"] = others.share()
    if not args.no_memory:
        skipped = [x for x in left_out if x["phase"] == memory.PHASE]
        # Each is a process that imports torch first: a first impression looks at the longest alone.
        looked_at = [c for c in cases if not args.quick or c.shape.length == lengths[-1]]
        data["memory"] = memory.measure_all(looked_at, progress) + skipped
    ours = next((c for c in admitted if c.name == "cosformer"), None)
    if ours:
        data["decoding"] = decoding.measure(shape, progress)
        data["profiles"] = explain(data, ours, shape)
    return data


def refuse_shapes(p: Parser, args: argparse.Namespace) -> None:
    """The promises made for a GPU have shapes of their own."""
    for name in ("dtype", "lengths", "heads", "dim", "batch", "threads", "quick", "no_memory"):
        if getattr(args, name) != p.get_default(name):
            p.error(
                f"--{name.replace('_', '-')} is for a CPU: on a GPU the promised shapes are measured, all of "
                "them in bfloat16. Leave it out; --seconds makes a run shorter."
            )


def on_gpu(args: argparse.Namespace, shape: Shape, folder: Path) -> None:
    """Everything that is promised for a GPU."""
    from benchmarks import gpu

    shape = replace(shape, heads=gpu.HEADS, dtype=torch.bfloat16)
    data = new_record(shape, list(gpu.LENGTHS), [], {})
    data |= {"format": operator_gpu.FORMAT, "command": command(sys.argv[1:])}
    stem = f"operator-cuda-{data['date'][:10].replace('-', '')}"
    done = begun(folder / f"{stem}.json", data)
    if done is not None:
        data = done
        print(f"Goes on with {folder / stem}.json, which has {len(data['gpu']['parts'])} parts.")

    def save(found: dict[str, Any]) -> None:
        write_json(folder / f"{stem}.json", data | {"gpu": found})

    try:
        data["gpu"] = gpu.measure(shape, args.seconds or 0.15, Progress(), save, data.get("gpu"))
    except KeyboardInterrupt:
        if begun(folder / f"{stem}.json", data) is None:
            sys.exit("\nStopped; nothing was kept that could be gone on with.")
        sys.exit(f"\nStopped; the same command goes on with {folder / stem}.json.")
    publish(data, document, folder / f"{stem}.json")


def begun(path: Path, new: dict[str, Any]) -> dict[str, Any] | None:
    """Today's record of the same commit, GPU and versions, if a run left it unfinished: what it has is not
    measured again."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        unfinished = not data["gpu"]["finished"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    same = ("format", "commit", "versions", "settings")
    if any(data.get(key) != new[key] for key in same) or data["hardware"].get("gpu") != new["hardware"].get(
        "gpu"
    ):
        return None
    return data if unfinished and not new["commit"]["dirty"] else None


def document(data: dict[str, Any]) -> Document:
    """The report of either kind of record, with the promises made for it."""
    if data["format"] == operator_gpu.FORMAT:
        return operator_gpu.document(data, targets(data))
    return operator_cpu.document(data, *verdict(data))


def folder_for(p: Parser, folder: Path) -> Path:
    """Made where it is missing, before minutes are spent on what could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        p.error(f"--out {folder} cannot be used: {error.strerror}")
    if not os.access(folder, os.W_OK):
        p.error(f"--out {folder} cannot be written to")
    return folder


def main() -> None:
    p = parser()
    args = p.parse_args()
    if args.render:
        data = earlier(p, args.render, operator_cpu.FORMAT, operator_gpu.FORMAT)
        folder = folder_for(p, args.out or args.render.parent)
        try:
            print(*write_beside(document(data), folder / args.render.name), sep="\n")
        except (KeyError, TypeError) as error:
            p.error(f"--render {args.render} is not a whole record of this benchmark: {error} is not in it")
        return
    shape, lengths = settings(p, args)
    if shape.device.type == "cuda":
        refuse_shapes(p, args)
    folder = folder_for(p, args.out or Path(__file__).resolve().parent / "reports")
    if shape.device.type == "cuda":
        on_gpu(args, shape, folder)
        return
    data = measure(args, shape, lengths, Progress())
    path = folder / f"operator-{shape.device.type}-{data['date'][:10].replace('-', '')}.json"
    publish(data, document, path)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped; nothing was written.")
