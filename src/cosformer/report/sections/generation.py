"""Generation: time of a token, cache and memory against the context."""

from dataclasses import replace
from typing import Any

from cosformer.report.document import Block, Document, Figure, Plot, Section, Table, Text
from cosformer.report.sections.common import (
    Record,
    again,
    disturbance,
    hardware_words,
    lines,
    log_plot,
    settings_section,
    source,
    threads_words,
)
from cosformer.terminal import seconds, size, times

FORMAT = "cosformer generation benchmark 1"
KNOWN = {"cosformer": ("cosFormer", 0), "softmax": ("softmax", 1), "llama": ("Llama (transformers)", 3)}
WITHIN = 1.2  # time per token at the longest context, as a multiple of that at the shortest


def _find(data: Record, name: str, batch: int, context: int) -> Record:
    wanted = (name, batch, context)
    return next((r for r in data["results"] if (r["contender"], r["batch"], r["context"]) == wanted), {})


def _table(data: Record, batch: int, field: str, show: Any) -> list[list[str]]:
    rows = []
    for context in data["settings"]["contexts"]:
        found = [_find(data, name, batch, context) for name in data["contenders"]]
        cells = [show(r[field]) if r.get(field) is not None else r.get("skipped", "-") for r in found]
        rows.append([f"{context:,}", *cells])
    return rows


def _growth(data: Record, name: str, batch: int) -> tuple[int, int, float] | None:
    """(shortest, longest measured context, ratio of the times there)."""
    measured = [
        r for r in data["results"] if r["contender"] == name and r["batch"] == batch and "median_s" in r
    ]
    if len(measured) < 2:
        return None
    a, b = (f(measured, key=lambda r: r["context"]) for f in (min, max))
    return a["context"], b["context"], b["median_s"] / a["median_s"]


def findings(data: Record) -> list[list[str]]:
    """Each promise, and the measured figure."""
    rows = []
    for batch in data["settings"]["batches"]:
        sizes = {r["cache_bytes"] for r in data["results"]
                 if r["contender"] == "cosformer" and r["batch"] == batch and "cache_bytes" in r}  # fmt: skip
        if sizes:
            said = f"{size(max(sizes))} at every length" if len(sizes) == 1 else "grows"
            rows.append(
                [f"batch {batch}: cosFormer's cache is constant", said, "yes" if len(sizes) == 1 else "no"]
            )
        for name, title in data["contenders"].items():
            grown = _growth(data, name, batch)
            if grown is None:
                continue
            short, long, ratio = grown
            limit = name == "cosformer"
            promise = f"at most {times(WITHIN)}" if limit else "grows"
            met = ratio <= WITHIN if limit else ratio > WITHIN
            what = f"batch {batch}: {title}: time per token, {long:,} against {short:,} tokens ({promise})"
            rows.append([what, times(ratio), "yes" if met else "no"])
    return rows


def plots(record: Record, batch: int, known: dict[str, tuple[str, int]]) -> list[Plot]:
    """Time of a token, and the cache, behind a context."""
    rows = [r for r in record["results"] if r["batch"] == batch]
    found = []
    for name, field, title, says, unit, caption in (
        (
            "time", "median_s", "Time of a token behind a context", "time of a token", "seconds",
            "A token costs cosFormer the same behind a thousand tokens as behind 65 thousand; keys and "
            "values have to be read again for each.",
        ),
        (
            "cache", "cache_bytes", "What is carried from token to token", "cache", "bytes",
            "cosFormer's state has one size; a cache of keys and values grows with the text.",
        ),
    ):  # fmt: skip
        drawn = lines(rows, known, field, "context")
        found.append(
            log_plot(f"generation-{name}", title, drawn, says, caption, x_label="tokens before", y_unit=unit)
        )
    return found


def section(record: Record) -> Section:
    """For the page: the smallest batch."""
    batch = min(record["settings"]["batches"])
    rows = [r for r in record["results"] if r["batch"] == batch and "median_s" in r]
    longest = max(r["context"] for r in rows)
    table = [
        [KNOWN[r["contender"]][0], seconds(r["median_s"]), size(r["cache_bytes"])]
        for r in rows
        if r["context"] == longest and r["contender"] in KNOWN
    ]
    blocks: list[Block] = [*plots(record, batch, KNOWN)]
    blocks.append(Table([f"at {longest:,} tokens", "time of a token", "cache"], table))
    return Section(f"Generation: {hardware_words(record)}", [*blocks, source(record)], "generation")


def figure(data: Record) -> Figure:
    """Two plots a batch size."""
    known = {name: (title, KNOWN[name][1]) for name, title in data["contenders"].items()}
    drawn = [
        replace(plot, title=f"Batch {batch}: {plot.title[0].lower()}{plot.title[1:]}")
        for batch in data["settings"]["batches"]
        for plot in plots(data, batch, known)
    ]
    return Figure("Time of a token and cache against the context", drawn, columns=2)


def tables(data: Record) -> list[Section]:
    header = ["tokens before", *data["contenders"].values()]
    found = [Section("What was promised", [Table(["", "measured", "met"], findings(data))])]
    fields = [("Time of a token", "median_s", seconds), ("Cache", "cache_bytes", size)]
    if any("peak_bytes" in r for r in data["results"]):
        fields.append(("Peak memory beyond the model", "peak_bytes", size))
    for batch in data["settings"]["batches"]:
        found += [
            Section(f"{title}, batch {batch}", [Table(header, _table(data, batch, field, show))])
            for title, field, show in fields
        ]
    return found


def document(data: Record) -> Document:
    """Everything, beside the record."""
    s = data["settings"]
    lead = (
        f"One token at a time, behind contexts of the lengths in the tables; models of {s['layers']} layers, "
        f"width {s['hidden_size']}, {s['heads']} heads, {s['dtype']}, random weights, on "
        f"{threads_words(data)}. Times are medians over interleaved rounds of one process. Caches are filled "
        "with random numbers to the stated length; that cached decoding is right was shown first (below). "
        "Peak memory is that of a process of its own."
    )
    gate = [
        [data["contenders"][n], f"{g['error']:.1e}", f"{g['allowed']:.0e}",
         "passed" if g["passed"] else "not timed"]
        for n, g in data["gate"].items()
    ]  # fmt: skip
    said = Text("Largest difference between cached and uncached logits, relative to the largest.")
    judged = Section(
        "Correct first", [said, Table(["contender", "error", "allowed", "verdict"], gate)], brief=False
    )
    return Document(
        f"Generation: time, cache and memory, {data['date'][:10]}",
        lead,
        [*tables(data), judged, settings_section(data), again(data)],
        opening=[*disturbance(data), figure(data)],
    )
