"""The record of one sequence over many GPUs: what is sent, how long a layer takes, beside ring attention."""

from cosformer.report.document import Block, Document, Line, Plot, Section, Table, Text
from cosformer.report.sections.common import Record, again, made_words, source
from cosformer.terminal import seconds, size

FORMAT = "cosformer scaling simulation 1"
METHODS = {"split": "cosFormer", "ring": "softmax"}
SHOWN = (1, 8, 64, 256, 1024)
DRAWN = (131072, 1048576, 10**8)


def _words(tokens: int) -> str:
    if tokens % 2**10 == 0:
        return f"{tokens // 2**10}K" if tokens < 2**20 else f"{tokens // 2**20}M"
    return f"{tokens / 1e6:g} million"


def _table(record: Record, field: str, caption: str) -> Table:
    """Tokens down, GPUs across: ours, then ring attention's."""
    found = {(r["method"], r["tokens"], r["gpus"]): r for r in record["rows"]}
    show = size if field == "bytes" else seconds
    gpus = [n for n in SHOWN if n in record["settings"]["gpus"]]
    rows = []
    for tokens in record["settings"]["tokens"]:
        cells = []
        for n in gpus:
            both = [found[method, tokens, n][field] for method in METHODS]
            cells.append(" / ".join("0" if x == 0 else show(x) for x in both))
        rows.append([_words(tokens), *cells])
    return Table(["tokens", *(f"{n:,} GPU{'s' if n > 1 else ''}" for n in gpus)], rows, caption)


def plot(record: Record) -> Plot:
    """Time against the number of GPUs."""
    lines: list[Line] = []
    for tokens in DRAWN:
        for method, words in METHODS.items():
            own = [r for r in record["rows"] if r["method"] == method and r["tokens"] == tokens]
            points = [(float(r["gpus"]), float(r["seconds"])) for r in own]
            lines.append(Line(f"{words}, {_words(tokens)} tokens", points, len(lines)))
    caption = (
        "The work of both is divided by the number of GPUs. What softmax sends is not, and becomes its "
        "limit; what cosFormer sends grows with that number alone, and ends its speed-up."
    )
    title = "Attention of one layer, forward and backward"
    return Plot(
        "one sequence over many gpus", title, "GPUs", "time", lines, caption, x_unit="count",
        y_unit="seconds", log_x=True, log_y=True,
    )  # fmt: skip


def words(record: Record) -> Text:
    """What the figures stand on."""
    assumed, found = record["assumed"], record["measured"]
    speeds = " and ".join(
        f"{seconds(found[name]['seconds'])} for {found[name]['length']:,} tokens of {words}"
        for name, words in (("cosformer", "cosFormer"), ("softmax", "softmax"))
    )
    links = "; ".join(
        f"{assumed[f'{where}_bytes_s'] / 1e9:g} GB/s, {assumed[f'{where}_message_s'] * 1e6:g} µs a hop {at}"
        for where, at in (("node", f"among {assumed['node_gpus']} GPUs of a node"), ("network", "beyond"))
    )  # fmt: skip
    return Text(
        f"One row, {found['heads']} heads of {found['dim']}, {found['dtype']}, causal. Measured on one "
        f"{found['gpu']} (`{found['record']}.json`), forward and backward: {speeds}; memory at "
        f"{found['memory_bytes_s'] / 1e12:.2f} TB/s. Assumed, not measured: {links}; no call under "
        f"{seconds(assumed['shortest_call_s'])}. Ring attention is given its best: work spread evenly over "
        "the GPUs, all messages hidden behind it. cosFormer is counted as if nothing were hidden."
    )


def blocks(record: Record) -> list[Block]:
    sent = "Sent by one GPU for one layer, forward and backward: cosFormer / ring attention."
    time = "Time of one layer's attention, forward and backward: cosFormer / ring attention."
    return [words(record), _table(record, "bytes", sent), _table(record, "seconds", time), plot(record)]


def section(record: Record) -> Section:
    return Section("One sequence over many GPUs", [*blocks(record), source(record)])


def document(record: Record) -> Document:
    parts = [Section("What is sent, and how long it takes", blocks(record)), again(record)]
    lead = "Arithmetic from measured figures and assumed links."
    return Document("One sequence over many GPUs, on paper", lead, parts, made_words(record))
