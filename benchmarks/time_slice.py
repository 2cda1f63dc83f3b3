"""The command line of plans: some minutes of a GPU, filled with the next runs that have no record."""

import argparse
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.plan import NOT_NEEDED, Entry, Record, files_of
from benchmarks.scheduler import Scheduler
from benchmarks.terminal import Parser, plain, seconds, size
from cosformer import atomic, reading, record_file
from cosformer.report import records

Plans = Mapping[str, Callable[[], list[Entry]]]


def parser(prog: str, description: str, plans: Plans) -> Parser:
    p = Parser(prog=prog, description=description)
    p.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    p.add_argument("--minutes", type=float, default=9.0, help="after which nothing runs any more")
    p.add_argument("--plan", default=",".join(plans), help="parts of the plan, in their order of importance")
    p.add_argument(
        "--only", nargs="+", default=[""], metavar="WORDS",
        help="only entries whose name holds one of these; a / ends a part of a name, also behind the last",
    )  # fmt: skip
    p.add_argument(
        "--missing", action="store_true",
        help="only one run for each place of a table that has none yet, and what it needs",
    )  # fmt: skip
    p.add_argument("--jobs", type=int, default=3, help="runs side by side")
    p.add_argument("--memory", type=float, default=120.0, help="GiB of the GPU that they may take together")
    p.add_argument("--out", type=Path, default=Path("runs") / "plan" / "out", help="for records and the log")
    p.add_argument(
        "--folder", type=Path, default=Path("runs") / "plan", help="for what stays until the next call"
    )
    p.add_argument(
        "--results", type=Path, default=machine.ROOT / "results", help="of the records made before"
    )
    p.add_argument(
        "--again", type=Path, metavar="DIR",
        help="make recorded runs again, in this folder instead of --folder, --out and --results; the same "
        "command continues them, and leaves their records in DIR/records.jsonl",
    )  # fmt: skip
    p.add_argument("--grace", type=float, default=25.0, help="seconds of them to write checkpoints in")
    p.add_argument("--last", action="store_true", help="begin nothing that cannot end in time")
    p.add_argument("--retry", action="store_true", help="try again what has failed")
    p.add_argument("--fast", action="store_true", help="compile the models, and capture steps as CUDA graphs")
    p.add_argument("--dry-run", action="store_true", help="show the plan and the data it needs")
    p.add_argument("--collect", type=Path, metavar="FILE", help="add records from elsewhere to --results")
    return p


def main(prog: str, description: str, plans: Plans, arguments: Sequence[str] | None = None) -> None:
    p = parser(prog, description, plans)
    args = p.parse_args(arguments)
    if args.again is not None:
        args.results, args.folder, args.out = args.again / "results", args.again / "runs", args.again
    if args.collect is not None:
        if not args.collect.is_file():
            p.error(f"--collect {args.collect}: there is no such file")
        print(f"{collect(args.collect, args.results)} records are new in {args.results}")
        return
    chosen = args.plan.split(",")
    unknown = [name for name in chosen if name not in plans]
    if unknown:
        p.error(f"--plan has no part {unknown[0]!r}: there are {', '.join(plans)}")
    if args.jobs < 1 or args.minutes <= 0:
        p.error("--jobs and --minutes must be positive")
    built = {name: plan() for name, plan in plans.items()}
    for words in args.only:
        if not select(built, chosen, [words]):
            p.error(f"--only {words!r}: no run of {', '.join(chosen)} has these words in its name")
    known = _known(args.results)
    failures = records.failures(args.results)
    entries = select(
        built, chosen, args.only, known if args.missing else None, () if args.retry else failures
    )
    scheduler = Scheduler(
        entries, args.folder, args.out, known, args.jobs, args.memory,
        time.monotonic() - age() + 60 * args.minutes, args.grace, not args.last, args.retry, args.fast,
        failures,
    )  # fmt: skip
    if args.dry_run:
        print(overview(scheduler, args.jobs))
        return
    scheduler.work()
    print(outcome(scheduler))


