"""Tables of planned runs: every figure is a record's, published ones stand apart, holes are named."""

import json
from pathlib import Path

import pytest

from cosformer.record_format import ADDED_FIELDS
from cosformer.report import records
from cosformer.report.document import Plot, Table
from cosformer.report.sections import arena, evidence, overview, published
from cosformer.report.sections.places import Places
from cosformer.report.write import report
from cosformer.training import Run

OURS = evidence.STUDY["ours"]


def planned(plan, column, row, valid, test, *, part="", seed=0, rate=1e-3, date="2026-01-01", **more):
    bits = plan == "enwik8"
    bits = bits or column == "enwik8"
    name = "bits_per_character" if bits else "perplexity" if plan == "wikitext2" else "accuracy"
    metric = {
        "name": name,
        "higher_is_better": plan.startswith("lra"),
        "valid": {name: valid},
        "test": {name: test},
    }
    words = "/".join(w for w in (plan, column, row, part) if w)
    place = {"plan": plan, "column": column, "row": row, "part": part, "name": words}
    loss = [[10, 1000, 0.0, 3.0], [20, 2000, 1.0, 2.0], [30, 3000, 2.0, 1.0]]
    return {
        "id": f"{words} {seed} {rate}", "task": "enwik8", "mechanism": "cosformer", "scale": "small",
        "seed": seed, "metric": metric, "experiment": place, "date": date, "parameters": 19_000_000,
        "tokens_per_s": 2e6, "settings": {"learning_rate": rate, "seed": seed},
        "curve": {"train": loss, "valid": []}, "hardware": {"gpu": "A GPU"}, **more,
    }  # fmt: skip


def table(section):
    found = next(b for b in section.blocks if isinstance(b, Table))
    assert all(len(row) == len(found.header) for row in found.rows)
    return found, {row[0]: row for row in found.rows}


def test_the_arena_has_the_best_rate_on_validation_and_published_figures_apart():
    runs = [
        planned("lra", "image", "cosformer", 0.40, 0.41, part="rate 0.001"),
        planned("lra", "image", "cosformer", 0.45, 0.39, part="rate 0.002", rate=2e-3),
        planned("lra", "image", "cosformer", 0.43, 0.43, part="rate 0.002, seed 1", rate=2e-3, seed=1),
        planned("lra", "image", "softmax", 0.30, 0.35, part="rate 0.001"),
        planned("lra", "image", "softmax", 0.30, 0.36, part="rate 0.001", date="2026-02-01"),
    ]
    failures = {"lra/text/linear/rate 0.0005": {"reason": "Diverged: the loss became nan"}}
    found, rows = table(arena.from_scratch(Places(runs, failures)))
    image = found.header.index("Image")
    assert rows["cosformer"][image : image + 2] == ["41.00 ± 2.00", "43.17"]
    assert rows["softmax"][image : image + 2] == ["36.00", "42.44"], "the newest record"
    assert rows["relu"][image : image + 2] == ["not run", "-"]
    assert rows["linear"][found.header.index("Text")] == "failed"
    assert rows["cosformer"][found.header.index("average")] == "not run", "not all five were"
    tried = found.header.index("settings tried")
    assert (rows["cosformer"][tried], rows["softmax"][tried]) == ("0, 0, 0, 2, 0", "0, 0, 0, 1, 0")
    assert rows["relu"][tried] == "-"
    every = [planned("lra", column, "ours", 0.5, share) for column, share in
             zip(arena.TASKS.values(), (0.4, 0.5, 0.6, 0.7, 0.8), strict=True)]  # fmt: skip
    found, rows = table(arena.from_scratch(Places(every)))
    assert rows["ours"][found.header.index("average")] == "60.00"


