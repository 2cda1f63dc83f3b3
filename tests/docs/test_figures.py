"""Figures in the sentences of README.md and the documentation are those of the records."""

import json
from pathlib import Path
from statistics import mean

from cosformer import reading
from cosformer.report.sections.evidence import places_of
from cosformer.report.sections.places import Places, scores

ROOT = Path(__file__).parents[2]


def bits(column, name, split):
    """Of the best learning rate that a variant has a record of: one figure for each seed."""
    runs = [json.loads(line) for line in (ROOT / "results" / "plan-enwik8.jsonl").read_text().splitlines()]
    found = [r for r in runs if (r["experiment"]["column"], r["experiment"]["row"]) == (column, name)]
    seeds = sorted({r["seed"] for r in found})
    own = [min((r["metric"]["valid"]["bits_per_character"], r["metric"][split]["bits_per_character"])
               for r in found if r["seed"] == seed) for seed in seeds]  # fmt: skip
    return [figure for _, figure in own]


def test_the_quality_in_the_readme_is_that_of_the_records():
    """The sentences below its tables."""
    text = (ROOT / "README.md").read_text()
    hybrid = "one softmax layer of 1,024 + gate, norm; q, k norm"
    windows = "windows, all bounded + gate, norm; q, k norm"

    def times(name):
        own, softmax = (bits("long", x, "valid") for x in (name, "softmax, rotary"))
        return f"{mean(own) / mean(softmax):.3f} times"

    assert f"has {times(hybrid)} the bits of softmax" in text
    assert f"cosFormer has {times(windows)} its bits" in text
    longer = [mean(bits("T = 8,192", name, "valid")) for name in (hybrid, "softmax, rotary")]
    assert f"{longer[0]:.3f} bits on validation where softmax has {longer[1]:.3f}" in text
    without, cosine = (
        mean(bits("short", name, "valid")) for name in ("relu + windows", "windows, all bounded")
    )
    assert f"the same windows without it have {without:.3f} where cosFormer's have {cosine:.3f}" in text
    holes = places_of(reading.json_lines(ROOT / "results" / "plan-lra-pretrained.jsonl"))
    own, plain = (
        f"{100 * scores(holes.best('lra-pretrained', 'text', row))[0]:.1f} %"
        for row in ("windows", "cosformer")
    )
    assert f"windows have {own} on Text, and cosFormer as published {plain}" in text


def test_what_is_said_of_the_arena_is_what_the_records_say():
    places = places_of(reading.json_lines(ROOT / "results" / "plan-lra.jsonl"))
    text = (ROOT / "docs" / "results.md").read_text()
    best, citations, pathfinder = (
        next(line for line in text.splitlines() if line.startswith(words))
        for words in ("One seed each, and so far", "Citations are learned", "Pathfinder is learned")
    )

    def figure(column, row, number=0):
        return f"{100 * scores(places.tries('lra', column, row)[number])[0]:.2f}"

    rows = {
        "image": ("windows", "ours", "cosformer", "softmax"),
        "listops": ("cosformer", "softmax", "windows", "ours"),
        "text": ("windows", "ours", "relu", "cosformer", "softmax"),
    }
    for column, names in rows.items():
        assert ", ".join(f"{row} {figure(column, row)}" for row in names) in best, column
    worse = ", ".join(f"{row} {figure('listops', row, 1)}" for row in ("cosformer", "ours"))
    assert f"in 3,000 steps ({worse})" in best
    ours, windows, relu, plain = (
        figure("citations", row) for row in ("ours", "windows", "relu", "cosformer")
    )
    assert f"ours has {ours}, windows {windows}, relu {relu} and cosformer {plain}." in citations
    assert not places.best("lra", "citations", "softmax"), "the page says that it has no record"
    softmax, relu, plain, windows = (
        figure("pathfinder", row) for row in ("softmax", "relu", "cosformer", "windows")
    )
    said = f"softmax {softmax}, relu {relu}, cosformer {plain} and windows {windows},"
    assert said in pathfinder


def test_the_averages_of_the_arena_are_those_of_its_table():
    text = (ROOT / "docs" / "results.md").read_text()
    paragraph = next(line for line in text.splitlines() if line.startswith("One seed each, and so far"))
    table = text.partition("<!-- arena:")[2].partition("<!-- end of arena")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    averages = {cells[0]: cells[rows[0].index("average")] for cells in rows}
    assert f"whole: {averages['cosformer']} on average" in paragraph
    assert f"windows have {averages['windows']} and ours {averages['ours']}." in paragraph


