"""Figures in the sentences of README.md and the documentation are those of the records."""

from statistics import mean

import pytest
import torch

from cosformer.models import CosformerConfig, CosformerForCausalLM
from cosformer.report.sections.places import Places, scores
from tests.docs.figures import RESULTS, ROOT, SHOWN, best, bits, line_of, plan_records


def test_the_quality_in_the_readme_is_that_of_the_records():
    """The sentences below its tables."""
    text = (ROOT / "README.md").read_text()
    hybrid = "one softmax layer of 1,024 + gate, norm; q, k norm"
    windows = "windows, all bounded + gate, norm; q, k norm"

    def above(name):
        own, softmax = (bits("long", x, "valid") for x in (name, "softmax, rotary"))
        return 100 * (mean(own) / mean(softmax) - 1)

    assert f"bits per character are {-above(hybrid):.1f} % lower than softmax's;" in text
    assert f"without any softmax layer are {above(windows):.1f} % higher." in text
    assert f"it needs about {above(windows):.0f} % more bits per character than softmax" in text
    own, softmax = (f"{mean(bits('long', x, 'test')):.3f}" for x in (hybrid, "softmax, rotary"))
    assert f"reaches {own} bits per character on enwik8 at 19M parameters" in text
    assert f"a softmax Transformer of the same size reaches {softmax}." in text
    short = {r["experiment"]["row"] for r in plan_records("enwik8") if r["experiment"]["column"] == "short"}
    windowed = [row for row in short if row.startswith(("windows", "growing", "one softmax layer"))]
    assert f"tokens {len(windowed)} variants with windows were run, and four of softmax" in text
    assert sum(row.startswith("softmax") for row in short) == 4
    longer = [mean(bits("T = 8,192", name, "valid")) for name in (hybrid, "softmax, rotary")]
    assert f"reaches {longer[0]:.3f} bits on validation (85M tokens)" in text
    assert f"and softmax {longer[1]:.3f} (56M tokens)" in text
    tests = [f"{mean(bits(column, 'softmax, rotary', 'test')):.3f}" for column in ("T = 8,192", "short")]
    assert "it reaches {} on test, but {} after 39M tokens".format(*tests) in text
    without, cosine = (
        mean(bits("short", name, "valid")) for name in ("relu + windows", "windows, all bounded")
    )
    assert f"the same windows without the cosine reach {without:.3f}, with it {cosine:.3f}" in text
    own, plain = (best("lra-pretrained", "text", row, ".1f") + " %" for row in ("windows", "cosformer"))
    assert f"windows reaches {own} on Text and cosFormer without windows {plain}" in text


def test_the_sizes_of_the_default_model_in_the_readme_are_those_of_the_code():
    text = (ROOT / "README.md").read_text()

    def parameters(config):
        return sum(p.numel() for p in CosformerForCausalLM(config).parameters())

    assert f"4 layers of width 256, {parameters(CosformerConfig()) / 1e6:.1f}M parameters" in text
    sizes = {
        "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1792,
    }  # fmt: skip
    assert "CosformerConfig({})".format(", ".join(f"{k}={v}" for k, v in sizes.items())) in text
    (of_the_table,) = {
        r["parameters"]
        for r in plan_records("enwik8")
        if r["experiment"]["row"] == "one softmax layer of 1,024 + gate, norm; q, k norm"
        and r["experiment"]["column"] == "long"
    }
    assert abs(parameters(CosformerConfig(**sizes)) / of_the_table - 1) < 0.001
    mib = []
    for config in (CosformerConfig(), CosformerConfig(attention="cosformer")):
        cache = CosformerForCausalLM(config)(torch.zeros(1, 1, dtype=torch.int64), use_cache=True)
        mib.append(f"{cache.past_key_values.nbytes / 2**20:.1f} MiB")
    assert "is {} ({} without the softmax layer), at any length".format(*mib) in text


def test_the_tables_of_the_readme_have_each_row_its_own_figures():
    """Read from the records in another way than they are rendered."""
    text = (ROOT / "README.md").read_text()
    for words, name in (
        ("| softmax, rotary positions |", "softmax, rotary"),
        ("| cosFormer as published (one horizon), rotary positions |", "cosformer, rotary"),
        ("| the same with gate and norms |", "windows, all bounded + gate, norm; q, k norm"),
        ("| **the same with one layer", "one softmax layer of 1,024 + gate, norm; q, k norm"),
    ):
        cells = [cell.split()[0] for cell in line_of(text, words).split(" | ")[1:]]
        figures = [
            mean(bits(*x))
            for x in (("short", name, "valid"), ("long", name, "valid"), ("long", name, "test"))
        ]
        assert cells == [f"{figure:.3f}" for figure in figures], words
    header = line_of(text, "| bidirectional models").split(" | ")
    for task in ("Image", "Text"):
        row = dict(zip(header[1:], line_of(text, f"| {task}, accuracy").split(" | ")[1:], strict=True))
        records = [r for r in plan_records("lra") if r["experiment"]["column"] == task.lower()]
        for column, name in (("softmax", "softmax"), ("cosFormer as published", "cosformer")):
            own = [r["metric"] for r in records if r["experiment"]["row"] == name]
            chosen = max(own, key=lambda metric: metric["valid"]["accuracy"])
            assert float(row[column]) == pytest.approx(100 * chosen["test"]["accuracy"], abs=0.051)


