"""Benchmark records as sections: the operator on a GPU and on a CPU, the attentions, generation, training,
and the generators of data."""

from collections.abc import Sequence
from typing import Any

from cosformer.report.document import Block, Line, Plot, Section, Table, Text
from cosformer.report.results import hardware_words
from cosformer.terminal import seconds, size, times

Record = dict[str, Any]

PHASE = "forward+backward"
# Who is drawn, in this order and in these colours; contenders beyond them stay in the full reports.
OPERATOR = {"cosformer": ("cosFormer", 0), "sdpa": ("softmax", 1), "authors": ("authors' form", 2)}
ATTENTIONS = {
    "cosformer": ("cosFormer", 0), "softmax": ("softmax", 1), "linear": ("linear (elu + 1)", 2),
    "performer": ("Performer", 3), "local": ("local", 4), "reformer": ("Reformer", 5),
}  # fmt: skip
GENERATION = {"cosformer": ("cosFormer", 0), "softmax": ("softmax", 1), "llama": ("Llama (transformers)", 3)}


def latest(records: Sequence[Record], kind: str) -> Record | None:
    """The newest record whose format is this kind and a number."""
    fitting = [r for r in records if r["format"].rpartition(" ")[0] == kind]
    return max(fitting, key=lambda r: r["date"], default=None)


def gpu_plot(record: Record, mode: str = "causal", phase: str = PHASE, dim: int = 64) -> Plot:
    """Time of one call against the length, at a constant number of tokens."""
    tokens = record["gpu"]["tokens"]
    timings = [
        t
        for t in record["gpu"]["timings"]
        if (t["mode"], t["phase"], t["dim"]) == (mode, phase, dim)
        and "median_s" in t
        and t["length"] <= tokens
    ]
    return Plot(
        f"gpu-{mode}-{dim}",
        f"{mode.capitalize()}, {phase.replace('+', ' and ')}, head size {dim}",
        f"length of a sequence; {tokens:,} tokens in all",
        "time of a call",
        _lines(timings, OPERATOR, "length", "median_s"),
        "The number of tokens is the same everywhere: cosFormer takes the same time however they are cut "
        "into sequences, while softmax takes longer the longer the sequences are.",
        x_unit="tokens",
        y_unit="seconds",
        log_x=True,
        log_y=True,
    )


def gpu(record: Record) -> Section:
    blocks: list[Block] = [gpu_plot(record, mode) for mode in ("causal", "bidirectional")]
    rows = []
    for mode in ("causal", "bidirectional"):
        plot = gpu_plot(record, mode)
        found = {line.name: dict(line.points) for line in plot.lines}
        for length, ours in found.get("cosFormer", {}).items():
            softmax = found.get("softmax", {}).get(length)
            ratio = times(softmax / ours) if softmax else "-"
            rows.append(
                [f"{mode}, {length:,.0f} tokens", seconds(ours), seconds(softmax) if softmax else "-", ratio]
            )
    blocks.append(Table(["", "cosFormer", "softmax", "softmax / cosFormer"], rows, "Forward and backward."))
    return Section(
        f"The operator on a GPU: {hardware_words(record)}", [*blocks, source(record)], "operator-gpu"
    )


def cpu(record: Record) -> Section:
    blocks: list[Block] = []
    for mode in ("causal", "bidirectional"):
        timings = [
            t for t in record["timings"] if (t["mode"], t["phase"]) == (mode, PHASE) and "median_s" in t
        ]
        blocks.append(
            Plot(
                f"cpu-{mode}",
                f"{mode.capitalize()}: time, forward and backward",
                "length, tokens",
                "time of a call",
                _lines(timings, OPERATOR, "length", "median_s"),
                "cosFormer doubles with the length, softmax quadruples: the lines part.",
                x_unit="tokens",
                y_unit="seconds",
                log_x=True,
                log_y=True,
            )
        )
    sizes = [m for m in record["memory"] if m["mode"] == "causal" and m.get("extra_bytes", 0) > 0]
    if sizes:
        blocks.append(
            Plot(
                "cpu-memory",
                "Causal: peak extra memory, forward and backward",
                "length, tokens",
                "peak extra memory",
                _lines(sizes, OPERATOR, "length", "extra_bytes"),
                "Beyond q, k, v and the incoming gradient; the authors' causal form keeps a matrix for each "
                "token.",
                x_unit="tokens",
                y_unit="bytes",
                log_x=True,
                log_y=True,
            )
        )
    return Section(
        f"The operator on a CPU: {hardware_words(record)}", [*blocks, source(record)], "operator-cpu"
    )


