"""The paper's tables and the study on enwik8, from the records of planned runs, beside published figures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from cosformer.report.document import Block, Line, Plot, Section, Table, Text, colour_of
from cosformer.report.sections import arena, published
from cosformer.report.sections.common import Record
from cosformer.report.sections.places import Places, scores
from cosformer.report.sections.planned import (
    OURS,
    ROW_AGAIN,
    ROWS,
    TRIED,
    WINDOWS,
    count_tried,
    how_again,
    millions,
    only,
    origin,
    rate_of,
)  # fmt: skip

MORE = ("performer", "rfa", "identity")  # of Table 2 alone
LONG, LONGER, LONG_AND_LONGER = "long", "T = 8,192", "long, T = 8,192"
BASELINE = "softmax, rotary"
# The variants of the study on enwik8 that are these rows; the others are there with rotary positions.
STUDY = {
    WINDOWS: "windows, all bounded + gate, norm; q, k norm",
    OURS: "one softmax layer of 1,024 + gate, norm; q, k norm",
}
# Those of the study for CPU cores that are rows of the paper's tables under another name.
SMALL_STUDY = {
    "cosformer": "cosine, M = T",
    WINDOWS: "cosine, windows, gate and norms",
    OURS: "cosine, windows, gate and norms; one softmax layer",
}


def sections(
    records: Sequence[Record],
    *,
    variants: Sequence[str] = (),
    failures: Mapping[str, Record] | None = None,
) -> list[Section]:
    """All tables; `variants` are the rows of the study that stand there whether they were run or not. Nothing
    where no plan has left a record."""
    places = places_of(records, failures)
    if not places.records:
        return []
    return [
        similarity(places), language(places), fine_tuning(places), arena.from_scratch(places),
        arena.small(places), arena.pretrained(places), masked(places), cosine(places),
        ablation(places, variants),
    ]  # fmt: skip


def places_of(records: Iterable[Record], failures: Mapping[str, Record] | None = None) -> Places:
    """Where the tables find their runs. With fewer than four layers the model that this library recommends
    has none of softmax: runs of windows in the arena are then those of ours, too."""
    found = list(records)
    for record in list(found):
        place = record.get("experiment", {})
        if place.get("row") == WINDOWS and place["plan"] in arena.PLANS and _few_layers(record):
            ours = {**place, "row": OURS, "name": place["name"].replace(f"/{WINDOWS}", f"/{OURS}")}
            found.append({**record, "experiment": ours})
    return Places(found, failures or {})


def _few_layers(record: Record) -> bool:
    return bool(record["settings"].get("model", {}).get("num_hidden_layers", 4) < 4)


def in_study(row: str) -> str:
    """The variant of the study that is a row of the paper's tables."""
    return STUDY.get(row, f"{row}, rotary")


def in_small_study(row: str) -> str:
    return SMALL_STUDY.get(row, row)


def language(places: Places) -> Section:
    """Table 2."""
    rows = []
    for row in (*ROWS, *MORE):
        name, small = in_study(row), in_small_study(row)
        found = places.best("enwik8", LONG, name)
        rows.append(
            [
                row,
                places.cell("enwik8", LONG, name),
                published.ENWIK8.get(row, "-"),
                places.cell("enwik8", LONG_AND_LONGER, name),
                places.cell("enwik8", LONGER, name),
                millions(found, "parameters"),
                rate_of(found),
                places.cell("cosine", "enwik8", small, ".3f"),
                places.cell("wikitext2", "wikitext2", row, ".2f"),
                published.WIKITEXT103.get(row, "-"),
                only(name, f"wikitext2/{row}", f"enwik8/{small}"),
            ]
        )
    header = [
        "attention", "enwik8, bits per character", "published, 12 layers", "enwik8, T = 8,192",
        "enwik8, T = 8,192, equal seconds", "M parameters", "learning rate", "enwik8, small models",
        "WikiText-2, perplexity", "WikiText-103 published, valid / test", ROW_AGAIN,
    ]  # fmt: skip
    caption = (
        "Test scores; lower is better. enwik8: 6 layers of width 512, 180 million tokens in texts of 1,024 "
        "or of 8,192, or as many in texts of 8,192 as each model reads in the seconds that softmax takes for "
        "56 million, alone on the GPU; on the first million bytes of the test part; the published models "
        "have twice the layers and are trained far longer. The learning rate is the best on validation of "
        "the same candidates for each; for texts of 8,192 it is 0.001 with equal tokens, and the best of "
        "three with equal seconds. Small models have 0.8 million parameters, 1.6 million tokens and three "
        "seeds (The cosine itself). WikiText-2 is not WikiText-103, "
        "whose text is fifty times as long: the columns do not compare. In the ablation below "
        + " and ".join(f'{row} is "{name}"' for row, name in STUDY.items())
        + ". "
        + how_again("lm,lm-8192,wikitext2,cosine")
    )
    return Section(
        "Autoregressive language modelling (Table 2)",
        [Table(header, rows, caption), *origin(places, "enwik8", "wikitext2", "cosine")],
    )