def test_what_was_pretrained_stands_apart_in_the_arena():
    """Neither table has the figures of the other, nor those of the pretraining itself."""
    runs = [planned("lra-pretrained", column, "windows", 0.5, share) for column, share in
            zip(arena.TASKS.values(), (0.4, 0.5, 0.6, 0.7, 0.8), strict=True)]  # fmt: skip
    runs.append(planned("lra-pretrained", "image-inputs", "windows", 9.0, 9.0))
    runs.append(planned("lra", "image", "softmax", 0.3, 0.3))
    _, rows = table(arena.pretrained(Places(runs)))
    assert rows["windows"][:-1] == ["windows", "40.00", "50.00", "60.00", "70.00", "80.00", "60.00"]
    assert rows["softmax"] == ["softmax", *["not run"] * 6, "`--only /softmax/`"]
    _, rows = table(arena.from_scratch(Places(runs)))
    assert "40.00" not in rows["windows"]


def test_with_few_layers_windows_are_ours():
    """In the arena, and not where a layer of softmax makes them another model."""
    usual = {"learning_rate": 1e-3, "seed": 0}
    runs = [
        planned("lra", column, row, valid, 0.2 + valid, settings={**usual, "model": {"num_hidden_layers": n}})
        for column, row, valid, n in (
            ("pathfinder", "windows", 0.5, 2), ("pathfinder", "ours", 0.4, 4), ("image", "windows", 0.5, 4),
        )
    ]  # fmt: skip
    titles = {section.title: section for section in evidence.sections(runs)}
    found, rows = table(titles["Long Range Arena (Table 4)"])
    pathfinder, image = (found.header.index(name) for name in ("Pathfinder", "Image"))
    assert (rows["ours"][pathfinder], rows["windows"][pathfinder]) == ("70.00", "70.00")
    assert (rows["ours"][image], rows["windows"][image]) == ("not run", "70.00")


@pytest.mark.parametrize("name", sorted(set(published.ARENA_AVERAGES) - {"sinkhorn"}))
def test_published_averages_are_those_of_their_tasks(name):
    """A slip of the pen would show. Sinkhorn's was published so."""
    assert sum(published.ARENA[name]) / 5 == pytest.approx(published.ARENA_AVERAGES[name], abs=0.02)


def test_language_models():
    runs = [
        planned("enwik8", "long", "softmax, rotary", 1.3, 1.31),
        planned("enwik8", "long", "softmax, rotary", 1.3, 1.33, part="seed 1", seed=1),
        planned("enwik8", "long, T = 8,192", "softmax, rotary", 1.5, 1.55),
        planned("enwik8", "long", OURS, 1.2, 1.25, rate=2e-3),
        planned("wikitext2", "wikitext2", "ours", 90.0, 85.0),
        planned("cosine", "enwik8", evidence.SMALL_STUDY["ours"], 2.2, 2.3),
    ]
    section = evidence.language(Places(runs))
    _, rows = table(section)
    assert f'and ours is "{OURS}". ' in section.blocks[0].caption
    assert rows["softmax"] == [
        "softmax", "1.3200 ± 0.0100", "1.137", "1.5500", "not run", "19.00", "0.001", "not run", "not run",
        "24.5 / 26.2", "`--only '/softmax, rotary/' /wikitext2/softmax/ /enwik8/softmax/`",
    ]  # fmt: skip
    assert rows["ours"][1:2] + rows["ours"][5:9] == ["1.2500", "19.00", "0.002", "2.300", "85.00"]


def test_the_ablation_shows_every_variant_beside_softmax():
    runs = [
        planned("enwik8", "short", "softmax, rotary", 1.7, 1.75, part="rate 0.001"),
        planned("enwik8", "short", "softmax, rotary", 1.6, 1.65, part="rate 0.002", rate=2e-3),
        planned("enwik8", "short", "windows", 1.52, 1.55),
        planned("enwik8", "long", "windows", 1.3, 1.31),
        planned("enwik8", "long", "softmax, rotary", 1.4, 1.41),
    ]
    failures = {"enwik8/short/growing": {"reason": "Diverged"}}
    section = evidence.ablation(Places(runs, failures), ["softmax, rotary", "growing", "one softmax layer"])
    _, rows = table(section)
    assert list(rows) == ["softmax, rotary", "growing", "one softmax layer", "windows"]
    assert rows["softmax, rotary"][1:7] == ["1.600", "1.000", "1.650", "0.002", "1.400", "1.410"]
    assert rows["windows"][1:7] == ["1.520", "0.950", "1.550", "0.001", "1.300", "1.310"]
    assert rows["growing"][1:4] == ["failed", "-", "failed"]
    assert rows["one softmax layer"][1:4] == ["not run", "-", "not run"]
    plots = [b for b in section.blocks if isinstance(b, Plot)]
    assert [[line.name for line in p.lines] for p in plots] == [["softmax, rotary", "windows"]] * 2
    assert plots[0].lines[0].points[-1] == (0.003, pytest.approx(1.4427, abs=1e-4))


