"""The report on all attentions, rendered from its JSON record and from nothing else."""

import math
from typing import Any

from benchmarks.contenders import MODES, PHASES
from benchmarks.report import Section, disturbance, gate_section, machine_words, setting_section, shape_words
from benchmarks.targets import PHASE, Results
from benchmarks.terminal import markdown, plain, seconds, size

FORMAT = "cosformer attention benchmark 1"
# Up to which fitted exponent a claim stands; constant parts and caches bend every curve a little.
LIMITS = {"linear": 1.2, "log-linear": 1.3, "length^1.5": 1.7, "quadratic": 2.2}
GATE = (
    "Values and gradients in float32 against the slow transcription of each in float64; in a narrower type, "
    "values against float32 on the same numbers. Whoever errs more than is allowed is not timed."
)
POINTS = 3  # the longest lengths, from which growth is fitted: at short ones it is the overhead that shows


def exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of log time over log length, by least squares."""
    points = sorted(points)[-POINTS:]
    if len(points) < 2:
        return None
    xs, ys = ([math.log(p[i]) for p in points] for i in (0, 1))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def growth(data: dict[str, Any]) -> list[dict[str, Any]]:
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


def to_markdown(data: dict[str, Any], plot: str | None) -> str:
    parts = [
        f"# All attentions: time, memory and state, {data['date'][:10]}",
        _subtitle(data),
        disturbance(data),
    ]
    if plot:
        parts.append(f"![Time and peak memory against sequence length]({plot})")
    for s in _sections(data):
        parts += [f"## {s.title}", s.prose, markdown(s.header, s.rows, s.figures) if s.rows else ""]
    parts += ["## Again", f"```\n{data['command']}\n```"]
    return "\n\n".join(p for p in parts if p) + "\n"


def to_terminal(data: dict[str, Any]) -> str:
    brief = [s for s in _sections(data) if s.brief and s.rows]
    parts = [disturbance(data), *(f"{s.title}\n{plain(s.header, s.rows)}" for s in brief)]
    return "\n\n".join(p for p in parts if p)


def _subtitle(data: dict[str, Any]) -> str:
    return (
        f"{shape_words(data['settings'])}, on {machine_words(data)}. Mechanisms have their default "
        "parameters; times are medians over interleaved rounds of one process. *forward* runs without "
        "autograd; *forward+backward* includes the gradients of q, k and v."
    )


def _sections(data: dict[str, Any]) -> list[Section]:
    results = Results(data)
    found = [_growth(data)]
    for mode in MODES:
        found += [_by_length(results, mode, phase) for phase in reversed(PHASES)]
    found += [_memory(results, mode) for mode in MODES]
    return [*found, _states(data), gate_section(data, GATE), setting_section(data)]


def _growth(data: dict[str, Any]) -> Section:
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
    return Section(
        "Growth", prose, ("attention", "mode", "claimed", "time", "memory", "verdict"), tuple(rows)
    )


def _cell(record: dict[str, Any] | None, field: str, show: Any) -> str:
    if record is None:
        return "-"
    return str(show(record[field])) if field in record else str(record["skipped"]).removeprefix("skipped: ")


def _by_length(results: Results, mode: str, phase: str) -> Section:
    lengths = results.settings["lengths"]
    rows = []
    for name in results.data["contenders"]:
        records = [results.timing(name, mode, phase, t) for t in lengths]
        if any(records):
            rows.append((name, *(_cell(r, "median_s", seconds) for r in records)))
    header = ("attention", *(f"{t:,}" for t in lengths))
    return Section(f"{mode.capitalize()}, {phase}", "", header, tuple(rows), brief=phase == PHASE)


def _memory(results: Results, mode: str) -> Section:
    lengths = results.settings["lengths"]
    rows = []
    for name in results.data["contenders"]:
        records = [results.memory(name, mode, t) for t in lengths]
        if any(records):
            rows.append((name, *(_cell(r, "extra_bytes", size) for r in records)))
    title = f"{mode.capitalize()}, peak extra memory"
    if not rows:
        return Section(title, "Not measured in this run.")
    prose = "One forward+backward pass, beyond q, k, v and the incoming gradient."
    return Section(title, prose, ("attention", *(f"{t:,}" for t in lengths)), tuple(rows), brief=False)


def _states(data: dict[str, Any]) -> Section:
    lengths = data["settings"]["lengths"]
    rows = []
    for name, sizes in data["states"].items():
        if sizes is not None:
            rows.append((name, *(f"{sizes[str(t)]:,}" for t in lengths)))
    none = [name for name, sizes in data["states"].items() if sizes is None]
    prose = "Numbers that a row of the batch carries in decoding, over all heads."
    if none:
        prose += f" Nothing can be carried by {', '.join(none)}."
    return Section("State", prose, ("attention", *(f"{t:,}" for t in lengths)), tuple(rows), brief=False)