def masked(places: Places) -> Section:
    """Is what windows gain in one direction gained in both?"""
    rows = []
    for row in ROWS[:4]:
        found = places.best("mlm", "mlm", row)
        cells = [places.cell("mlm", "mlm", row, ".3f", split=split) for split in ("valid", "test")]
        positions = found[0]["settings"]["model"]["position"] if found else "-"
        tried = f"{len(places.tries('mlm', 'mlm', row))} of 4"
        rows.append([row, *cells, millions(found, "parameters"), rate_of(found), positions, tried, only(row)])
    header = [
        "attention", "valid", "test", "M parameters", "learning rate", "positions", "tried", ROW_AGAIN,
    ]  # fmt: skip
    caption = (
        "Perplexity of masked bytes of WikiText-2 (15 % of them), read in both directions; lower is better. "
        "6 layers of width 512, texts of 512 bytes, 33 million bytes. Learning rate and positions are the "
        "best of those tried on validation. How often each byte occurs, and nothing else, gives 23.9: a "
        f"model near there has not begun to use the bytes around a mask. {how_again('mlm')}"
    )
    return Section("Masked language modelling", [Table(header, rows, caption), *origin(places, "mlm")])


def cosine(places: Places, rows: Sequence[str] = ()) -> Section:
    """Does the shape of the cosine matter, or only that it is a window? `rows` stand there, run or not."""
    cells = []
    for row in dict.fromkeys((*rows, *places.rows("cosine"))):
        figures, rates, seeds = [], [], []
        for column in ("enwik8", "mlm"):
            figures += [places.cell("cosine", column, row, ".3f", split=split) for split in ("valid", "test")]
            found = places.best("cosine", column, row)
            rates.append(rate_of(found))
            seeds.append(str(len(found)))
        cells.append([row, *figures, ", ".join(rates), ", ".join(seeds), only(row)])
    caption = (
        "Causal: bits per character of enwik8; masked: perplexity of masked bytes of WikiText-2 (15 %), "
        "in both directions. Lower is better; the mean of the seeds, and half of their range. 4 layers of "
        "width 128 with 4 heads, 800 steps of 4 texts of 512 bytes on a CPU; the better on validation of "
        "two learning rates. M is the horizon, T the 512 tokens of a text. Windows are 2, 4, 16 and 512; the "
        "narrower ones, 2, 3, 11 and 320, are boxes whose weights add up to as much as those of the cosine, "
        "as nearly as whole numbers allow. Positions are rotary, but for causal models "
        "of relu and of the cosine with windows, which have none, as have the rows that say so. The layer of "
        "softmax sees 512 tokens. How often each byte occurs, and nothing else, gives a perplexity of 23.9. "
        + how_again("cosine")
    )
    header = [
        "weights", "causal, valid", "causal, test", "masked, valid", "masked, test",
        "learning rates: causal, masked", "seeds: causal, masked", ROW_AGAIN,
    ]  # fmt: skip
    return Section("The cosine itself", [Table(header, cells, caption), *origin(places, "cosine")])


def similarity(places: Places) -> Section:
    """Table 1."""
    rows = []
    for row in ("softmax", "relu", "leaky_relu", "identity", "cosformer", OURS):
        loss = [math.log(x) for x in scores(places.best("pretrain", "mlm", row), "valid")]
        told = published.SIMILARITY.get(row)
        rows.append(
            [
                row,
                f"{mean(loss):.3f}" if loss else places.cell("pretrain", "mlm", row),
                f"{told[0]:.3f}" if told else "-",
                places.cell("pretrain", "sst2", row, ".2f", 100),
                f"{told[2]:.2f}" if told else "-",
                *(places.cell("pretrain", task, row, ".2f", 100) for task in ("cola", "mrpc", "imdb")),
                count_tried(places, "pretrain", ("mlm", "sst2", "cola", "mrpc", "imdb"), row),
                only(row),
            ]
        )
    tasks = ("SST-2", "published", "CoLA, Matthews", "MRPC", "IMDB")
    header = ["similarity", "loss", "published", *tasks, TRIED, ROW_AGAIN]
    caption = f"The loss of masked tokens on validation, then test scores in per cent. {_PRETRAINED}"
    return Section(
        "Which similarity function (Table 1)", [Table(header, rows, caption), *origin(places, "pretrain")]
    )


