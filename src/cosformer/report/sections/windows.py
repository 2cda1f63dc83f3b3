"""Records of heads with windows as sections: what they cost, and whether a long stream drifts."""

from cosformer.report.document import Block, Section, Table, Text
from cosformer.report.sections.common import MODES, PHASES, Record, hardware_words, source
from cosformer.terminal import seconds, size


def windows(record: Record) -> Section:
    """Times by contender, a column for each length."""
    timings = record["timings"]
    lengths = sorted({t["length"] for t in timings})
    found = {
        (t["contender"], t["mode"], t["dim"], t["length"], t["phase"]): t["median_s"]
        for t in timings
        if "median_s" in t
    }
    blocks: list[Block] = []
    for mode in MODES:
        rows = []
        for name, dim in sorted({(t["contender"], t["dim"]) for t in timings}):
            cells = []
            for length in lengths:
                both = [found.get((name, mode, dim, length, phase)) for phase in PHASES]
                cells.append(" / ".join("-" if s is None else seconds(s) for s in both))
            rows.append([name, str(dim), *cells])
        head = ["", "head size", *(f"T = {n:,}" for n in lengths)]
        blocks.append(Table(head, rows, f"{mode.capitalize()}, forward / forward and backward."))
    mixed = ", ".join("none" if w is None else str(w) for w in record["windows"])
    every = [
        f"`{name}` has it in every head"
        for name in sorted({t["contender"] for t in timings})
        if name.startswith("window ")
    ]
    said = "; ".join([f"`windows` has heads with the windows {mixed}", *every])
    blocks.append(Text(f"{said}."))
    return Section(f"Heads with windows: {hardware_words(record)}", [*blocks, source(record)])


def stream(record: Record) -> Section:
    sizes = ", ".join(size(n) for n in record["state_bytes"])
    rows = [
        [
            f"{record['tokens']:,}", ", ".join(map(str, record["windows"])), seconds(record["seconds"]),
            sizes, f"{record['worst_row']:.1e}",
        ]
    ]  # fmt: skip
    head = ["tokens", "windows", "time", "state", "worst of the last rows"]
    caption = "The last rows beside the same computed in float64 from the last tokens alone."
    return Section("A stream through windows", [Table(head, rows, caption), source(record)])
