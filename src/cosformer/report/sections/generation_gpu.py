"""Generation on a GPU: promises for compiled steps, and the measured figures."""

from typing import Any

from cosformer.report.document import Block, Document, Figure, Line, Section, Table, Text
from cosformer.report.sections.common import (
    Record,
    again,
    hardware_words,
    log_plot,
    settings_section,
    source,
)
from cosformer.terminal import seconds, size, times

FORMAT = "cosformer generation on a GPU benchmark 1"
NAMES = {
    "captured": "cosFormer, as it comes",
    "compiled": "cosFormer, compiled steps",
    "replayed": "cosFormer, compiled and captured",
    "eager": "cosFormer, eager",
    "llama": "Llama, static cache, compiled",
}
COLOURS = {"captured": 1, "compiled": 0, "replayed": 4, "eager": 2, "llama": 3}
OURS = ("captured", "compiled", "replayed")
SHORT, LONG, BESIDE = 1024, 131_072, 16_384  # contexts of what was promised
MOST_MS = {1: 2.0, 256: 3.5}
MOST_PREFILL = 1.5 * 2**30
NEAR = 1.1
AHEAD = {1: 2.0, 64: 5.0}
BY_DIFFERENCE = (
    "A token is the difference of a long and a short answer. The caches of compiled and eager steps are told "
    "to stand behind a context; the others have read it, in both answers, so that the noise of reading is in "
    "the difference too: of large batches it may be as much as a token. First calls have their compilation "
    "in them."
)
IN_ROUNDS = (
    "A token is the median of rounds in which the cases of a batch size took turns; in each, the time from "
    "one token to the next, without reading. The caches of compiled steps and of Llama are told to stand "
    "behind a context; the others have read it. First calls have their compilation in them."
)


def _row(data: Record, contender: str, batch: int, context: int) -> Record:
    wanted = (contender, batch, context)
    found = (r for r in data["results"] if (r["contender"], r["batch"], r["context"]) == wanted)
    return next(found, {})


def _fastest(data: Record, batch: int, context: int) -> tuple[str, Record]:
    """The way of our own that took least for a token."""
    found = {way: _row(data, way, batch, context) for way in OURS}
    timed = [way for way in OURS if "token_s" in found[way]]
    best = min(timed, key=lambda way: float(found[way]["token_s"]), default="compiled")
    return best, found[best]


def findings(data: Record) -> list[list[str]]:
    """Each promise that was measured, and its figure."""
    rows = []

    def add(what: str, measured: str, met: bool) -> None:
        rows.append([what, measured, "yes" if met else "no"])

    for kind, count in (data["differing_tokens"] or {}).items():
        add(f"tokens are those of no cache, float32: {kind}", f"{count} of 600 differ", count == 0)
    for way in OURS:
        for batch, most in MOST_MS.items():
            short, long = (_row(data, way, batch, n).get("token_s") for n in (SHORT, LONG))
            named = f"{NAMES[way]}, batch {batch}"
            if short:
                add(f"{named}: a token takes at most {most} ms", seconds(short), short <= most / 1e3)
            if short and long:
                ratio = max(long / short, short / long)
                what = f"{named}: {LONG:,} tokens before as {SHORT:,}, within 10 %"
                add(what, f"{seconds(long)}, {times(ratio)}", ratio <= NEAR)
    peak = _row(data, "prefill", 1, LONG).get("prefill_peak_bytes")
    if peak is not None:
        add(f"reading {LONG:,} tokens adds at most {size(MOST_PREFILL)}", size(peak), peak <= MOST_PREFILL)
    for batch, ahead in AHEAD.items():
        way, own = _fastest(data, batch, BESIDE)
        other, named = _row(data, "llama", batch, BESIDE), "" if way == "compiled" else f", {NAMES[way]}"
        what = f"batch {batch}, {BESIDE:,} tokens before: {ahead:g} times the tokens a second of Llama"
        if own.get("token_s") and other.get("token_s"):
            ratio = other["token_s"] / own["token_s"]
            add(what, times(ratio) + named, ratio >= ahead)
        elif own.get("token_s") and other.get("skipped"):
            add(what, f"Llama: {other['skipped']}", other["skipped"] == "out of memory")
    for way in ("compiled", "replayed"):
        seen: set[int] = set()
        new_graphs = [0, 0]  # for a context, for a batch size
        for r in (r for r in data["results"] if r["contender"] == way and "graphs" in r):
            new = r["batch"] not in seen
            seen.add(r["batch"])
            new_graphs[new] = max(new_graphs[new], r["graphs"])
        context, batch = new_graphs
        if seen:
            what = "no compilation for a new context, one for a new batch size"
            what += f": {NAMES[way]}" if way == "replayed" else ""
            add(what, f"{context} and {batch}", context == 0 and batch <= 1)
    return rows