def attentions(record: Record) -> Section:
    timings = [t for t in record["timings"] if t["phase"] == PHASE and "median_s" in t]
    blocks: list[Block] = [
        Plot(
            f"attention-{mode}",
            f"{mode.capitalize()}: time of six of the attentions, forward and backward",
            "length, tokens",
            "time of a call",
            _lines([t for t in timings if t["mode"] == mode], ATTENTIONS, "length", "median_s"),
            "How steep a line is says how an attention grows; how high it starts, what it costs before.",
            x_unit="tokens",
            y_unit="seconds",
            log_x=True,
            log_y=True,
        )
        for mode in ("causal", "bidirectional")
    ]
    longest = max(t["length"] for t in timings)
    last = {(t["contender"], t["mode"]): t["median_s"] for t in timings if t["length"] == longest}
    rows = []
    for name in sorted({n for n, _ in last}):
        found = [last.get((name, mode)) for mode in ("causal", "bidirectional")]
        rows.append([name, *("-" if t is None else seconds(t) for t in found)])
    blocks.append(
        Table([f"at {longest:,} tokens", "causal", "bidirectional"], rows, "Forward and backward; all.")
    )
    return Section(f"The attentions: {hardware_words(record)}", [*blocks, source(record)], "attentions")


def training(record: Record) -> Section:
    rows = [
        [m["recipe"], m["attention"], f"{m['bare_tokens_per_s']:,.0f}", f"{m['tokens_per_s']:,.0f}",
         f"{m['share']:.0%}"]
        for m in record["measured"]
    ]  # fmt: skip
    header = ["recipe", "attention", "bare, tokens/s", "trained, tokens/s", "share"]
    note = "Bare is forward and backward alone over the same batches; trained is everything a run does."
    return Section(
        f"Training: {hardware_words(record)}", [Table(header, rows, note), source(record)], "training"
    )


def language_model(record: Record) -> Section:
    made = record["settings"]
    rows = [
        [m["attention"], seconds(m["step_s"]), f"{m['tokens_per_s']:,.0f}", f"{m['attention_share']:.0%}"]
        for m in record["measured"]
    ]
    note = (
        f"{made['layers']} layers, width 768, {made['batch']} texts of {made['length']:,} tokens, bfloat16, "
        "compiled. The share is attention's forward and backward alone, times the layers."
    )
    header = ["attention", "a training step", "tokens/s", "attention's share"]
    return Section(
        f"A language model: {hardware_words(record)}",
        [Table(header, rows, note), source(record)],
        "language-model",
    )


def generators(record: Record) -> Section:
    rows = [
        [name, " / ".join(f"{n:,}" for n in t["rows"].values()), str(t["cores"]), seconds(t["seconds"])]
        for name, t in record["tasks"].items()
    ]
    judged = record["tasks"]["listops"]["judged"]
    note = (
        f"At {record['share']:.0%} of the published sizes. An independent evaluator denies "
        f"{judged['denied']:,} of {judged['labels']:,} labels of ListOps; distributions beside the published "
        "ones are in the full report."
    )
    header = ["task", "train / valid / test", "cores", "time"]
    return Section(
        f"Generated tasks: {hardware_words(record)}", [Table(header, rows, note), source(record)], "tasks"
    )


def generation(record: Record) -> Section:
    rows = [
        r for r in record["results"] if r["batch"] == min(record["settings"]["batches"]) and "median_s" in r
    ]
    blocks: list[Block] = [
        Plot(
            "generation-time",
            "Time of a token behind a context",
            "tokens before",
            "time of a token",
            _lines(rows, GENERATION, "context", "median_s"),
            "A token costs cosFormer the same behind a thousand tokens as behind 65 thousand; keys and "
            "values have to be read again for each.",
            x_unit="tokens",
            y_unit="seconds",
            log_x=True,
            log_y=True,
        ),
        Plot(
            "generation-cache",
            "What is carried from token to token",
            "tokens before",
            "cache",
            _lines(rows, GENERATION, "context", "cache_bytes"),
            "cosFormer's state has one size; a cache of keys and values grows with the text.",
            x_unit="tokens",
            y_unit="bytes",
            log_x=True,
            log_y=True,
        ),
    ]
    longest = max(r["context"] for r in rows)
    table = [
        [GENERATION[r["contender"]][0], seconds(r["median_s"]), size(r["cache_bytes"])]
        for r in rows
        if r["context"] == longest and r["contender"] in GENERATION
    ]
    blocks.append(Table([f"at {longest:,} tokens", "time of a token", "cache"], table))
    return Section(f"Generation: {hardware_words(record)}", [*blocks, source(record)], "generation")


def _lines(rows: Sequence[Record], known: dict[str, tuple[str, int]], x: str, y: str) -> list[Line]:
    lines = []
    for contender, (name, colour) in known.items():
        points = sorted((float(r[x]), float(r[y])) for r in rows if r["contender"] == contender)
        if points:
            lines.append(Line(name, points, colour))
    return lines


def source(record: Record) -> Text:
    versions = ", ".join(f"{name} {v}" for name, v in record["versions"].items())
    how = [record.get("command") and f"`{record['command']}`", record["date"][:10]]
    how.append(record.get("settings", {}).get("dtype"))
    made = f"{', '.join(x for x in how if x)}; {versions}"
    return Text(f"From `{record['stem']}.json`: {made}; commit {(record['commit']['id'] or 'unknown')[:10]}.")
