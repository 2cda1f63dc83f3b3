"""Figures in what is said of the Long Range Arena are those of the records."""

from statistics import mean

from cosformer.report.sections import published
from cosformer.report.sections.arena import TASKS, average
from cosformer.report.sections.evidence import places_of
from cosformer.report.sections.places import Places, scores
from tests.docs.figures import RESULTS, ROOT, SHOWN, best, line_of, plan_records


def test_what_is_said_of_the_arena_in_small_is_what_the_records_say():
    places, text = Places(plan_records("lra-small")), RESULTS.read_text()

    def figure(row, column=None):
        if column is not None:
            return places.cell("lra-small", column, row, ".1f", 100).partition(" ±")[0]
        return average(places, "lra-small", row, ".1f").partition(" ±")[0]

    pairs = [("cosformer", "windows"), ("relu", "relu with windows"), ("softmax", "softmax with windows")]
    averages = [figure(row) for pair in pairs for row in pair]
    line = line_of(text, "- **Windows, gate and norms** raise")
    said = "from {} to {} with the cosine, from {} to {} with ReLU, and from {} to {} with softmax"
    assert said.format(*averages) in line
    tasks = ("pathfinder", "image", "text", "listops", "citations")
    gains = [figure(row, column) for column in tasks for row in pairs[0]]
    more = "Pathfinder gains most ({} to {}), then Image ({} to {}) and Text ({} to {})"
    less = "gains on ListOps ({} to {}) and citations ({} to {})"
    assert more.format(*gains[:6]) in line
    assert less.format(*gains[6:]) in line
    without, windows = (f"{averages[n]}, ReLU {averages[n + 2]}" for n in (0, 1))
    line = line_of(text, "- **The cosine** makes no difference with windows")
    assert f"these seeds can tell ({windows}), and does not help without them ({without})" in line
    seeds = {row: len(places.best("lra-small", "text", row)) for row in places.rows("lra-small")}
    assert seeds == dict.fromkeys(seeds, 2) | {"relu with windows": 1}, "the page says so"
    best = [places.best("lra-small", column, row)[0]["settings"]["learning_rate"]
            for column in TASKS.values() for row in places.rows("lra-small")]  # fmt: skip
    assert f"0.003, is the better one in {best.count(0.003)} of {len(best)} places" in text
    shown = (
        f"of cosFormer is {averages[0]} and that of ReLU alone {averages[2]}; with windows, gate and norms "
    )
    assert f"{shown}they are {averages[1]} and {averages[3]}." in text
    raised = "average of cosFormer from {} to {}, and that of softmax from {} to {}"
    assert raised.format(*averages[:2], *averages[4:]) in text
    readme = (ROOT / "README.md").read_text()
    raised = "average accuracy of cosFormer from {} to {} and that of softmax from {} to {}"
    assert raised.format(*averages[:2], *averages[4:]) in readme


def test_what_is_said_of_the_arena_is_what_the_records_say():
    places, text = places_of(plan_records("lra")), RESULTS.read_text()

    def figure(column, row, number=0):
        return f"{100 * mean(scores(places.tries('lra', column, row)[number])):.2f}"

    for column, start, names in (
        ("image", "- **Image**", ("windows", "ours", "cosformer", "softmax")),
        ("text", "- **Text**: windows", ("windows", "ours", "relu", "cosformer", "softmax")),
        ("listops", "- **ListOps**", ("cosformer", "softmax", "windows", "ours")),
        ("citations", "- **Citations** are learned", ("ours", "windows", "relu", "cosformer")),
        ("pathfinder", "- **Pathfinder**", ("softmax", "relu", "cosformer", "windows")),
    ):
        shown = ", ".join(f"{SHOWN.get(row, row)} {figure(column, row)}" for row in names)
        assert shown in line_of(text, start), column
    said = line_of(text, "- **ListOps**")
    assert f"cosformer left a lower plateau late ({figure('listops', 'cosformer', 1)})" in said
    assert f"the default model without positions hardly did ({figure('listops', 'ours', 1)})" in said
    twice = [
        f"{100 * r['metric']['test']['accuracy']:.2f}"
        for r in plan_records("lra")
        if r["experiment"]["name"] == "lra/listops/cosformer/rate 0.0005"
    ]
    assert "made twice, had {} and {}".format(*twice) in said
    positions = {
        r["experiment"]["row"]: r["settings"]["model"]["position"]
        for r in plan_records("lra")
        if r["experiment"]["part"] == "rate 0.001, relative" and r["experiment"]["column"] == "text"
    }
    assert positions == {"windows": "none", "ours": "none"} | dict.fromkeys(
        ("softmax", "relu", "cosformer"), "rotary"
    ), "the page says so"
    assert not places.best("lra", "citations", "softmax"), "the page says that it has no record"
    past = {}
    for record in plan_records("lra"):
        if record["experiment"]["column"] == "pathfinder":
            scored = [step for step, score in record["curve"]["valid"] if score > 0.65]
            past[record["experiment"]["row"]] = f"{scored[0]:,}"
    passed = line_of(text, "- The positions of the two discs alone")
    assert (
        "softmax passes this at step {softmax}, relu at {relu}, cosformer at {cosformer}".format(**past)
        in passed
    )
    assert f"at {past['windows']}. The cosine" in passed


def test_the_averages_of_the_arena_are_those_of_its_table():
    paragraph = line_of(RESULTS.read_text(), "One seed each, and so far")
    places = places_of(plan_records("lra"))
    averages = {row: average(places, "lra", row) for row in ("cosformer", "windows", "ours")}
    assert f"cosformer has {averages['cosformer']}, windows" in paragraph
    assert f"windows has {averages['windows']} and the default model {averages['ours']}." in paragraph
    both = [
        (float(places.cell("lra", column, "cosformer", ".8f", 100)), told)
        for column, told in zip(TASKS.values(), published.ARENA["cosformer"], strict=True)
        if column != "citations"
    ]
    ours, told = (mean(figures) for figures in zip(*both, strict=True))
    assert f"cosformer has {ours:.2f}, where {told:.2f} is published" in paragraph


def test_what_is_said_of_pretrained_models_of_the_arena_is_what_the_records_say():
    own = places_of(plan_records("lra-pretrained"))
    text = RESULTS.read_text()

    def gained(column, row, words):
        return words.format(*(best(plan, column, row) for plan in ("lra", "lra-pretrained")))

    of_text, of_citations = (
        line_of(text, f"- **{words}") for words in ("Text**: pretraining", "Citations**:")
    )
    assert gained("text", "windows", "windows from {} to {}.") in of_text
    assert gained("text", "cosformer", "gains a point ({} to {})") in of_text
    assert gained("citations", "cosformer", "gains a point as well ({} to {})") in of_citations
    for column, line in (("text-inputs", of_text), ("citations-inputs", of_citations)):
        plain, windows = (
            scores(own.best("lra-pretrained", column, row))[0] for row in ("cosformer", "windows")
        )
        assert f"{plain:.2f} where windows have {windows:.2f}" in line