def _table(data: Record, field: str, show: Any, names: tuple[str, ...]) -> Table:
    rows = []
    for batch, context in sorted({(r["batch"], r["context"]) for r in data["results"]}):
        found = [_row(data, name, batch, context) for name in names]
        if any(field in r or "skipped" in r for r in found):
            cells = [show(r[field]) if field in r else r.get("skipped", "-") for r in found]
            rows.append([f"{batch:,}", f"{context:,}", *cells])
    return Table(["batch", "tokens before", *(NAMES.get(name, "cosFormer") for name in names)], rows)


def _spread(rounds: list[float]) -> str:
    return f"{seconds(min(rounds))} to {seconds(max(rounds))}"


def figure(data: Record) -> Figure:
    """Time of a token against the context, a plot for each batch size that has several contexts."""
    plots = []
    for batch in sorted({r["batch"] for r in data["results"] if "tokens_per_s" in r}):
        drawn = []
        for name, title in NAMES.items():
            points = [(float(r["context"]), float(r["token_s"])) for r in data["results"]
                      if r["contender"] == name and r["batch"] == batch and "token_s" in r]  # fmt: skip
            if len(points) > 1:
                drawn.append(Line(title, sorted(points), COLOURS[name]))
        if not drawn:
            continue
        plots.append(
            log_plot(f"generation-gpu-{batch}", f"Batch {batch:,}: time of a token", drawn, "time of a token",
                     "A token costs cosFormer the same behind every context.", x_label="tokens before")
        )  # fmt: skip
    return Figure("Time of a token through model.generate", plots, columns=2)


def section(record: Record) -> Section:
    """For the page: the promises and one plot."""
    blocks: list[Block] = [Table(["", "measured", "met"], findings(record))]
    blocks += figure(record).plots[:1]
    return Section(
        f"Generation, compiled: {hardware_words(record)}", [*blocks, source(record)], "generation-gpu"
    )


def document(data: Record) -> Document:
    """Everything, beside the record."""
    s = data["settings"]
    lead = (
        f"Through `model.generate`, greedy: {s['layers']} layers, width {s['hidden']}, vocabulary "
        f"{s['vocabulary']:,}, {s['dtype']}, random weights, on {hardware_words(data)}. "
        f"{IN_ROUNDS if data.get('timing') == 'rounds' else BY_DIFFERENCE}"
    )
    there = {r["contender"] for r in data["results"]} | {"captured", "compiled", "eager", "llama"}
    both = tuple(name for name in NAMES if name in there)
    own = tuple(name for name in both if name != "eager")
    parts = [
        ("What was promised", Table(["", "measured", "met"], findings(data))),
        ("Time of a token", _table(data, "token_s", seconds, both)),
        ("Least and most of the rounds", _table(data, "rounds_s", _spread, both)),
        ("Tokens a second", _table(data, "tokens_per_s", lambda x: f"{x:,.0f}", both)),
        ("Time to the first token", _table(data, "first_token_s", seconds, ("prefill", "llama"))),
        ("Memory that reading adds", _table(data, "prefill_peak_bytes", size, ("prefill",))),
        ("Peak memory beyond the model", _table(data, "peak_bytes", size, both)),
        ("First call", _table(data, "first_call_s", seconds, own)),
    ]
    sections = [Section(title, [table]) for title, table in parts if table.rows]
    left = data.get("planned", 0) - len(data["results"])
    note = [Text(f"{left} of {data['planned']} planned cases are not measured yet.")] if left > 0 else []
    drawn = figure(data)
    pictures: list[Block] = [drawn] if drawn.plots else []
    return Document(
        f"Generation on a GPU, {data['date'][:10]}",
        lead,
        [*sections, settings_section(data), again(data)],
        opening=[*note, *pictures],
    )