def test_planned_runs_have_tables_of_their_own(tmp_path):
    """And are not mixed with the others in the report; failures are read from beside them."""
    runs = [
        planned("enwik8", "short", "windows", 1.5, 1.6),
        planned("enwik8", "short", "softmax, rotary", 1, 1),
    ]
    (tmp_path / "plan-enwik8.jsonl").write_text("".join(json.dumps(r) + "\n" for r in runs))
    (tmp_path / records.FAILURES).write_text(json.dumps({"enwik8/short/x": {"reason": "Diverged"}}))
    titles = [s.title for s in report(tmp_path, Path("nowhere")).sections]
    assert titles == [
        "At a glance", "Which similarity function (Table 1)", "Autoregressive language modelling (Table 2)",
        "Pretraining and fine-tuning (Table 3)", "Long Range Arena (Table 4)",
        "The arena in small", "Long Range Arena, pretrained on its own inputs", "Masked language modelling",
        "The cosine itself", "Ablation (enwik8)",
    ]  # fmt: skip
    assert evidence.sections([]) == overview.sections([], {}) == []


def test_the_cosine_itself():
    """Seeds of the better learning rate, in one direction and in both; rows that were not run say so."""
    runs = [
        planned("cosine", "enwik8", "relu", 3.2, 3.3, rate=3e-3, part="rate 0.003"),
        planned("cosine", "enwik8", "relu", 3.0, 3.1, rate=1e-3, part="rate 0.001"),
        planned("cosine", "enwik8", "relu", 3.2, 3.3, rate=1e-3, part="seed 1", seed=1),
        planned("cosine", "mlm", "relu", 20.0, 21.0, rate=3e-3, part="rate 0.003"),
    ]
    table = evidence.cosine(Places(runs), ["cosine, M = T", "relu"]).blocks[0]
    assert table.rows == [
        ["cosine, M = T", *["not run"] * 4, "-, -", "0, 0", "`--only '/cosine, M = T/'`"],
        ["relu", "3.100 ± 0.100", "3.200 ± 0.100", "20.000", "21.000", "0.001, 0.003", "2, 1",
         "`--only /relu/`"],
    ]  # fmt: skip


def test_the_small_arena_has_a_spread_for_each_task_and_for_their_average():
    """Of the better rate's seeds; no spread of the average where a task has fewer."""
    runs = [
        planned("lra-small", column, "relu", 0.5, share + seed / 50, part=f"seed {seed}", seed=seed)
        for column, share in zip(arena.TASKS.values(), (0.1, 0.2, 0.3, 0.4, 0.5), strict=True)
        for seed in (0, 1)
    ]
    runs.append(planned("lra-small", "image", "relu", 0.4, 0.9, part="rate 0.1", rate=0.1))
    _, rows = table(arena.small(Places(runs), ["softmax", "relu"]))
    spread = ["11.0 ± 1.0", "21.0 ± 1.0", "31.0 ± 1.0", "41.0 ± 1.0", "51.0 ± 1.0", "31.0 ± 1.0"]
    assert rows["relu"][1:] == [*spread, "2, 2, 2, 2, 2", "1, 1, 1, 2, 1", "`--only /relu/`"]
    assert rows["softmax"][1:7] == ["not run"] * 6
    _, rows = table(arena.small(Places(runs[1:])))
    assert rows["relu"][1:7] == ["12.0", *spread[1:5], "31.2"]