def test_what_the_results_say_at_a_glance():
    text = RESULTS.read_text()
    line = line_of(text, "- **Comparable to softmax, without windows")
    for plan, words, column in (
        *(("lra", words, words.lower()) for words in ("ListOps", "Text", "Image", "Pathfinder")),
        ("pretrain", "SST-2", "sst2"), ("pretrain", "IMDB", "imdb"),
    ):  # fmt: skip
        ours, softmax = (best(plan, column, row) for row in ("cosformer", "softmax"))
        assert f"{words} {ours} ({softmax})" in line.replace("(softmax ", "("), words
    line = line_of(text, "- **In language modelling, no")
    plain, softmax = (mean(bits("long", f"{row}, rotary", "test")) for row in ("cosformer", "softmax"))
    assert f"{plain - softmax:.2f} bits behind" in line
    masked = [best("pretrain", "mlm", row, ".0f", 1, "valid") for row in ("cosformer", "softmax")]
    assert f"{masked[0]} where softmax has {masked[1]})" in line
    line = line_of(text, "- **The cosine helps")
    assert f"{mean(bits('long', 'relu, rotary', 'test')) - plain:.3f} bits" in line
    assert "by 0.02 bits with each of three seeds" in line  # test_what_is_said_of_the_cosine_...
    line = line_of(text, "- **It does not help the Long")

    def lead(column, row, other):
        exact = [float(best("lra", column, name, ".8f")) for name in (row, other)]
        return f"{exact[0] - exact[1]:.1f}"

    words = [lead(column, "relu", "cosformer") for column in ("text", "citations", "pathfinder")]
    assert "by {} points on Text, {} on citations and {} on Pathfinder".format(*words) in line
    assert {best("lra", column, "relu") for column in ("listops", "image")} == {"not run"}
    line = line_of(text, "- **Windows are what was missing in")
    more = [lead(column, "windows", "cosformer") for column in ("image", "text", "citations")]
    gains = "gain {} points over cosFormer as published on Image, {} on Text and {} on citations"
    assert gains.format(*more) in line
    assert f"lose {lead('pathfinder', 'cosformer', 'windows')} on Pathfinder" in line
    line = line_of(text, "- **The cost is linear**")
    training = text.partition("| training |")[2].partition("| inference |")[0]
    cosformer, softmax, windows, ours = (
        [
            round(float(cell.removesuffix(" ms")))
            for cell in line_of(training, f"| {row} |").split(" | ")[1:5:3]
        ]
        for row in ("cosformer", "softmax", "windows", "ours")
    )
    assert cosformer[0] == cosformer[1]
    assert f"takes {cosformer[0]} ms in sequences" in line
    assert f"softmax takes {softmax[0]} and {softmax[1]}." in line
    assert f"take {windows[0]} and {windows[1]} ms, the default model {ours[0]} and {ours[1]}: slower" in line
    slower = [round(20 * (own[0] / softmax[0] - 1)) * 5 for own in (windows, ours)]
    assert "takes some {} to {} % longer than softmax's".format(*slower) in (ROOT / "README.md").read_text()


def test_the_losses_of_pretraining_are_those_of_the_records():
    """Both sentences, learned positions and rotary ones, and the lead on IMDB."""
    records = plan_records("pretrain")
    text = RESULTS.read_text()
    for start, part in (("- **With learned positions**", ""), ("- **With rotary positions**", "rotary")):
        said = line_of(text, start)
        found = {
            r["experiment"]["row"]: r["metric"]["valid"]["loss"]
            for r in records
            if (r["experiment"]["column"], r["experiment"]["part"]) == ("mlm", part)
        }
        for row in ("softmax", "relu", "leaky_relu", "linear", "cosformer", "identity", "windows", "ours"):
            assert f"{SHOWN.get(row, row)} {found[row]:.2f}" in said, (row, part)
    places = Places(records)
    softmax, windows, ours = (
        scores(places.best("pretrain", "imdb", row))[0] for row in ("softmax", "windows", "ours")
    )
    assert f"{100 * (windows - softmax):.1f} to {100 * (ours - softmax):.1f} points ahead" in text