def fine_tuning(places: Places) -> Section:
    """Table 3."""
    tasks = {"SST-2": "sst2", "IMDB": "imdb", "MRPC": "mrpc", "CoLA": "cola", "RTE": "rte", "STS-B": "stsb"}
    rows = []
    for row in (*ROWS, "performer", "longformer"):
        own = [places.cell("pretrain", task, row, ".2f", 100) for task in tasks.values()]
        told = [f"{x:.2f}" for x in published.FINE_TUNING.get(row, ())] or ["-"] * 3
        tried = count_tried(places, "pretrain", tasks.values(), row)
        rows.append([row, own[0], told[0], own[1], told[1], *own[2:], told[2], tried, only(row)])
    header = [
        "attention", "SST-2", "published", "IMDB", "published", *list(tasks)[2:], "published average",
        TRIED, ROW_AGAIN,
    ]  # fmt: skip
    caption = (
        "Test scores in per cent: accuracy, Matthews' correlation (CoLA), Pearson's (STS-B); higher is "
        f"better. {_PRETRAINED} The published average is of QQP, SST-2, MNLI, IMDB and Amazon."
    )
    return Section(
        "Pretraining and fine-tuning (Table 3)", [Table(header, rows, caption), *origin(places, "pretrain")]
    )


_PRETRAINED = (
    "6 layers of width 512, 1,000 steps of 32,768 tokens of IMDB's unlabelled reviews; the published models "
    "have 12 layers of width 768 and 200 times the tokens. Pretraining has one learning rate for all rows. "
    "Positions, learned or rotary, and the learning rate of fine-tuning are the best on validation of the "
    "settings tried, which are counted column by column. " + how_again("pretrain")
)


def ablation(places: Places, variants: Sequence[str]) -> Section:
    """The study: every variant with the short budget, finalists with the long one."""
    rows = []
    baseline = scores(places.best("enwik8", "short", BASELINE), "valid")
    for row in dict.fromkeys((*variants, *places.rows("enwik8"))):
        found = places.best("enwik8", "short", row)
        bits = scores(found, "valid")
        rows.append(
            [
                row, places.cell("enwik8", "short", row, ".3f", split="valid"),
                f"{mean(bits) / mean(baseline):.3f}" if bits and baseline else "-",
                places.cell("enwik8", "short", row, ".3f"), rate_of(found),
                places.cell("enwik8", LONG, row, ".3f", split="valid"),
                places.cell("enwik8", LONG, row, ".3f"),
                places.cell("enwik8", LONGER, row, ".3f"),
                millions(found or places.best("enwik8", LONG, row), "parameters"),
                millions(found, "tokens_per_s"),
                only(row),
            ]
        )  # fmt: skip
    header = [
        "model", "39M tokens, valid", "softmax = 1", "39M tokens, test", "learning rate",
        "180M tokens, valid", "180M tokens, test", "T = 8,192, equal seconds, test",
        "M parameters", "M tokens/s", ROW_AGAIN,
    ]  # fmt: skip
    caption = (
        "Bits per character; lower is better. 6 layers of width 512 with 8 heads, texts of 1,024 bytes, 32 a "
        "step, cosine schedule, the same data in the same order; held-out bits over the first million bytes "
        "of the validation and of the test part. The learning rate is the best of up to four that the "
        "model's family tried with the short budget. Tokens a second were taken with several runs "
        "side by side on the GPU and do not compare. " + how_again("short,long,8192", "ablation")
    )
    blocks: list[Block] = [Table(header, rows, caption)]
    failed = [f"{name}: {said['reason']}" for name, said in places.failures.items()]
    if failed:
        blocks.append(Text(f"Failed: {'; '.join(failed)}."))
    blocks += [p for p in (curves(places, "tokens"), curves(places, "seconds")) if p is not None]
    return Section("Ablation (enwik8)", [*blocks, *origin(places, "enwik8")], "ablation")


def curves(places: Places, against: str) -> Plot | None:
    """The training loss of the long runs, first seeds, in bits and behind the first tenth, where it falls so
    far that nothing else would be seen; None where fewer than two were run."""
    rows = [row for row in places.rows("enwik8") if places.best("enwik8", LONG, row)]
    lines = []
    for row in rows:
        run = places.best("enwik8", LONG, row)[0]
        first = run["curve"]["train"][-1][1] / 10
        points = [
            (tokens / 1e6 if against == "tokens" else float(seconds), loss / math.log(2))
            for _, tokens, seconds, loss in run["curve"]["train"]
            if loss is not None and seconds > 0 and tokens > first
        ]
        if points:
            lines.append(Line(row, points, colour_of(row, rows)))
    if len(lines) < 2:
        return None
    shared = " Runs shared the GPU: only those of one call compare." if against == "seconds" else ""
    return Plot(
        f"enwik8 {against}", f"enwik8: training loss against {against}",
        "million tokens" if against == "tokens" else against, "bits per character", lines,
        f"Lower is better. Means over a fiftieth of the run each, behind its first tenth.{shared}",
        x_unit="count",
    )  # fmt: skip
