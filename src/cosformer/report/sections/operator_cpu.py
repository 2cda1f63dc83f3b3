"""The operator on a CPU: time and memory against the length, its promises, and the checks of correctness."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cosformer.report.document import GUIDE, Block, Document, Figure, Line, Plot, Section, Table, Text
from cosformer.report.sections.common import (
    MODES,
    PHASE,
    PHASES,
    Record,
    again,
    cell,
    disturbance,
    hardware_words,
    lines,
    log_plot,
    settings_section,
    source,
    threads_words,
)
from cosformer.terminal import seconds, size, times

FORMAT = "cosformer operator benchmark 1"
# Plotted on the page, in this order and these colours; the full report plots all.
KNOWN = {"cosformer": ("cosFormer", 0), "sdpa": ("softmax", 1), "authors": ("authors' form", 2)}
_COLOURS = {"cosformer": 0, "sdpa": 1, "authors": 2, "fast-transformers": 3, "causal_dot_product": 7}
BUSY = " The times are too high, those made of many small operations most; repeat it on an idle machine."
GATE = (
    "Values and gradients against the quadratic form in float64. An implementation whose error is more than "
    "twice that of the quadratic form in the same dtype is not timed."
)


class Results:
    """Look-ups in the record of a run."""

    def __init__(self, data: Record):
        self.data = data
        self.settings: Record = data["settings"]
        self._timings = {self._key(t): t for t in data["timings"]}
        self._memory = {self._key(m): m for m in data["memory"]}

    @staticmethod
    def _key(record: Record) -> tuple[Any, ...]:
        return record["contender"], record["mode"], record["phase"], record["length"]

    def timing(self, contender: str, mode: str, phase: str, length: int) -> Record | None:
        return self._timings.get((contender, mode, phase, length))

    def time(self, contender: str, mode: str, length: int, phase: str = PHASE) -> float | None:
        return (self.timing(contender, mode, phase, length) or {}).get("median_s")

    def memory(self, contender: str, mode: str, length: int) -> Record | None:
        return self._memory.get((contender, mode, PHASE, length))

    def extra(self, contender: str, mode: str, length: int) -> float | None:
        return (self.memory(contender, mode, length) or {}).get("extra_bytes")

    def decoding(self, position: int, field: str) -> float | None:
        return next((d[field] for d in self.data["decoding"] if d["position"] == position), None)


def section(record: Record) -> Section:
    """For the page."""
    title = f"The operator on a CPU: {hardware_words(record)}"
    return Section(title, [*plots(record, KNOWN), source(record)], "operator-cpu")


def plots(record: Record, known: dict[str, tuple[str, int]]) -> list[Plot]:
    """Time, causal and bidirectional, and causal peak memory: whichever the record has points for."""
    found = []
    for mode in MODES:
        own = [t for t in record["timings"] if (t["mode"], t["phase"]) == (mode, PHASE)]
        title = f"{mode.capitalize()}: time, forward and backward"
        says = "cosFormer doubles with the length, softmax quadruples: the lines part."
        found.append(log_plot(f"cpu-{mode}", title, lines(own, known, "median_s"), "time of a call", says))
    own = [m for m in record["memory"] if m["mode"] == "causal"]
    title, says = "Causal: peak extra memory, forward and backward", "peak extra memory"
    caption = (
        "Beyond q, k, v and the incoming gradient; the authors' causal form keeps a matrix for each token."
    )
    drawn = lines(own, known, "extra_bytes")
    found.append(log_plot("cpu-memory", title, drawn, says, caption, y_unit="bytes"))
    return [plot for plot in found if plot.lines]


def figure(data: Record) -> list[Figure]:
    """Every contender, with faint lines of slope one under ours and slope two over softmax."""
    raced = [name for name in data["contenders"] if name != "cosformer[reference]"]  # a judge, no rival
    others = [name for name in raced if name not in _COLOURS]
    colours = _COLOURS | {name: 4 + i + (i > 2) for i, name in enumerate(others)}
    drawn = plots(data, {name: (data["contenders"][name], colours[name]) for name in raced})
    ours, softmax = (data["contenders"].get(name) for name in ("cosformer", "sdpa"))
    for number, plot in enumerate(drawn):
        guides = [_guide(line, 1, 1 / 1.8, "∝ T") for line in plot.lines if line.name == ours]
        if plot.y_unit == "seconds":
            guides += [_guide(line, 2, 1.8, "∝ T²") for line in plot.lines if line.name == softmax]
        drawn[number] = replace(plot, lines=[*plot.lines, *guides])
    heading = f"Attention against sequence length: {shape_words(data['settings'])}, {threads_words(data)}"
    return [Figure("Time and peak memory against sequence length", drawn, heading)] if drawn else []


def _guide(line: Line, power: int, shift: float, says: str) -> Line:
    """A power of the length through the last point, moved up or down by a factor."""
    (x0, _), (x1, y1) = line.points[-min(4, len(line.points))], line.points[-1]
    return Line(says, [(x0, y1 * shift * (x0 / x1) ** power), (x1, y1 * shift)], GUIDE)


def document(data: Record, said: str, promises: Sequence[Sequence[str]]) -> Document:
    """Everything, beside the record; what is said about the promises, and a row for each, is the
    benchmark's."""
    subtitle = (
        f"{shape_words(data['settings'])}, on {threads_words(data)}. Times are medians over interleaved "
        "rounds of one process, *growth* the factor from half the length. *forward* runs without autograd; "
        "*forward+backward* includes the gradients of q, k and v."
    )
    title = f"The operator: time and memory, {data['date'][:10]}"
    opening: list[Block] = [*disturbance(data, BUSY), *figure(data)]
    header = ("target", "limit", "measured", "met")
    targets = Section("Targets", [Text(said), *([Table(header, promises)] if promises else [])])
    return Document(title, subtitle, [targets, *_sections(data)], opening=opening)


