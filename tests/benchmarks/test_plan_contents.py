"""What the plans hold: whole and distinct runs, those that have records, rows that compare."""

import dataclasses
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks import ablation, cosine_plan, enwik8_plan, evidence_plan, small_arena_plan, time_slice
from benchmarks.plan import build, is_done, with_seed
from cosformer import tasks
from cosformer.report.sections import evidence
from cosformer.training.model import HEADS, configuration
from cosformer.training.run import digest

ROOT = Path(__file__).resolve().parents[2]
ALL = {**evidence_plan.PLANS, **ablation.PLANS}


def test_names_are_unique_and_settings_whole():
    """Every run builds its model; a seed makes another run."""
    for plan in ALL.values():
        entries = plan()
        assert len({e.name for e in entries}) == len(entries)
        assert all(e.seconds <= 20 * 60 for e in entries)
    entries = {e.name: e for plan in ALL.values() for e in plan()}
    digests = {}
    for entry in entries.values():
        run = build(
            dataclasses.replace(entry, tries=(), overrides={"learning_rate": 1.5e-3, **entry.overrides}), {}
        )
        digests.setdefault(digest(run), []).append(entry.name)
        sizes_of_files = run.task in ("wikitext2", "text", "image", "citations")
        if not sizes_of_files and run.task_settings.get("tokens") != "bpe":
            configuration(run, tasks.build(run.task, **run.task_settings))
    assert all(len(names) == 1 for names in digests.values()), digests
    assert digest(build(with_seed(entries["lra/image/softmax/rate 0.001"], 9), {})) not in digests


def test_what_is_fine_tuned_is_the_model_that_was_pretrained():
    """But for its classifier."""
    for entry in evidence_plan.pretrained():
        if entry.initial is not None:
            first, run = build(entry.initial, {}), build(entry, {})
            assert run.attention == first.attention
            own = {n: x for n, x in run.model.items() if n != "classifier_dropout"}
            assert own == {**first.model, "max_position_embeddings": first.task_settings["length"]}
            for name in ("tokens", "bpe_size"):
                assert run.task_settings[name] == first.task_settings[name]
            assert run.task_settings["bpe_corpus"] == first.task_settings["corpus"]


def test_what_has_filled_holes_is_the_model_of_the_arena():
    """In the inputs of the same task, and with the same horizon, though of texts less is read; but for its
    classifier."""
    after = [e for e in evidence_plan.pretrained_arena() if e.initial is not None]
    assert {e.column for e in after} == set(evidence_plan.ARENA)
    for entry in after:
        first, run = build(entry.initial, {}), build(entry, {})
        assert first.task_settings["of"] == run.task
        assert first.attention == run.attention
        lengths = [tasks.build(r.task, **r.task_settings).length for r in (first, run)]
        assert first.model.get("horizon", lengths[0]) == lengths[1]
        own = {n: x for n, x in run.model.items() if n not in ("pair_difference", "pooling")}
        assert {n: x for n, x in first.model.items() if n != "horizon"} == own


def test_records_are_those_of_the_plan():
    """What was run is found again: each record belongs to an entry, with just that entry's settings."""
    entries = {e.name: e for plan in ALL.values() for e in plan()}
    made = [json.loads(line) for path in (ROOT / "results").glob("plan-*.jsonl") for line in path.open()]
    assert made
    for record in made:
        entry, own = entries[record["experiment"]["name"]], record["settings"]["learning_rate"]
        assert entry.overrides.get("learning_rate", own) == own
        run = build(
            dataclasses.replace(entry, tries=(), overrides={**entry.overrides, "learning_rate": own}), {}
        )
        assert is_done(entry, run, {entry.name: record}), entry.name


def test_all_rows_of_the_arena_have_as_many_tries():
    """Two for each place, but for those that had another before; ours is windows where it has few layers."""
    tries = Counter((e.column, e.row) for e in evidence_plan.arena() if not e.repeats)
    places = {(task, row) for task in evidence_plan.ARENA for row in evidence_plan.ROWS}
    expected = dict.fromkeys(places - {("pathfinder", "ours")}, 2)
    assert tries == expected | dict.fromkeys(evidence_plan.BEFORE, 3)


def test_the_commands_beside_tables_make_runs():
    """Of all that a table holds, and of each row of it: with the learning rates and the weights that it
    needs, and with nothing else of other rows."""
    page = (ROOT / "docs" / "results.md").read_text()
    tables = re.findall(r"<!-- (\w+): .*?-->(.*?)<!-- end of", page, re.DOTALL)
    records = (json.loads(line) for path in (ROOT / "results").glob("plan-*.jsonl") for line in path.open())
    recorded, seen = {r["experiment"]["name"] for r in records}, []
    built = {
        program: {name: plan() for name, plan in module.PLANS.items()}
        for program, module in (("evidence", evidence_plan), ("ablation", ablation))
    }
    for name, table in tables:
        command = re.search(r"Again: `python -m benchmarks\.(evidence|ablation) ([^`]*)`", table)
        if command is None:
            continue
        plans = built[command[1]]
        parser = time_slice.parser("", "", plans)
        parts = parser.parse_args(shlex.split(command[2])).plan.split(",")
        every = {e.name: e for part in parts for e in plans[part]}
        if name == "language":  # of the study for CPU cores, this table has what is causal
            every = {n: e for n, e in every.items() if (e.plan, e.column) != ("cosine", "mlm")}
        rows = [line.split(" | ") for line in table.splitlines() if "`--only " in line]
        for row in rows:
            args = parser.parse_args(shlex.split(f"{command[2]} {row[-1].strip(' |`')}"))
            chosen = {e.name: e for e in time_slice.select(plans, args.plan.split(","), args.only)}
            own = [e for e in chosen.values() if any(words in f"{e.name}/" for words in args.only)]
            needs = {x for e in own for x in e.tries} | {e.initial.name for e in own if e.initial is not None}
            assert own, row
            assert {e.name for e in chosen.values() if e not in own} <= needs <= chosen.keys()
            short = row[0].strip("| ")
            rows_of = {short}
            if name == "language":
                rows_of |= {evidence.in_study(short), evidence.in_small_study(short)}
            if name in ("arena", "holes") and short == "ours":
                rows_of.add("windows")  # of two layers they are one
            assert {e.row for e in own} <= rows_of, row
            assert {
                x for x in recorded if x in every and every[x].row in rows_of - {"windows"}
            } <= chosen.keys()
        seen.append((name, len(rows)))
    assert len(seen) >= 7
    assert all(count >= 4 for _, count in seen), seen


