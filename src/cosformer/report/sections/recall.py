"""What a state can hold: accuracy on associative recall and copying against the size of the state."""

from collections.abc import Sequence

from cosformer.record_format import current_names
from cosformer.report.document import Document, Figure, Line, Plot, Section, Table, Text, colour_of
from cosformer.report.sections.common import Record

SWEEP = {"mqar": "associative recall", "copy": "copying"}


def variant(record: Record) -> str:
    """The mechanism of a record's run, and what its model has beside it, in words."""
    model = record["settings"]["model"]
    if " + " in record["mechanism"]:
        return f"{record['mechanism'].partition(' + ')[0]}, one softmax layer"
    if "windows" in (model.get("attention_parameters") or {}):
        return f"{record['mechanism']}, windows"
    return f"{record['mechanism']}, convolution" if model.get("conv_size") else str(record["mechanism"])


def sweep(runs: Sequence[Record]) -> Table:
    """Accuracy by task and width, of runs at scale cpu; the newest record of each counts."""
    found: dict[tuple[str, int, str], float] = {}
    for r in runs:
        if "experiment" not in r and r["scale"] == "cpu" and r["task"] in SWEEP:
            width = r["settings"]["model"]["hidden_size"]
            found[r["task"], width, variant(r)] = r["metric"]["test"]["accuracy"]
    attentions = sorted({name for _, _, name in found})
    places = sorted({(list(SWEEP).index(task), task, width) for task, width, _ in found})
    rows = [
        [SWEEP[task], str(width), *(_figure(found.get((task, width, name))) for name in attentions)]
        for _, task, width in places
    ]
    return Table(("task", "width", *attentions), rows)


def _figure(accuracy: float | None) -> str:
    return "not run" if accuracy is None else f"{accuracy:.3f}"


def document(found: Sequence[Record], scale: str) -> Document:
    """Of points {task, title, attention, width, state, accuracy, exact, record}."""
    own = {
        title: sorted((p for p in found if p["title"] == title), key=lambda p: (p["attention"], p["width"]))
        for title in dict.fromkeys(p["title"] for p in found)
    }
    said = (
        "Accuracy over the tokens asked for, on unseen rows, at the step that was best on the validation "
        "split. All mechanisms have the same settings; softmax keeps every key and value, and its state is "
        "that of the whole row. In associative recall a model that knows which values stand in a row, but "
        "not behind which key, scores (1 + 1/2 + ... + 1/pairs) / pairs by guessing among those not given "
        "yet: 0.52 with four pairs."
    )
    lead = f"`python -m benchmarks.recall --scale {scale}`, on {_made_on(found)}."
    drawn = Figure("accuracy against the size of the state", [_plot(*item) for item in own.items()])
    parts = [Section(title, [Text(_settings(points)), _table(points)]) for title, points in own.items()]
    return Document("What a state can hold", lead, parts, opening=[Text(said), drawn])


def _table(points: Sequence[Record]) -> Table:
    header = ("attention", "width", "numbers in the state", "accuracy", "rows without a mistake")
    return Table(
        header,
        [
            [p["attention"], str(p["width"]), f"{p['state']:,}", f"{p['accuracy']:.4f}", f"{p['exact']:.4f}"]
            for p in points
        ],
    )


def _plot(title: str, points: Sequence[Record]) -> Plot:
    names = sorted({p["attention"] for p in points})
    lines = [
        Line(
            name,
            sorted((p["state"], p["accuracy"]) for p in points if p["attention"] == name),
            colour_of(name, names),
        )
        for name in names
    ]
    x_label = "numbers in the state, all layers"
    return Plot(title, title, x_label, "accuracy", lines, "", x_unit="tokens", log_x=True)


def _settings(points: Sequence[Record]) -> str:
    return "; ".join(sorted({_words(current_names(p["record"]["settings"])) for p in points})) + "."


def _words(run: Record) -> str:
    task = ", ".join(f"{name} {value}" for name, value in run["task_settings"].items())
    return (
        f"Rows: {task or 'as the task has them'}. Models: {run['model']['num_hidden_layers']} layers, "
        f"{run['model']['num_attention_heads']} head(s). Training: {run['steps']:,} steps of "
        f"{run['batch_size']} rows, rate {run['learning_rate']:g}, seed {run['seed']}"
    )


def _made_on(found: Sequence[Record]) -> str:
    records = [p["record"] for p in found]
    hardware = {r["hardware"].get("gpu") or f"{r['hardware']['cpu']}, {r['threads']} thread" for r in records}
    commits = {(r["commit"]["id"] or "unknown")[:10] for r in records}
    return f"{'; '.join(sorted(hardware))}; commit {', '.join(sorted(commits))}"
