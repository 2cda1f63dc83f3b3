"""Training beside the model's own speed, and a training step of a language model."""

from cosformer.report.document import Block, Document, Items, Section, Table, Text
from cosformer.report.sections.common import Record, hardware_words, made_words, source
from cosformer.terminal import seconds

TARGET = 0.4
"""The share of the bare model's speed that training promises."""


def _speeds(m: Record) -> list[str]:
    return [
        m["recipe"], m["attention"], f"{m['bare_tokens_per_s']:,.0f}", f"{m['tokens_per_s']:,.0f}",
        f"{m['share']:.0%}", f"{m['peak_memory_bytes'] / 2**20:,.0f}",
    ]  # fmt: skip


def speeds(data: Record) -> Table:
    header = ("recipe", "attention", "bare, tokens/s", "trained, tokens/s", "share", "peak memory, MiB")
    return Table(header, [_speeds(m) for m in data["measured"]])


def training_section(record: Record) -> Section:
    """For the page."""
    whole = speeds(record)
    note = "Bare is forward and backward alone over the same batches; trained is everything a run does."
    table = Table(whole.header[:-1], [row[:-1] for row in whole.rows], note)
    return Section(f"Training: {hardware_words(record)}", [table, source(record)], "training")


def training_document(data: Record) -> Document:
    """Everything, beside the record."""
    worst = min((m["share"] for m in data["measured"]), default=None)
    verdict = (
        "" if worst is None else f" The lowest share is {worst:.0%}; at least {TARGET:.0%} was promised."
    )
    absent = [f"`{name}` was left out: {reason}" for name, reason in data["absent"].items()]
    said = (
        "Bare is forward and backward alone, over the same batches; trained is everything: data, forward, "
        f"backward, clipping, optimiser, log. {made_words(data)}"
    )
    lead = f"On {hardware_words(data)}, at scale {data['scale']}.{verdict}"
    opening: list[Block] = [speeds(data), *([Items(absent)] if absent else []), Text(said)]
    return Document("Training beside the model's own speed", lead, opening=opening)


def one_rank_section(record: Record) -> Section:
    """For the page."""
    names = {
        "bare": "forward and backward alone", "alone": "a run by itself",
        "launched": "the one process of a launcher, weights to share (FSDP2)",
    }  # fmt: skip
    speed, made = record["tokens_per_s"], record["settings"]
    rows = [
        [words, f"{speed[way]:,.0f}", f"{speed[way] / speed['bare']:.1%}"] for way, words in names.items()
    ]
    note = (
        f"{made['task']}, {made['batch_size']} texts of {made['task_settings']['length']:,} tokens; the "
        f"launched run has {record['share_of_alone']:.1%} of the speed of the one by itself."
    )
    table = Table(["", "tokens/s", "of the bare model"], rows, note)
    return Section(
        f"One process of a launcher: {hardware_words(record)}", [table, source(record)], "one-rank"
    )


def steps(data: Record) -> Table:
    rows = [
        [
            m["attention"], f"{m['step_s'] * 1e3:.1f} ms", f"{m['tokens_per_s']:,.0f}",
            f"{m['attention_share']:.0%}",
            "-" if m["peak_memory_bytes"] is None else f"{m['peak_memory_bytes'] / 2**30:.1f} GiB",
        ]
        for m in data["measured"]
    ]  # fmt: skip
    return Table(("attention", "a step", "tokens/s", "attention's share", "peak memory"), rows)


def language_model_section(record: Record) -> Section:
    """For the page."""
    made = record["settings"]
    rows = [
        [m["attention"], seconds(m["step_s"]), f"{m['tokens_per_s']:,.0f}", f"{m['attention_share']:.0%}"]
        for m in record["measured"]
    ]
    note = (
        f"{made['layers']} layers, width 768, {made['batch']} texts of {made['length']:,} tokens, bfloat16, "
        "compiled. The share is attention's forward and backward alone, times the layers."
    )
    table = Table(["attention", "a training step", "tokens/s", "attention's share"], rows, note)
    title = f"A language model: {hardware_words(record)}"
    return Section(title, [table, source(record)], "language-model")


def language_model_document(data: Record, width: int, heads: int, vocabulary: int) -> Document:
    """Everything, beside the record; the sizes of the model are the benchmark's own."""
    s = data["settings"]
    lead = (
        f"{s['layers']} layers, width {width}, {heads} heads, vocabulary {vocabulary:,}, {s['batch']} texts "
        f"of {s['length']:,} tokens, bfloat16, compiled, with AdamW, on {hardware_words(data)}. Medians of "
        f"{s['steps']} steps. The share of attention is its forward and backward alone at these shapes, "
        "times the layers."
    )
    opening: list[Block] = [steps(data), Text(made_words(data))]
    return Document("A training step of a language model", lead, opening=opening)