def test_what_is_said_of_pretrained_models_of_the_arena_is_what_the_records_say():
    own, before = (
        places_of(reading.json_lines(ROOT / "results" / f"plan-{plan}.jsonl"))
        for plan in ("lra-pretrained", "lra")
    )
    text = (ROOT / "docs" / "results.md").read_text()
    paragraph = next(line for line in text.splitlines() if line.startswith("One seed, one setting, and few"))

    def gained(column, row, words):
        figures = (scores(places.best(plan, column, row))[0] for places, plan in
                   ((before, "lra"), (own, "lra-pretrained")))  # fmt: skip
        return words.format(*(f"{100 * figure:.2f}" for figure in figures))

    assert gained("text", "windows", "windows from {} to {};") in paragraph
    assert gained("text", "cosformer", "gains a point ({} to {})") in paragraph
    assert gained("citations", "cosformer", "gains a point as well ({} to {})") in paragraph
    for column in ("text-inputs", "citations-inputs"):
        plain, windows = (
            scores(own.best("lra-pretrained", column, row))[0] for row in ("cosformer", "windows")
        )
        assert f"{plain:.2f} where windows have {windows:.2f}" in paragraph


def test_the_losses_of_pretraining_are_those_of_the_records():
    """Both sentences, learned positions and rotary ones, and the lead on IMDB."""
    records = list(reading.json_lines(ROOT / "results" / "plan-pretrain.jsonl"))
    text = (ROOT / "docs" / "results.md").read_text()
    paragraph = next(line for line in text.splitlines() if line.startswith("With learned positions"))
    learned, rotary = paragraph.split("With rotary positions")
    for said, part in ((learned, ""), (rotary, "rotary")):
        found = {
            r["experiment"]["row"]: r["metric"]["valid"]["loss"]
            for r in records
            if (r["experiment"]["column"], r["experiment"]["part"]) == ("mlm", part)
        }
        for row in ("softmax", "relu", "leaky_relu", "linear", "cosformer", "identity", "windows", "ours"):
            assert f"{row} {found[row]:.2f}" in said, (row, part)
    places = Places(records)
    softmax, windows, ours = (
        scores(places.best("pretrain", "imdb", row))[0] for row in ("softmax", "windows", "ours")
    )
    assert f"{100 * (windows - softmax):.1f} to {100 * (ours - softmax):.1f} points ahead" in text


def test_what_is_said_of_language_models_is_what_the_records_say():
    text = (ROOT / "docs" / "results.md").read_text()
    paragraph = next(line for line in text.splitlines() if line.startswith("After 180 million tokens"))
    rows = {
        "softmax": "softmax, rotary", "cosformer": "cosformer, rotary", "relu": "relu, rotary",
        "linear": "linear, rotary", "windows": "windows, all bounded + gate, norm; q, k norm",
        "ours": "one softmax layer of 1,024 + gate, norm; q, k norm",
    }  # fmt: skip
    found = {row: mean(bits("long", name, "test")) for row, name in rows.items()}
    for row, value in found.items():
        assert f"{row} {value:.3f}" in paragraph, row
    behind = found["cosformer"] - found["softmax"]
    assert f"{behind:.2f} bits behind softmax" in paragraph
    assert f"{found['relu'] - found['cosformer']:.3f} bits ahead of" in paragraph
    closed = (found["cosformer"] - found["windows"]) / behind
    assert f"close {100 * closed:.0f} % of that" in paragraph
    words = Places(list(reading.json_lines(ROOT / "results" / "plan-wikitext2.jsonl")))
    for row in ("softmax", "cosformer", "windows", "ours"):
        assert f"{row} {scores(words.best('wikitext2', 'wikitext2', row))[0]:.1f}" in paragraph, row


