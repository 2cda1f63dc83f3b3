"""The report of a run, rendered from its JSON record and from nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import MODES, PHASES
from benchmarks.machine import commit_words
from benchmarks.targets import PHASE, TARGETS, Results, conditions, missed
from benchmarks.terminal import markdown, plain, seconds, size, times


@dataclass(frozen=True)
class Section:
    title: str
    prose: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    brief: bool = True
    """Also shown on the terminal."""
    figures: bool = True
    """The columns after the first hold figures, which stand to the right."""


def to_markdown(data: dict[str, Any], plot: str | None) -> str:
    parts = [f"# The operator: time and memory, {data['date'][:10]}", _subtitle(data), disturbance(data)]
    if plot:
        parts.append(f"![Time and peak memory against sequence length]({plot})")
    for s in _sections(data):
        parts += [f"## {s.title}", s.prose, markdown(s.header, s.rows, s.figures) if s.rows else ""]
    parts += ["## Again", f"```\n{data['command']}\n```"]
    return "\n\n".join(p for p in parts if p) + "\n"


def to_terminal(data: dict[str, Any]) -> str:
    parts = [disturbance(data)]
    for s in _sections(data):
        if s.brief:
            parts += [s.title + "\n" + plain(s.header, s.rows) if s.rows else f"{s.title}: {s.prose}"]
    return "\n\n".join(p for p in parts if p)


def shape_words(settings: dict[str, Any]) -> str:
    return f"B = {settings['batch']}, H = {settings['heads']}, D = {settings['dim']}, {settings['dtype']}"


def machine_words(data: dict[str, Any]) -> str:
    hardware, settings = data["hardware"], data["settings"]
    return hardware["gpu"] if "gpu" in hardware else f"{hardware['cpu']} ({settings['threads']} threads)"


def disturbance(data: dict[str, Any]) -> str:
    """A warning where the machine was not ours alone while the clock ran; else nothing."""
    share = data["others_share"]
    if share is None or share < 0.05:
        return ""
    return (
        f"**Disturbed run:** other processes took {share:.0%} of the cores while the clock ran. The "
        "times are too high, those made of many small operations most; repeat it on an idle machine."
    )


def _subtitle(data: dict[str, Any]) -> str:
    return (
        f"{shape_words(data['settings'])}, on {machine_words(data)}. Times are medians over interleaved "
        "rounds of one process, *growth* the factor from half the length. *forward* runs without autograd; "
        "*forward+backward* includes the gradients of q, k and v."
    )


def _sections(data: dict[str, Any]) -> Iterator[Section]:
    results = Results(data)
    yield _acceptance(results)
    for mode in MODES:
        for phase in reversed(PHASES):
            yield _times(results, mode, phase)
    for mode in MODES:
        yield _memory(results, mode)
    yield _decoding(results)
    yield from _profiles(data)
    yield gate_section(data)
    yield setting_section(data)


def _acceptance(results: Results) -> Section:
    differs = conditions(results)
    prose = "Stated for two CPU cores, float32, B = 1, H = 8, D = 64, forward+backward."
    if results.settings["device"] != "cpu":
        return Section("Targets", prose + " Not judged on another device.")
    if differs:
        prose += f" This run had {', '.join(differs)}: the table is for orientation."
    elif any(t.figure(results) is None for t in TARGETS):
        prose += " What this run left out is marked as not measured."
    count = len(missed(results))
    if count:
        prose += f" Missed: {count}; see *Where the time goes* below."
    rows = tuple(tuple(t.row(results)) for t in TARGETS)
    return Section("Targets", prose, ("target", "limit", "measured", "met"), rows)


def _cell(record: dict[str, Any] | None, field: str, show: Any) -> str:
    if record is None:
        return "-"
    if field in record:
        return str(show(record[field]))
    return str(record["skipped"]).removeprefix("skipped: ").partition(",")[0]


def _raced(results: Results, mode: str) -> dict[str, str]:
    """Names and titles of those that took part in a mode."""
    names = {t["contender"] for t in results.data["timings"] if t["mode"] == mode}
    return {name: title for name, title in results.data["contenders"].items() if name in names}


def _times(results: Results, mode: str, phase: str) -> Section:
    raced = _raced(results, mode)
    rows = []
    previous: tuple[int, float] | None = None
    for length in results.settings["lengths"]:
        cells = [_cell(results.timing(name, mode, phase, length), "median_s", seconds) for name in raced]
        ours, softmax = (results.time(name, mode, length, phase) for name in ("cosformer", "sdpa"))
        ratio = times(softmax / ours) if ours and softmax else "-"
        growth = times(ours / previous[1]) if ours and previous and length == 2 * previous[0] else "-"
        previous = (length, ours) if ours else None
        rows.append((f"{length:,}", *cells, ratio, growth))
    header = ("T", *raced.values(), "SDPA / ours", "growth")
    return Section(f"{mode.capitalize()}, {phase}", "", header, tuple(rows), brief=phase == PHASE)


def _memory(results: Results, mode: str) -> Section:
    title = f"{mode.capitalize()}, peak extra memory"
    rows = []
    names = {m["contender"] for m in results.data["memory"] if m["mode"] == mode}
    raced = {name: title for name, title in results.data["contenders"].items() if name in names}
    if not raced:
        return Section(title, "Not measured in this run.")
    for length in results.settings["lengths"]:
        cells = []
        for name in raced:
            record = results.memory(name, mode, length)
            cell = _cell(record, "extra_bytes", size)
            cells.append(cell + (f" ({record['multiple']:.1f} q)" if record and "multiple" in record else ""))
        rows.append((f"{length:,}", *cells))
    prose = (
        "One forward+backward pass, beyond q, k, v and the incoming gradient; in brackets, as a multiple "
        "of the bytes of q. The output and the three gradients alone are 4."
    )
    return Section(title, prose, ("T", *raced.values()), tuple(rows))


def _decoding(results: Results) -> Section:
    rows = tuple(
        (f"{d['position']:,}", seconds(d["median_s"]), seconds(d["iqr_s"]), size(d["state_bytes"]))
        for d in results.data["decoding"]
    )
    if not rows:
        return Section("Decoding", "Not measured in this run.")
    prose = "One token at a time with a carried state, both positions in turns."
    return Section("Decoding", prose, ("position", "time of a token", "interquartile range", "state"), rows)


GATE = (
    "Values and gradients against the quadratic form in float64: whoever errs more than twice as much as the "
    "quadratic form in the same dtype is not timed."
)


def gate_section(data: dict[str, Any], prose: str = GATE) -> Section:
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
    return Section("Correct first", prose, header, tuple(rows), brief=failures)


def _profiles(data: dict[str, Any]) -> Iterator[Section]:
    for profile in data["profiles"]:
        rows = tuple(
            (
                f"`{op['name']}`",
                str(op["calls"]),
                seconds(op["self_s"]),
                f"{op['share']:.0%}",
                size(op["allocated_bytes"]) if op["allocated_bytes"] > 0 else "-",
            )
            for op in profile["operations"]
        )
        prose = f"The operator by operation, because of a missed target: {'; '.join(profile['missed'])}."
        header = ("operation", "calls", "own time", "share", "kept memory")
        yield Section(f"Where the time goes: {profile['case']}", prose, header, rows, brief=False)


def setting_section(data: dict[str, Any]) -> Section:
    hardware, settings = data["hardware"], data["settings"]
    rows = [_setting_row(*item) for item in hardware.items()]
    rows += [_setting_row(*item) for item in data["versions"].items()]
    rows.append(("commit", commit_words(data["commit"])))
    rows += [_setting_row(*item) for item in settings.items()]
    if data["others_share"] is not None:
        rows.append(("cores taken by other processes", f"{data['others_share']:.1%}"))
    rows.append(("date", data["date"]))
    return Section("The machine and the settings", "", ("", ""), tuple(rows), brief=False, figures=False)


def _setting_row(name: str, value: Any) -> tuple[str, str]:
    if name.endswith("_bytes"):
        return name.removesuffix("_bytes").replace("_", " "), size(value)
    return name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