def test_at_a_glance_every_task_has_a_line():
    """With the scores of the tables that follow, in the words of the same rows."""
    runs = [
        planned("enwik8", "long", "softmax, rotary", 1.3, 1.31),
        planned("enwik8", "long", OURS, 1.2, 1.25, rate=2e-3),
        planned("enwik8", "long", OURS, 1.2, 1.27, rate=2e-3, part="seed 1", seed=1),
        planned("wikitext2", "wikitext2", "ours", 90.0, 85.0),
        planned("lra", "text", "relu", 0.40, 0.41),
        planned("cosine", "enwik8", "cosine, M = T", 3.4, 3.5),
        *(planned("lra", column, "softmax", 0.5, 0.6) for column in arena.TASKS.values()),
        *(planned("lra-small", column, "relu", 0.5, 0.3) for column in arena.TASKS.values()),
    ]
    lower, higher = (
        {row[0]: dict(zip(block.header[1:], row[1:], strict=True)) for row in block.rows}
        for block in overview.section(Places(runs)).blocks
    )
    enwik8 = lower["enwik8, bits per character"]
    assert (enwik8["softmax"], enwik8["ours"], enwik8["relu"]) == ("1.310", "1.260 ± 0.010", "not run")
    assert lower["WikiText-2, perplexity"]["ours"] == "85.0"
    assert lower["enwik8, small models, bits per character"]["cosformer"] == "3.500"
    assert (higher["Text, accuracy"]["softmax"], higher["Text, accuracy"]["relu"]) == ("60.00", "41.00")
    averages = higher[overview.AVERAGE]
    assert (averages["softmax"], averages["relu"]) == ("60.00", "not run")
    averages = higher[overview.SMALL_AVERAGE]
    assert (averages["softmax"], averages["relu"]) == ("not run", "30.00")


def test_a_field_that_records_did_not_have_yet_is_its_default():
    """A seed that is added later belongs to those that were made before runs had the field."""
    old = planned("enwik8", "long", "ours", 1.2, 1.25)
    new = planned("enwik8", "long", "ours", 1.2, 1.35, part="seed 1", seed=1)
    new["settings"] |= ADDED_FIELDS
    assert Places([old, new]).cell("enwik8", "long", "ours", ".2f") == "1.30 ± 0.05"
    new["settings"]["group_by_length"] = True
    assert Places([old, new]).cell("enwik8", "long", "ours", ".2f") == "1.25"
    run = Run("mqar", 1, 1, 0.1)
    assert {name: getattr(run, name) for name in ADDED_FIELDS} == ADDED_FIELDS


def test_settings_are_chosen_by_their_first_seed():
    """Further seeds of the best, which are worse by chance, do not make it the second best."""
    runs = [
        planned("enwik8", "long", "ours", 1.30, 1.31, rate=2e-3, part="seed 1", seed=1),
        planned("enwik8", "long", "ours", 1.20, 1.21, rate=2e-3),
        planned("enwik8", "long", "ours", 1.22, 1.23, rate=1e-3, part="rate 0.001"),
    ]
    assert Places(runs).cell("enwik8", "long", "ours", ".2f") == "1.26 ± 0.05"


def test_pretraining_and_what_was_fine_tuned_from_it():
    runs = [
        planned("pretrain", "mlm", "relu", 4.0, 4.1),
        planned("pretrain", "sst2", "relu", 0.80, 0.81, part="rate 0.0001"),
        planned("pretrain", "sst2", "relu", 0.82, 0.79, part="rate 0.0003", rate=3e-4),
        planned("pretrain", "cola", "linear", 0.2, 0.25, part="rate 0.0001"),
    ]
    for r in runs[1:]:
        r["metric"]["higher_is_better"] = True
    found, rows = table(evidence.similarity(Places(runs)))
    assert rows["relu"][1:5] == ["1.386", "1.993", "79.00", "89.90"], "the loss is the perplexity's logarithm"
    assert rows["ours"][1:5] == ["not run", "-", "not run", "-"]
    found, rows = table(evidence.fine_tuning(Places(runs)))
    assert rows["relu"][found.header.index("SST-2")] == "79.00"
    assert rows["linear"][found.header.index("CoLA")] == "25.00"
    assert rows["performer"][-3:] == ["56.28", "-", "`--only /performer/`"]
    assert rows["relu"][found.header.index("settings tried")] == "2, 0, 0, 0, 0, 0"
