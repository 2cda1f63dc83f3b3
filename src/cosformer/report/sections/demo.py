"""The demonstration's record as a table for the terminal and as a page."""

from typing import Any

from cosformer.report.document import (
    Document,
    Line,
    Map,
    Maps,
    Plot,
    Sample,
    Samples,
    Section,
    Table,
    Text,
    colour_of,
)
from cosformer.terminal import seconds, size, times

Record = dict[str, Any]

MECHANISMS = {"cosformer": "cosFormer", "softmax": "softmax"}

# Name, field of a context's costs, label and unit of the axis, title, what to see.
LENGTH_PLOTS = (
    (
        "time", "seconds", "time", "seconds", "Time to read a context",
        "Twice the length takes cosFormer twice the time, and softmax in the end four times.",
    ),
    (
        "token", "token_s", "time", "seconds", "Time of the next token",
        "One token behind a context: constant for cosFormer; softmax looks at all keys again.",
    ),
    (
        "memory", "memory_bytes", "memory", "bytes", "Peak memory to read a context",
        "Beyond the model itself, with the cache that is kept.",
    ),
    (
        "cache", "cache_bytes", "cache", "bytes", "What is carried on",
        "cosFormer's state has one size; softmax keeps keys and values of every token.",
    ),
)  # fmt: skip


def figures(record: Record) -> Table:
    """One row a figure, one column a model."""
    learned = [record["training"]["models"][name] for name in MECHANISMS]
    costs = [record["costs"][name] for name in MECHANISMS]
    shared = min(c["contexts"][-1]["length"] for c in costs)
    at = [next(x for x in c["contexts"] if x["length"] == shared) for c in costs]
    far = record["settings"]["far"]
    rows = [
        _row("held-out text, bits per character", [m["bits"] for m in learned], "{:.3f}".format, None),
        _row("training, tokens a second", [m["tokens_per_s"] for m in learned], "{:,.0f}".format, False),
        _row("training step, peak memory", [c["training_memory_bytes"] for c in costs], size, True),
        _row(f"reading {shared:,} tokens, time", [x["seconds"] for x in at], seconds, True),
        _row(f"reading {shared:,} tokens, peak memory", [x["memory_bytes"] for x in at], size, True),
        _row(f"the next token behind {shared:,}", [x["token_s"] for x in at], seconds, True),
        _row(f"cache behind {far:,} tokens", [c["far_cache_bytes"] for c in costs], size, True),
    ]
    return Table(
        ["", *MECHANISMS.values(), "advantage of cosFormer"],
        rows,
        "Measured in this run, on this machine; the cache follows from its shapes. Memory is beyond the "
        "model's own.",
    )


def _row(name: str, values: list[float | None], write: Any, less_is_better: bool | None) -> list[str]:
    ours, theirs = values
    said = ["not measured" if v is None else write(v) if v else "-" for v in values]
    if less_is_better is None or not ours or not theirs:
        return [name, *said, "-"]
    return [name, *said, times(theirs / ours if less_is_better else ours / theirs)]


def document(record: Record) -> Document:
    learned, settings = record["training"], record["settings"]
    steps, tokens = learned["steps"], learned["tokens"]
    lead = (
        f"A language model over bytes, {settings['layers']} layers of width {settings['hidden_size']}, "
        "trained twice side by side on Python's own standard library: with cosFormer attention, a window for "
        "every head, and with softmax and rotary positions, all else equal and with as many parameters. "
        f"{steps:,} steps, {tokens:,} characters each."
    )
    machine = record["machine"]
    versions = f"torch {machine['torch']}, cosformer {machine['cosformer']}"
    made = f"{machine['name']}, {machine['threads']} threads; {versions}."
    return Document(
        "cosFormer beside softmax",
        lead,
        [
            Section("In figures", [figures(record), Text(_remark(record))]),
            Section("Learning", _curves(record)),
            Section("Time and memory against length", _lengths(record)),
            Section("What they look at", [_maps(record)]),
            Section("What they write", [_samples(record)]),
        ],
        f"Made by `cosformer demo` on {made}",
    )


def _remark(record: Record) -> str:
    ours, theirs = (record["training"]["models"][name]["bits"] for name in MECHANISMS)
    gap = abs(ours - theirs)
    who = "softmax is ahead" if theirs < ours else "cosFormer is ahead"
    quality = "both learn equally well" if gap < 0.005 else f"{who} by {gap:.2f} bits"
    return (
        f"After so few steps, {quality}. Short texts cost both about the same; on long ones the cost of "
        "softmax grows with the square of the length and its cache with the length. The cosFormer reads on "
        "for ever: what it carries is the last keys and values of each head's window."
    )


def _curves(record: Record) -> list[Plot]:
    models = record["training"]["models"]
    return [
        Plot(
            f"bits-by-{by}",
            f"Training: bits per character by {by}",
            label,
            "bits per character",
            [
                Line(title, [(p[at], p[2]) for p in models[name]["curve"]], colour_of(name))
                for name, title in MECHANISMS.items()
            ],
            caption,
            x_unit=unit,
        )
        for by, at, label, unit, caption in (
            (
                "steps",
                0,
                "steps",
                "count",
                "Means over some steps; lower is better. The same windows in the same order for both.",
            ),
            (
                "time",
                1,
                "seconds of training",
                "count",
                "The same against the time each model has trained for.",
            ),
        )
    ]


def _lengths(record: Record) -> list[Plot]:
    costs = record["costs"]

    def lines(field: str) -> list[Line]:
        found = [
            Line(
                title,
                [(x["length"], x[field]) for x in costs[name]["contexts"] if x[field]],
                colour_of(name),
            )
            for name, title in MECHANISMS.items()
        ]
        return [line for line in found if line.points]

    return [
        Plot(
            f"{name}-by-length",
            title,
            "context, tokens",
            label,
            drawn,
            caption,
            x_unit="tokens",
            y_unit=unit,
            log_x=True,
            log_y=True,
        )
        for name, field, label, unit, title, caption in LENGTH_PLOTS
        if (drawn := lines(field))
    ]


def _head(layer: Record) -> str:
    head = f"head {layer['head'] + 1}"
    return f"{head}, window {layer['window']}" if "window" in layer else head


def _maps(record: Record) -> Maps:
    maps = record["maps"]
    return Maps(
        "Attention on the same text",
        [
            Map(f"{title}, layer {i + 1}, {_head(layer)}", layer["weights"], colour_of(name))
            for name, title in MECHANISMS.items()
            for i, layer in enumerate(maps[name])
        ],
        f"Rows are characters that look, columns those looked at ({len(maps['text'])} of the held-out text), "
        "each row over its largest weight. A cosFormer's head sees no further than its window; of softmax, "
        "the head of each layer that looks at the fewest characters.",
    )


def _samples(record: Record) -> Samples:
    samples = record["samples"]
    return Samples(
        [Sample(title, samples["prompt"], samples[name]) for name, title in MECHANISMS.items()],
        f"Continuations of the same prompt at temperature {samples['temperature']}. A few minutes of "
        "training give the look of Python, not its sense.",
    )
