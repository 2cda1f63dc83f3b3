"""The server under load, and what a thousand generations leave behind, as sections."""

from cosformer.report.document import Section, Table
from cosformer.report.sections.common import Record, disturbance, source
from cosformer.terminal import seconds, size


def serving(record: Record) -> Section:
    settings = record["settings"]
    waited = [(record[name] or {}).get("median_s") for name in ("first_part", "whole_text")]
    rows = [
        ["streams at a time", f"{settings['streams']:,}"],
        ["texts", f"{record['requests']:,}"],
        ["wrong, beside generate() without a server", f"{record['wrong']:,}"],
        ["lost", f"{record['lost']:,}"],
        ["tokens a second, all streams", f"{record['tokens_per_s']:,.0f}"],
        ["tokens a second of generate(), one text at a time", f"{record['offline_tokens_per_s']:,.0f}"],
        ["to the first part of a text", "-" if waited[0] is None else seconds(waited[0])],
        ["to the end of a text", "-" if waited[1] is None else seconds(waited[1])],
    ]
    caption = f"For {record['seconds']:.0f} s, a model of {settings['parameters']:,} parameters."
    table = Table(["", "measured"], rows, caption)
    return Section("A server under load", [table, *disturbance(record), source(record)], "serving")


def leaks(record: Record) -> Section:
    rows = [
        [f"{look['generations']:,}", f"{look['tensors']:,}", size(look["resident_bytes"] or 0)]
        for look in record["looks"]
    ]
    caption = "Greedy, sampled, beams, compiled, kept caches, batches and texts past the end, in turns."
    table = Table(["generations", "living tensors", "resident memory"], rows, caption)
    return Section("What generations leave behind", [table, source(record)], "leaks")
