"""Brings the figure and the tables in README.md up to date with the records.

python docs/render_readme.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.report import plotter, records, render
from cosformer.report.sections import arena, evidence, operator_gpu, planned
from cosformer.report.sections.common import PHASE, hardware_words, latest
from cosformer.terminal import seconds, size

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FIGURE = ROOT / "docs" / "figures" / "time-against-length.svg"
BEGIN, END = "<!-- {}: python docs/render_readme.py -->\n", "<!-- end of {} -->\n"
# Rows of the first table, and the runs of the study on enwik8 that they are.
LANGUAGE = {
    "softmax, rotary positions": "softmax, rotary",
    "softmax under the windows below, rotary positions": "softmax + windows",
    "cosFormer as published (one horizon), rotary positions": "cosformer, rotary",
    "cosFormer, windows 2, 4, 8, 16, 64, 128, 512, 1,024": "windows, all bounded",
    "the same with gate and norms": evidence.STUDY[planned.WINDOWS],
    "**the same with one layer in six sliding-window softmax (1,024 tokens): default model**": evidence.STUDY[
        planned.OURS
    ],
}
# Columns of the second, and the rows of the paper's tables that they are.
BIDIRECTIONAL = {
    "softmax": "softmax",
    "cosFormer as published": "cosformer",
    "cosFormer, windows, gate and norms": planned.WINDOWS,
    "default model": planned.OURS,
}

Record = dict[str, Any]


def newest(kind: str) -> Record:
    found = latest(records.benchmarks(ROOT / "benchmarks" / "reports"), f"cosformer {kind}")
    if found is None:
        raise SystemExit(f"There is no record of the {kind} in benchmarks/reports.")
    return found


def pair(rows: list[Record], names: tuple[str, str], field: str, **where: Any) -> list[float]:
    """The figures of the two contenders in the rows that fit."""
    fitting = [r for r in rows if all(r.get(k) == v for k, v in where.items()) and field in r]
    return [next(r[field] for r in fitting if r["contender"] == name) for name in names]


def rows() -> Iterator[tuple[str, list[float], Any, str]]:
    gpu, cpu, spoken = (
        newest(k) for k in ("operator benchmark on a GPU", "operator benchmark", "generation benchmark")
    )
    chip = hardware_words(gpu)
    for mode, length in (("causal", 512), ("causal", 2048), ("causal", 65536), ("bidirectional", 2048)):
        found = pair(
            gpu["gpu"]["timings"],
            ("cosformer", "sdpa"),
            "median_s",
            mode=mode,
            phase=PHASE,
            length=length,
            dim=64,
        )
        yield f"{chip}, {mode}, forward and backward, T = {length:,}", found, seconds, "¹"
    model = newest("language model benchmark")
    steps = {m["attention"]: m["step_s"] for m in model["measured"]}
    words = (
        f"{hardware_words(model)}, a training step of a language model, T = {model['settings']['length']:,}"
    )
    yield words, [steps["cosformer"], steps["softmax"]], seconds, "⁴"
    fast = newest("generation on a GPU benchmark")
    ways = {r["contender"] for r in fast["results"] if "token_s" in r and r["context"] == 16384}
    ours = "replayed" if "replayed" in ways else "compiled" if "compiled" in ways else "captured"
    found = pair(fast["results"], (ours, "llama"), "token_s", batch=1, context=16384)
    yield f"{hardware_words(fast)}, generation: one token after 16,384 tokens", found, seconds, "⁵"
    for length in (256, 4096, 16384):
        found = pair(
            cpu["timings"], ("cosformer", "sdpa"), "median_s", mode="causal", phase=PHASE, length=length
        )
        yield f"two CPU cores, causal, forward and backward, T = {length:,}", found, seconds, "²"
    for what, field, write in (("one token", "median_s", seconds), ("the cache", "cache_bytes", size)):
        found = pair(spoken["results"], ("cosformer", "softmax"), field, batch=1, context=65536)
        yield f"generation on two CPU cores: {what} after 65,536 tokens", found, write, "³"


def language() -> str:
    """How well language models learn."""
    runs = places()
    columns = (("short", "valid"), ("long", "valid"), ("long", "test"))
    made = [
        [words, *(runs.cell("enwik8", column, row, ".3f", split=split) for column, split in columns)]
        for words, row in LANGUAGE.items()
    ]
    header = [
        "enwik8, bits per character (lower is better)",
        "39M tokens, validation",
        "180M tokens, validation",
        "180M tokens, test",
    ]
    return render.table(header, made) + "\n"


def bidirectional() -> str:
    """How well bidirectional models learn."""
    runs = places()
    made = []
    for words, column in arena.TASKS.items():
        cells = [runs.cell("lra", column, row, ".1f", 100) for row in BIDIRECTIONAL.values()]
        made.append([f"{words}, accuracy", *cells])
    averages = [arena.average(runs, "lra", row, ".1f") for row in BIDIRECTIONAL.values()]
    made.append(["average of these five", *averages])
    cells = [runs.cell("mlm", "mlm", row, ".2f") for row in BIDIRECTIONAL.values()]
    made.append(["masked bytes of WikiText-2, perplexity (lower is better)", *cells])
    return render.table(["bidirectional models, test", *BIDIRECTIONAL], made) + "\n"


def places() -> evidence.Places:
    folder = ROOT / "results"
    return evidence.places_of(records.runs(folder), records.failures(folder))


def measured() -> str:
    """The better figure of a row is bold."""
    made = []
    for name, figures, write, note in rows():
        said = [f"**{write(x)}**" if x == min(figures) else write(x) for x in figures]
        made.append([f"{name} {note}", *said])
    return render.table(("", "cosFormer (as published)", "softmax"), made) + "\n"


def figure() -> str:
    return plotter.standalone(operator_gpu.plot(newest("operator benchmark on a GPU")))


PARTS = {"language": language, "bidirectional": bidirectional, "measured": measured}


def readme(text: str) -> str:
    for name, made in PARTS.items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        if not begin or not end:
            raise SystemExit(f"README.md has lost a mark of the table {name!r}: {BEGIN.format(name)}")
        text = f"{before}{begin}{made()}{end}{after}"
    return text


if __name__ == "__main__":
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(figure())
    README.write_text(readme(README.read_text()))
    print(FIGURE.relative_to(ROOT), README.relative_to(ROOT), sep="\n")
