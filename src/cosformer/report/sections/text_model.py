"""The paper's Table 5: steps of the byte-level text model against the length of the texts."""

from cosformer.report.document import Block, Document, Figure, Line, Plot, Section, Table, Text, colour_of
from cosformer.report.sections import published
from cosformer.report.sections.common import Record, hardware_words, made_words, source
from cosformer.terminal import seconds, size

FORMAT = "cosformer text model benchmark 1"
TITLE = "Speed and memory (Table 5)"
_DRAWN = (
    "softmax",
    "cosformer",
    "windows",
    "ours",
    "linear",
    "performer",
    "linformer",
    "bigbird",
    "reformer",
)


def table(data: Record, phase: str) -> Table:
    """A step at each length, the most memory that one took, and the published steps a second."""
    found = {(m["row"], m["length"]): m for m in data["measured"] if m["phase"] == phase}
    lengths = data["settings"]["lengths"]
    rows = []
    for row in data["settings"]["rows"]:
        cells = [_cell(found.get((row, length))) for length in lengths]
        known = [found[row, n]["peak_memory_bytes"] for n in lengths
                 if found.get((row, n), {}).get("peak_memory_bytes")]  # fmt: skip
        memory = size(max(known)) if known else "-"
        rows.append([row, *cells, memory, published.SPEED[phase].get(row, "-")])
    header = [
        phase, *(f"T = {n:,}" for n in lengths), "most memory",
        "published, steps/s at 1K / 2K / 3K / 4K",
    ]  # fmt: skip
    return Table(header, rows)


def _cell(measured: Record | None) -> str:
    if measured is None:
        return "not run"
    return seconds(measured["step_s"]) if "step_s" in measured else measured["failed"]


def plots(data: Record) -> list[Plot]:
    """One; none where nothing of it was measured."""
    rows = [row for row in data["settings"]["rows"] if row in _DRAWN]
    lines = []
    for row in rows:
        points = [
            (float(m["length"]), m["step_s"])
            for m in data["measured"]
            if m["row"] == row and m["phase"] == "training" and "step_s" in m
        ]
        if points:
            lines.append(Line(row, points, colour_of(row, rows)))
    if not lines:
        return []
    drawing = Plot(
        "text model", "A training step of the byte-level text model", "tokens of a text", "a step", lines,
        "Lower is better. Every step has the same number of tokens, so what is linear is flat.",
        x_unit="tokens", y_unit="seconds", log_x=True, log_y=True,
    )  # fmt: skip
    return [drawing]


def blocks(data: Record) -> list[Block]:
    made = data["settings"]
    said = (
        "Time of a step; lower is better. 4 layers of width 256, 4 heads, bytes, bfloat16, not compiled, "
        f"{made['tokens']:,} tokens a step in texts of length T, on {hardware_words(data)}; medians of "
        f"{made['steps']} steps; training is forward, backward and AdamW. Softmax is cuDNN's kernel on a "
        "GPU. Longer texts are not tried where shorter ones were out of memory. The published figures are "
        "steps of a fixed number of texts on an A6000 (x: out of its memory), and do not compare. Again: "
        "`python -m benchmarks.text_model`."
    )
    return [table(data, "training"), table(data, "inference"), Text(said)]


def section(record: Record) -> Section:
    """For the page."""
    return Section(TITLE, [*blocks(record), *plots(record), source(record)], "text-model")


def document(data: Record) -> Document:
    """Beside the record."""
    figures = [Figure("The byte-level text model", [plot], columns=1) for plot in plots(data)]
    return Document(TITLE, "", opening=[*blocks(data), *figures, Text(made_words(data))])