def select(
    plans: Mapping[str, list[Entry]],
    parts: Sequence[str],
    only: Sequence[str],
    known: Sequence[Record] | None = None,
    failed: Collection[str] = (),
) -> list[Entry]:
    """The entries of some parts whose names hold some of the words of `only`; before each what it needs:
    learning rates that are tried first, and what it starts from. Beside `known` records the first entry of
    each place that has none, and that has not `failed`."""
    found: dict[str, Entry] = {}
    filled = {tuple(r["experiment"][name] for name in ("plan", "column", "row")) for r in known or ()}
    every = {e.name: e for entries in plans.values() for e in entries}

    def add(entry: Entry) -> None:
        needed = [every[name] for name in entry.tries if name in every]
        for other in (*needed, entry.initial):
            if other is not None:
                add(other)
        found[entry.name] = entry

    for part in parts:
        for entry in plans[part]:
            place = (entry.plan, entry.column, entry.row)
            left_out = known is not None and (place in filled or entry.name in failed)
            if any(words in f"{entry.name}/" for words in only) and not left_out:
                add(entry)
                filled.add(place)
    return list(found.values())


def _known(folder: Path) -> list[Record]:
    return [r for r in records.runs(folder) if "experiment" in r] if folder.is_dir() else []


def overview(scheduler: Scheduler, jobs: int) -> str:
    """The plan: what is recorded, what could be run, what waits for what, and the data files."""
    ready = [entry for entry, _ in scheduler.look()]
    rows = [[e.name, f"{e.seconds:.0f}", f"{e.memory:g}", scheduler.state[e.name]] for e in scheduler.entries]
    header = ("run", "seconds alone", "GiB", "state")
    waiting = [e for e in scheduler.entries if scheduler.state[e.name].startswith("waits")]
    # Of the further seeds of a place only those of its best settings will be made.
    after = {(e.plan, e.column, e.row, e.overrides.get("seed")) if e.repeats else e.name for e in waiting}
    alone = sum(e.seconds for e in ready)
    busy = sum(e.seconds * e.load for e in ready)
    parts = [
        plain(header, rows, figures=False),
        f"{len(ready)} runs to be made now, {len(after)} after others; alone {alone / 60:.0f} minutes, "
        f"with {jobs} side by side about {max(busy, alone / jobs) / 60:.0f}.",
        data([*ready, *waiting]),
    ]
    return "\n\n".join(parts)


def data(entries: Sequence[Entry]) -> str:
    """The files under COSFORMER_DATA that the entries read, and their sizes."""
    root, names = os.environ.get("COSFORMER_DATA"), files_of(entries)
    sizes = [(Path(root) / name).stat().st_size if root and (Path(root) / name).is_file() else None
             for name in names]  # fmt: skip
    lines = [
        f"  {name}  {size(n) if n is not None else 'not found'}" for name, n in zip(names, sizes, strict=True)
    ]
    total = sum(n or 0 for n in sizes)
    return "\n".join(["Data files under COSFORMER_DATA:", *lines, f"  in all {total / 2**20:.1f} MiB"])


def outcome(scheduler: Scheduler) -> str:
    """A short table of what was made, and in a line or two what was not."""
    scheduler.look()
    rows = []
    for name in scheduler.finished:
        r = scheduler.records[name]
        metric = r["metric"]
        rows.append(
            [
                name, metric["name"], f"{metric['valid'][metric['name']]:.4f}",
                f"{metric['test'][metric['name']]:.4f}", f"{r['parameters'] / 1e6:.2f}",
                f"{r['tokens_per_s'] or 0:,.0f}", seconds(r["wall_time_s"]), size(r["peak_memory_bytes"]),
            ]
        )  # fmt: skip
    header = ("run", "metric", "valid", "test", "M parameters", "tokens/s", "time", "memory")
    rest = [
        f"{e.name}: {scheduler.state[e.name]}"
        for e in scheduler.entries
        if scheduler.state[e.name] not in ("recorded", "to be run")
        and not scheduler.state[e.name].startswith(NOT_NEEDED)
    ]
    count = sum(scheduler.state[e.name] == "to be run" for e in scheduler.entries)
    return "\n".join([plain(header, rows), *rest, f"{len(rows)} runs made, {count} still to be run."])


def age() -> float:
    """Seconds since this process began, imports included; 0 where the system does not say."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def collect(path: Path, results: Path) -> int:
    """Adds the records of a file to those of the project, each once: one file for each plan. So it does with
    the failures that lie beside them."""
    found, failures = reading.json_lines(path), path.with_name("failures.json")
    if failures.is_file():
        known = records.failures(results) | reading.json_file(failures)
        made = {r["experiment"]["name"] for r in found}
        atomic.write_json(results / records.FAILURES, {k: v for k, v in known.items() if k not in made})
    return sum(
        record_file.append_once(results / f"plan-{r['experiment']['plan']}.jsonl", r, "id") for r in found
    )  # fmt: skip