def shape_words(settings: Record) -> str:
    return f"B = {settings['batch']}, H = {settings['heads']}, D = {settings['dim']}, {settings['dtype']}"


def _sections(data: Record) -> Iterator[Section]:
    results = Results(data)
    for mode in MODES:
        for phase in reversed(PHASES):
            yield _times(results, mode, phase)
    for mode in MODES:
        yield _memory(results, mode)
    yield _decoding(results)
    yield from _profiles(data)
    yield gate_section(data)
    yield settings_section(data)
    yield again(data)


def _cell(record: Record | None, field: str, show: Any) -> str:
    return cell(record, field, show).partition(",")[0]


def _of(results: Results, part: str, mode: str) -> Record:
    """Names and titles of those that took part in a mode."""
    names = {t["contender"] for t in results.data[part] if t["mode"] == mode}
    return {name: title for name, title in results.data["contenders"].items() if name in names}


def _times(results: Results, mode: str, phase: str) -> Section:
    raced = _of(results, "timings", mode)
    rows = []
    previous: tuple[int, float] | None = None
    for length in results.settings["lengths"]:
        cells = [_cell(results.timing(name, mode, phase, length), "median_s", seconds) for name in raced]
        ours, softmax = (results.time(name, mode, length, phase) for name in ("cosformer", "sdpa"))
        ratio = times(softmax / ours) if ours and softmax else "-"
        growth = times(ours / previous[1]) if ours and previous and length == 2 * previous[0] else "-"
        previous = (length, ours) if ours else None
        rows.append((f"{length:,}", *cells, ratio, growth))
    table = Table(("T", *raced.values(), "SDPA / ours", "growth"), rows)
    return Section(f"{mode.capitalize()}, {phase}", [table], brief=phase == PHASE)


def _memory(results: Results, mode: str) -> Section:
    title = f"{mode.capitalize()}, peak extra memory"
    rows = []
    raced = _of(results, "memory", mode)
    if not raced:
        return Section(title, [Text("Not measured in this run.")])
    for length in results.settings["lengths"]:
        cells = []
        for name in raced:
            record = results.memory(name, mode, length)
            multiple = f" ({record['multiple']:.1f} q)" if record and "multiple" in record else ""
            cells.append(_cell(record, "extra_bytes", size) + multiple)
        rows.append((f"{length:,}", *cells))
    prose = (
        "One forward+backward pass, beyond q, k, v and the incoming gradient; in brackets, as a multiple "
        "of the bytes of q. The output and the three gradients alone are 4."
    )
    return Section(title, [Text(prose), Table(("T", *raced.values()), rows)])


def _decoding(results: Results) -> Section:
    rows = [
        (f"{d['position']:,}", seconds(d["median_s"]), seconds(d["iqr_s"]), size(d["state_bytes"]))
        for d in results.data["decoding"]
    ]
    if not rows:
        return Section("Decoding", [Text("Not measured in this run.")])
    prose = "One token at a time with a carried state, both positions in turns."
    header = ("position", "time of a token", "interquartile range", "state")
    return Section("Decoding", [Text(prose), Table(header, rows)])


def gate_section(data: Record, prose: str = GATE) -> Section:
    rows = []
    for verdict in data["gate"]:
        checks = verdict["checks"]
        worst = max((c["error"] for c in checks), default=None)
        closest = max((c["error"] / c["allowed"] for c in checks), default=None)
        rows.append(
            (
                data["contenders"][verdict["contender"]],
                f"{worst:.1e}" if worst is not None else "-",
                f"{closest:.0%}" if closest is not None else "-",
                verdict["verdict"] + (f", not timed: {verdict['reason']}" if "reason" in verdict else ""),
            )
        )
    for name, reason in data["absent"].items():
        prose += f" Not in this run: {name} ({reason})."
    header = ("contender", "largest relative error", "of what is allowed", "verdict")
    failures = any("reason" in v for v in data["gate"])
    return Section("Correct first", [Text(prose), Table(header, rows)], brief=failures)


def _profiles(data: Record) -> Iterator[Section]:
    for profile in data["profiles"]:
        rows = [
            (
                f"`{op['name']}`",
                str(op["calls"]),
                seconds(op["self_s"]),
                f"{op['share']:.0%}",
                size(op["allocated_bytes"]) if op["allocated_bytes"] > 0 else "-",
            )
            for op in profile["operations"]
        ]
        prose = f"The operator by operation, because of a missed target: {'; '.join(profile['missed'])}."
        header = ("operation", "calls", "own time", "share", "kept memory")
        title = f"Where the time goes: {profile['case']}"
        yield Section(title, [Text(prose), Table(header, rows)], brief=False)
