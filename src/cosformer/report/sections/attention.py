"""All attentions: time, memory and state against the length, and how each grows beside what it claims."""

import math
from collections.abc import Callable
from statistics import linear_regression

from cosformer.report.document import Block, Document, Section, Table, Text
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
from cosformer.report.sections.operator_cpu import BUSY, Results, figure, gate_section, shape_words
from cosformer.terminal import seconds, size

FORMAT = "cosformer attention benchmark 1"
# Plotted on the page; the full report plots all.
KNOWN = {
    "cosformer": ("cosFormer", 0), "softmax": ("softmax", 1), "linear": ("linear (elu + 1)", 2),
    "performer": ("Performer", 3), "local": ("local", 4), "reformer": ("Reformer", 5),
}  # fmt: skip
# Largest fitted exponent for each claimed growth; constant costs and caches bend every curve a little.
LIMITS = {"linear": 1.2, "log-linear": 1.3, "length^1.5": 1.7, "quadratic": 2.2}
GATE = (
    "Values and gradients in float32 against the slow transcription of each in float64; in a narrower type, "
    "values against float32 on the same numbers. What exceeds the allowed error is not timed."
)
POINTS = 3  # growth is fitted to the longest lengths; short ones show the overhead


def exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of log time over log length, by least squares."""
    points = sorted(points)[-POINTS:]
    if len(points) < 2:
        return None
    return linear_regression(*([math.log(p[i]) for p in points] for i in (0, 1))).slope


def growth(data: Record) -> list[Record]:
    """For each contender and mode the fitted exponents of time and memory beside the claim."""
    results, found = Results(data), []
    for name in data["contenders"]:
        for mode in MODES:
            lengths = results.settings["lengths"]
            times = [(t, x) for t in lengths if (x := results.time(name, mode, t))]
            extra = [(t, x) for t in lengths if (x := results.extra(name, mode, t))]
            if not times:
                continue
            slope, cost = exponent(times), data["costs"][name]
            found.append(
                {
                    "contender": name,
                    "mode": mode,
                    "claim": cost,
                    "time": slope,
                    "memory": exponent(extra),
                    "above": slope is not None and slope > LIMITS[cost],
                }
            )
    return found


def section(record: Record) -> Section:
    """For the page."""
    timings = [t for t in record["timings"] if t["phase"] == PHASE and "median_s" in t]
    blocks: list[Block] = [
        log_plot(
            f"attention-{mode}",
            f"{mode.capitalize()}: time of six of the attentions, forward and backward",
            lines([t for t in timings if t["mode"] == mode], KNOWN, "median_s"),
            "time of a call",
            "How steep a line is says how an attention grows; how high it starts, what it costs before.",
        )
        for mode in MODES
    ]
    longest = max(t["length"] for t in timings)
    last = {(t["contender"], t["mode"]): t["median_s"] for t in timings if t["length"] == longest}
    rows = []
    for name in sorted({n for n, _ in last}):
        found = [last.get((name, mode)) for mode in MODES]
        rows.append([name, *("-" if t is None else seconds(t) for t in found)])
    table = Table([f"at {longest:,} tokens", *MODES], rows, "Forward and backward; all.")
    return Section(
        f"The attentions: {hardware_words(record)}", [*blocks, table, source(record)], "attentions"
    )


def document(data: Record) -> Document:
    """Everything, beside the record."""
    subtitle = (
        f"{shape_words(data['settings'])}, on {threads_words(data)}. Mechanisms have their default "
        "parameters; times are medians over interleaved rounds of one process. *forward* runs without "
        "autograd; *forward+backward* includes the gradients of q, k and v."
    )
    title = f"All attentions: time, memory and state, {data['date'][:10]}"
    return Document(title, subtitle, _sections(data), opening=[*disturbance(data, BUSY), *figure(data)])


def _sections(data: Record) -> list[Section]:
    results = Results(data)
    found = [_growth(data)]
    for mode in MODES:
        found += [_by_length(results, mode, phase) for phase in reversed(PHASES)]
    found += [_memory(results, mode) for mode in MODES]
    return [*found, _states(data), gate_section(data, GATE), settings_section(data), again(data)]


def _growth(data: Record) -> Section:
    def show(x: float | None) -> str:
        return "-" if x is None else f"{x:.2f}"

    rows = []
    for g in growth(data):
        verdict = "above its claim" if g["above"] else "as claimed" if g["time"] is not None else "-"
        rows.append((g["contender"], g["mode"], g["claim"], show(g["time"]), show(g["memory"]), verdict))
    prose = (
        f"Exponents fitted to the {POINTS} longest lengths of each, {PHASE}. A claim stands up to "
        + ", ".join(f"{limit} ({cost})" for cost, limit in LIMITS.items())
        + "."
    )
    header = ("attention", "mode", "claimed", "time", "memory", "verdict")
    return Section("Growth", [Text(prose), Table(header, rows)])


def _by_length(results: Results, mode: str, phase: str) -> Section:
    table = _table(results, lambda name, t: results.timing(name, mode, phase, t), "median_s", seconds)
    return Section(f"{mode.capitalize()}, {phase}", table, brief=phase == PHASE)


def _memory(results: Results, mode: str) -> Section:
    table = _table(results, lambda name, t: results.memory(name, mode, t), "extra_bytes", size)
    prose = "One forward+backward pass, beyond q, k, v and the incoming gradient."
    said = Text(prose if table else "Not measured in this run.")
    return Section(f"{mode.capitalize()}, peak extra memory", [said, *table], brief=False)


def _table(
    results: Results, find: Callable[[str, int], Record | None], field: str, show: Callable[[float], str]
) -> list[Table]:
    """A row for each attention, a column for each length; none where nothing was measured."""
    lengths = results.settings["lengths"]
    found = ((name, [find(name, t) for t in lengths]) for name in results.data["contenders"])
    rows = [(name, *(cell(r, field, show) for r in records)) for name, records in found if any(records)]
    return [Table(("attention", *(f"{t:,}" for t in lengths)), rows)] if rows else []


def _states(data: Record) -> Section:
    lengths = data["settings"]["lengths"]
    rows = []
    for name, sizes in data["states"].items():
        if sizes is not None:
            rows.append((name, *(f"{sizes[str(t)]:,}" for t in lengths)))
    none = [name for name, sizes in data["states"].items() if sizes is None]
    prose = "Numbers that a row of the batch carries in decoding, over all heads."
    if none:
        prose += f" Nothing can be carried by {', '.join(none)}."
    table = Table(("attention", *(f"{t:,}" for t in lengths)), rows)
    return Section("State", [Text(prose), *([table] if rows else [])], brief=False)