def test_what_is_said_of_the_cosine_is_what_the_records_say():
    places = Places(list(reading.json_lines(ROOT / "results" / "plan-cosine.jsonl")))
    text = (ROOT / "docs" / "results.md").read_text()
    paragraph = next(line for line in text.splitlines() if line.startswith("The cosine with M = T is ahead"))
    bits = {row: scores(places.best("cosine", "enwik8", row), "valid") for row in places.rows("cosine")}
    leads = [a - b for a, b in zip(bits["relu"], bits["cosine, M = T"], strict=True)]
    assert {f"{lead:.2f}" for lead in leads} == {"0.02"}
    for flat in ("cosine, M = 2T", "cosine, M = 4T"):
        assert abs(mean(bits["relu"]) - mean(bits[flat])) < 0.005
    shown = {row: f"{mean(found):.2f}" for row, found in bits.items()}
    box, windows = shown["relu, windows"], shown["cosine, windows"]
    assert f"({box} and {windows};" in paragraph
    assert f"{shown['cosine, M = T']} to {windows}, and softmax" in paragraph
    assert f"{shown['softmax']} to {shown['softmax, windows']}." in paragraph


def test_the_times_of_windows_are_those_of_the_record():
    reports = ROOT / "benchmarks" / "reports"
    newest, beside, of_128, portable, flex = (
        json.loads((reports / f"windows-cuda-{day}.json").read_text())
        for day in ("20261118-3", "20261118-2", "20261118", "20261117", "20261116")
    )
    text = (ROOT / "docs" / "performance.md").read_text()
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    wide = "heads of 128: "
    for row, contender, record, dim in (
        ("windows 2, 4,", "windows", newest, 64),
        ("the same, `backend", "windows[triton]", portable, 64),
        ("all heads W = 1,024", "window 1024", beside, 64),
        ("all heads W = 4,096", "window 4096", beside, 64),
        ("no windows", "plain", newest, 64),
        ("cuDNN", "softmax", beside, 64),
        ("Flex", "flex", flex, 64),
        (f"{wide}windows", "windows", of_128, 128),
        (f"{wide}all heads W = 1,024", "window 1024", of_128, 128),
        (f"{wide}no windows", "plain", of_128, 128),
        (f"{wide}cuDNN", "softmax", of_128, 128),
    ):
        cells = next(line[1:] for line in table if line[0].startswith(f"| {row}"))
        for cell, (mode, phase) in zip(
            cells,
            [(m, p) for m in ("causal", "bidirectional") for p in ("forward", "forward+backward")],
            strict=True,
        ):
            times = [
                r["median_s"] * 1000
                for r in record["timings"]
                if (r["contender"], r["mode"], r["phase"], r["dim"]) == (contender, mode, phase, dim)
                and "median_s" in r
            ]
            shown = cell.strip(" |").split("–")
            for time, said in zip((min(times), max(times)), shown, strict=True):
                assert said == f"{time:.{len(said.partition('.')[2])}f}", (row, mode, phase)
    early, late, many, _ = (d["median_s"] / d["floor_s"] for d in newest["decoding"])
    assert f"takes {early:.2f} times at position 1,000 and {late:.2f} at 1,000,000" in text
    assert f"with 512 rows {many:.2f}." in text
    causal, both = (1e3 * newest["host"][mode] for mode in ("causal", "bidirectional"))
    assert f"{causal:.3f} ms for a short causal call and {both:.3f} in both directions" in text
    causal, both = (1e3 * beside["host"][mode] for mode in ("causal", "bidirectional"))
    assert f"in the record before {causal:.3f} and {both:.3f}" in text


def test_the_times_of_windows_on_a_cpu_are_those_of_the_record():
    record = json.loads((ROOT / "benchmarks" / "reports" / "windows-cpu-20261117.json").read_text())
    text = (ROOT / "docs" / "performance.md").read_text()

    def took(contender, length):
        return next(
            r["median_s"] for r in record["timings"]
            if (r["contender"], r["length"], r["mode"]) == (contender, length, "causal")
            and r["phase"] == "forward+backward"
        )  # fmt: skip

    ms = {(c, t): f"{1e3 * took(c, t):.3g} ms" for c in ("windows", "plain", "softmax") for t in (512, 4096)}
    windows, plain, softmax = (ms[c, 4096] for c in ("windows", "plain", "softmax"))
    said = f"takes {windows}, where the plain operator takes {plain} and softmax (SDPA) {softmax}; "
    assert said + f"at T = 512 it takes {ms['windows', 512]} and softmax {ms['softmax', 512]}." in text
    narrow, wide = (f"{took(f'window {w}', 16384):.2f} s" for w in (512, 8192))
    assert f"every head 512 takes {narrow} at T = 16,384, every head 8,192 {wide}" in text
    early, late = (d["median_s"] for d in record["decoding"])
    assert f"takes {1e3 * early:.2f} ms, at position 1,000,000 as at 1,000" in text
    assert late <= 1.1 * early