def test_the_controls_differ_in_one_thing():
    """The same windows under softmax and under ReLU without the cosine."""
    ours = enwik8_plan.VARIANTS["windows, all bounded"]
    for name in enwik8_plan.CONTROLS:
        control = enwik8_plan.VARIANTS[name]
        assert control.model["attention_parameters"] == ours.model["attention_parameters"]
    assert enwik8_plan.VARIANTS["relu + windows"].model == ours.model
    names = [e.name for e in enwik8_plan.short()]
    assert len(names) == len(set(names))
    assert {e.row for e in enwik8_plan.short()} == set(enwik8_plan.VARIANTS)


def test_narrower_boxes_weigh_as_much_as_the_cosine():
    """Windows above 256 are multiples of 64."""
    for window in (1, *cosine_plan.WINDOWS):
        distances = torch.arange(window, dtype=torch.float64)
        total = torch.cos(torch.pi / 2 * distances / window).sum()
        assert abs(cosine_plan.box_of(window) - total) <= (0.5 if window <= 256 else 32)
    attention, model = cosine_plan.ROWS["relu, narrower windows"]
    assert attention == "relu"
    assert model["attention_parameters"]["windows"] == [2, 3, 11, 320]


@pytest.mark.parametrize("plan", [cosine_plan, small_arena_plan], ids=lambda plan: plan.PLAN)
def test_small_models_of_all_weights_are_of_one_size(plan):
    """Of those for CPU cores, too; random features are no parameters."""
    sizes = {column: {} for column in plan.COLUMNS}
    for entry in plan.entries():
        if "rate" in entry.part:
            run = build(entry, {})
            settings = dict(run.task_settings)
            if settings.get("tokens") == "bpe":  # learned from files
                settings["tokens"] = "bytes"
            task = tasks.build(run.task, **settings)
            with torch.device("meta"):
                model = HEADS[task.head](configuration(run, task))
            sizes[entry.column][entry.row] = model.num_parameters()
    assert set(sizes.popitem()[1]) == set(getattr(plan, "MASKED", plan.ROWS))
    for own in sizes.values():
        assert set(own) == set(plan.ROWS)
        assert max(own.values()) <= 1.01 * min(own.values()), own


def test_rows_of_the_small_arena_differ_in_attention_gate_and_norms_alone():
    """Positions, rates and budget are those of the task; what has windows has them all alike."""
    alike = {}
    for entry in small_arena_plan.entries():
        own = dict(entry.overrides)
        if entry.tries:
            assert set(entry.tries) == {
                f"{small_arena_plan.PLAN}/{entry.column}/{entry.row}/rate {rate:g}"
                for rate in small_arena_plan.RATES
            }
        model = {
            n: x for n, x in own.pop("model").items() if n not in small_arena_plan.GATED or n == "position"
        }
        alike.setdefault((entry.column, own.pop("learning_rate", None), own.pop("seed", 0)), []).append(
            {**own, "model": model}
        )
    assert len(alike) == len(small_arena_plan.COLUMNS) * 4
    for own in alike.values():
        assert len(own) == len(small_arena_plan.ROWS)
        assert all(x == own[0] for x in own)


def test_the_variants_are_of_one_size():
    """19 million parameters, but for learned positions within a hundredth; windows fit heads and layers."""
    sizes = {}
    for name, variant in enwik8_plan.VARIANTS.items():
        entry = enwik8_plan.of(name, "short", 100)
        own = entry.overrides["model"]
        given = own.get("attention_parameters", {})
        for windows in (
            p["windows"] for p in (given if isinstance(given, list) else [given]) if "windows" in p
        ):
            assert len(windows) == own["num_attention_heads"]
            assert all(w is None or w <= 256 or w % 64 == 0 for w in windows)
        if not isinstance(variant.attention, str):
            assert len(variant.attention) == len(given) == own["num_hidden_layers"]
        run = build(
            dataclasses.replace(entry, tries=(), overrides={**entry.overrides, "learning_rate": 1}), {}
        )
        with torch.device("meta"):
            sizes[name] = HEADS["causal_lm"](configuration(run, tasks.build("enwik8"))).num_parameters()
    softmax = sizes["softmax, rotary"]
    assert 18e6 < softmax < 20e6
    for name, size in sizes.items():
        assert abs(size / softmax - 1) < (0.03 if "learned" in name else 0.01), name