def test_what_is_said_of_language_models_is_what_the_records_say():
    text = RESULTS.read_text()
    paragraph, gap, by_word = (
        line_of(text, f"- **{words}")
        for words in ("cosFormer is ahead of elu + 1", "That a causal cosFormer", "Word by word")
    )
    rows = {
        "softmax": "softmax, rotary", "cosformer": "cosformer, rotary", "relu": "relu, rotary",
        "linear": "linear, rotary", "windows": "windows, all bounded + gate, norm; q, k norm",
        "ours": "one softmax layer of 1,024 + gate, norm; q, k norm",
    }  # fmt: skip
    found = {row: mean(bits("long", name, "test")) for row, name in rows.items()}
    for row, value in found.items():
        assert f"{SHOWN.get(row, row)} {value:.3f}" in paragraph, row
    behind = found["cosformer"] - found["softmax"]
    assert f"{behind:.2f} bits behind" in gap
    assert f"{found['relu'] - found['cosformer']:.3f} bits behind the cosine" in paragraph
    closed = (found["cosformer"] - found["windows"]) / behind
    assert f"close {100 * closed:.0f} % of that" in gap
    assert f"closes {100 * closed:.0f} % of its distance" in text
    words = Places(plan_records("wikitext2"))
    for row in ("softmax", "cosformer", "windows", "ours"):
        figure = f"{scores(words.best('wikitext2', 'wikitext2', row))[0]:.1f}"
        assert f"{SHOWN.get(row, row)} {figure}" in by_word, row


def test_what_is_said_of_the_cosine_is_what_the_records_say():
    places = Places(plan_records("cosine"))
    paragraph = line_of(RESULTS.read_text(), "The cosine with M = T is ahead")
    bits = {row: scores(places.best("cosine", "enwik8", row), "valid") for row in places.rows("cosine")}
    leads = [a - b for a, b in zip(bits["relu"], bits["cosine, M = T"], strict=True)]
    assert {f"{lead:.2f}" for lead in leads} == {"0.02"}
    at_a_glance = line_of(RESULTS.read_text(), "- **The cosine helps")
    performer = mean(bits["cosine, M = T"]) - mean(bits["performer"])
    assert f"Performer is ahead of it by {performer:.2f} bits and RFA level" in at_a_glance
    assert abs(mean(bits["rfa"]) - mean(bits["cosine, M = T"])) < 0.005
    for flat in ("cosine, M = 2T", "cosine, M = 4T"):
        assert abs(mean(bits["relu"]) - mean(bits[flat])) < 0.005
    shown = {row: f"{mean(found):.2f}" for row, found in bits.items() if found}  # some are masked alone
    box, windows = shown["relu, windows"], shown["cosine, windows"]
    assert f"({box} and {windows};" in paragraph
    assert f"{shown['cosine, M = T']} to {windows}, and softmax" in paragraph
    assert f"{shown['softmax']} to {shown['softmax, windows']}." in paragraph


def test_what_is_said_of_controls_in_small_models_is_what_the_records_say():
    places = Places(plan_records("cosine"))

    def figure(row, column="mlm", split="test"):
        return f"{mean(scores(places.best('cosine', column, row), split)):.2f}"

    causal = line_of(RESULTS.read_text(), "The cosine with M = T is ahead")
    ours, softmax = (f"{name}, windows, gate and norms" for name in ("cosine", "softmax"))
    box, own, theirs = (figure(row, "enwik8", "valid") for row in ("relu, narrower windows", ours, softmax))
    assert f"the same total weight as the cosine also reaches {box}." in causal
    assert f"cosFormer has {own}, and softmax under the same windows {theirs}:" in causal
    leads = [scores(places.best("cosine", "enwik8", row), "valid") for row in (ours, softmax)]
    assert all(a > b for a, b in zip(*leads, strict=True)), "with every seed"
    assert f"by {mean(leads[0]) - mean(leads[1]):.2f} bits (three seeds)" in (ROOT / "README.md").read_text()
    both = line_of(RESULTS.read_text(), "In bidirectional models, over masked bytes")
    for words, *rows in (
        ("ReLU has a perplexity of {} and the cosine {}, which", "relu", "cosine, M = T"),
        (
            "beside them performer has {}, rfa {}, linear {}, leaky_relu {} and identity {},",
            *("performer", "rfa", "linear", "leaky_relu", "identity"),
        ),
        ("bring ReLU to {} and the cosine to {}, ahead", "relu, windows", "cosine, windows"),
        ("softmax without any ({}); under the same windows softmax has {}.", "softmax", "softmax, windows"),
        ("it is {} for cosFormer, {} for softmax, and {} with", ours, softmax, f"{ours}; one softmax layer"),
        (
            "windows has {}, and with gate and norms {}:",
            "cosine, windows; no positions",
            f"{ours}; no positions",
        ),
    ):
        assert words.format(*map(figure, rows)) in both, words
    pairs = [
        zip(*(scores(places.best("cosine", "mlm", row)) for row in rows), strict=True)
        for rows in (("relu", "cosine, M = T"), ("relu, windows", "cosine, windows"))
    ]
    leads, apart = ([a - b for a, b in own] for own in pairs)
    assert len(leads) == len(apart) == 3
    assert f"ahead with each of three seeds, by {min(leads):.2f} to {max(leads):.2f};" in both
    assert max(map(abs, apart)) < 0.03
    assert "are level: with each of three seeds they are less than 0.03 apart." in both
    taken = [
        1 - float(figure(row)) / float(figure(f"{row}; no positions")) for row in ("cosine, windows", ours)
    ]
    assert f"take {100 * min(taken):.0f} to {100 * max(taken):.0f} % off" in both
    models = (ROOT / "docs" / "models.md").read_text()
    assert f"masked bytes of {figure(ours)} and {figure(f'{ours}; no positions')}, means of" in models
