"""Plans of runs: what they wait for, what they need, and a scheduler that is stopped, fails and goes on."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import ablation, curve, enwik8_plan, evidence_plan, time_slice, worker
from benchmarks.plan import NotYet, build, by_name, files_of, is_done, with_seed
from benchmarks.scheduler import Scheduler
from benchmarks.slot import Slot
from cosformer import tasks
from cosformer.training.model import HEADS, configuration
from cosformer.training.run import digest
from tests.benchmarks import stubborn, tiny_plan

ROOT = Path(__file__).resolve().parents[2]
ALL = {**evidence_plan.PLANS, **ablation.PLANS}


def arguments(folder, plan, *options):
    own = {"--plan": plan, "--jobs": "2", "--folder": folder, "--out": folder / "out"}
    return [*(str(x) for pair in own.items() for x in pair), "--results", str(folder / "results"), *options]


def begun(folder, plan):
    """The command in a process of its own, with no data and a cache of its own."""
    environment = {**os.environ, "COSFORMER_DATA": str(folder / "nothing"), "COSFORMER_CACHE": str(folder)}
    command = [sys.executable, "-m", "tests.benchmarks.tiny_plan", *arguments(folder, plan)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=pipe, stderr=pipe)


def called(folder, plan):
    process = begun(folder, plan)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    return said, errors


def here(folder, capsys, *options):
    """What the command says where nothing is to be trained."""
    time_slice.main("tiny_plan", "Tiny runs.", tiny_plan.PLANS, arguments(folder, *options))
    return capsys.readouterr().out


def records(folder):
    return [json.loads(line) for line in (folder / "out" / "records.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_a_plan_that_is_stopped_goes_on_where_it_was(tmp_path, capsys):
    first = begun(tmp_path, "cut")
    for line in first.stderr:
        if "ends:   tiny/mqar/low" in line:
            first.send_signal(signal.SIGTERM)
            break
    said, errors = first.communicate()
    assert first.returncode == 0, errors
    assert "is cut off: tiny/mqar/long" in errors
    assert "tiny/mqar/long: cut off at" in said
    (folder,) = tmp_path.glob("tiny-mqar-long-*")
    (step,) = (int(p.name.rpartition("-")[2]) for p in folder.glob("checkpoint-*"))
    assert 0 < step < 500
    identity = json.loads((folder / "run.json").read_text())["id"]
    assert "tiny/mqar/low" in [r["experiment"]["name"] for r in records(tmp_path)]

    said, errors = called(tmp_path, "cut")
    assert "begins: tiny/mqar/low" not in errors, "it has a record"
    made = {r["experiment"]["name"]: r for r in records(tmp_path)}
    assert set(made) == {"tiny/mqar/long", "tiny/mqar/low", "tiny/mqar/high"}
    assert made["tiny/mqar/long"]["id"] == identity
    assert made["tiny/mqar/long"]["steps"] == 500
    assert len(made["tiny/mqar/long"]["curve"]["train"]) == 50
    assert not list(tmp_path.glob("tiny-mqar-*")), "folders of finished runs are removed"
    # Records of another machine count as well.
    assert time_slice.collect(tmp_path / "out" / "records.jsonl", tmp_path / "results") == 3
    assert time_slice.collect(tmp_path / "out" / "records.jsonl", tmp_path / "results") == 0
    (tmp_path / "records.jsonl").unlink()
    assert here(tmp_path, capsys, "cut", "--dry-run").count("recorded") == 3


@pytest.mark.thorough
def test_what_fails_is_told_and_not_tried_again(tmp_path, capsys):
    said, errors = called(tmp_path, "failing")
    assert "FAILED: tiny/mqar/bad: Diverged" in errors
    for state in (
        "tiny/mqar/bad: failed: Diverged",
        "tiny/enwik8/no data: no data: DataError",
        "1 runs made, 0 still to be run.",
    ):
        assert state in said
    again = here(tmp_path, capsys, "failing", "--only", "mqar")
    assert "tiny/mqar/bad: failed: Diverged" in again
    assert "0 runs made, 0 still to be run." in again
    retried = here(tmp_path, capsys, "failing", "--dry-run", "--retry").splitlines()
    assert [line.rpartition("  ")[2] for line in retried if "mqar/bad" in line] == ["to be run"]


@pytest.mark.thorough
def test_a_run_that_starts_from_the_weights_of_another(tmp_path, capsys):
    said, errors = called(tmp_path, "chained")
    assert errors.index("ends:   tiny/mqar/first") < errors.index("begins: tiny/mqar/second")
    assert "2 runs made, 0 still to be run." in said
    made = {r["experiment"]["row"]: r for r in records(tmp_path)}
    assert made["first"]["settings"]["initial"] is None
    initial = made["second"]["settings"]["initial"]
    assert re.fullmatch("tiny/mqar/first, [0-9a-f]{8}", initial), "no path of this machine"
    (weights,) = (tmp_path / "weights").iterdir()
    assert (weights / "model.safetensors").is_file()
    assert here(tmp_path, capsys, "chained", "--dry-run").count("recorded") == 2


def test_weights_that_others_start_from_are_made_again(tmp_path):
    """A record of another machine is a figure, and no weights."""
    second, first = tiny_plan.chained()

    def states(known):
        plan = Scheduler([second, first], tmp_path, tmp_path / "out", known, 1, 8.0, time.monotonic() + 60)
        plan.look()
        return [plan.state[e.name] for e in (first, second)]

    known = [
        _record(e.name, 0.5, 1e-3) | {"settings": build(e, {}).to_dict(), "date": "2026"}
        for e in (first, second)
    ]
    waits = "waits for the weights of tiny/mqar/first"
    assert states([]) == ["to be run", waits]
    assert states(known[:1]) == ["to be run", waits]
    assert states(known) == ["recorded", "recorded"]
    plan = Scheduler([second, first], tmp_path, tmp_path / "out", [], 1, 8.0, time.monotonic() + 60)
    plan.weights(first).mkdir(parents=True)
    assert states(known[:1]) == ["recorded", "to be run"]
    # Of other settings, the weights are others, and so is what starts from them.
    first = dataclasses.replace(first, overrides={**first.overrides, "steps": 13})
    second = dataclasses.replace(second, initial=first)
    assert states(known) == ["to be run", waits]


def test_what_a_run_starts_from_comes_with_it(tmp_path, capsys):
    said = here(tmp_path, capsys, "chained", "--only", "second", "--dry-run")
    assert "tiny/mqar/first" in said.split("Data files")[0]


def test_words_of_several_runs(tmp_path, capsys):
    """Of any of them; a / behind the words ends a name."""

    def chosen(*words):
        said = here(tmp_path, capsys, "three", "--only", *words, "--dry-run").split("runs to be made")[0]
        return [name for name in ("low", "high", "chosen") if f"tiny/mqar/{name}" in said]

    assert chosen("low", "high") == ["low", "high"]
    assert chosen("/lo") == ["low"]
    assert chosen("/low/") == ["low"]
    assert chosen("/chosen/") == ["low", "high", "chosen"], "the learning rates that it takes come with it"
    for words in (["/lo/"], ["/low/", "nothing"]):
        with pytest.raises(SystemExit):
            chosen(*words)
        assert f"--only '{words[-1]}': no run of three has these words in its name" in capsys.readouterr().err


def test_weights_are_there_all_at_once(tmp_path, monkeypatch):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "model.safetensors").write_text("weights")
    real = shutil.copytree

    def copied(*paths):
        assert not (tmp_path / "kept").exists()
        return real(*paths)

    monkeypatch.setattr(worker.shutil, "copytree", copied)
    for _ in range(2):
        worker._kept(tmp_path / "best", tmp_path / "kept")
        assert (tmp_path / "kept" / "model.safetensors").read_text() == "weights"
        shutil.rmtree(tmp_path / "kept")
    folder = tmp_path / "runs" / "a-run"
    assert worker._words(ValueError(f"{folder}/x is damaged"), folder) == "ValueError: a-run/x is damaged"


def test_the_deadline_is_kept(tmp_path, monkeypatch):
    """Also where a worker does not stop when it is asked to."""
    monkeypatch.setattr(worker, "serve", stubborn.serve)
    monkeypatch.setattr(Scheduler, "_has_data", lambda self, run: True)
    began = time.monotonic()
    plan = Scheduler(tiny_plan.endless(), tmp_path, tmp_path / "out", [], 2, 8.0, began + 6, grace=2.5)
    plan.work()
    assert 3 <= time.monotonic() - began <= 7
    assert not any(slot.process.is_alive() for slot in plan.slots)
    assert plan.finished == []
    plan = Scheduler(
        tiny_plan.endless(), tmp_path, tmp_path / "out", [], 2, 8.0, began + 60, resume_later=False
    )
    plan.work()
    assert time.monotonic() - began <= 10, "nothing is begun that cannot end"


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
    assert digest(build(with_seed(entries["lra/image/softmax/rate 0.001"], 1), {})) not in digests


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
    """In the inputs of the same task, and with the same horizon, though of texts less is read."""
    after = [e for e in evidence_plan.pretrained_arena() if e.initial is not None]
    assert {e.column for e in after} == set(evidence_plan.ARENA)
    for entry in after:
        first, run = build(entry.initial, {}), build(entry, {})
        assert first.task_settings["of"] == run.task
        assert first.attention == run.attention
        lengths = [tasks.build(r.task, **r.task_settings).length for r in (first, run)]
        assert first.model.get("horizon", lengths[0]) == lengths[1]
        assert {n: x for n, x in first.model.items() if n != "horizon"} == run.model


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


def test_the_commands_beside_tables_make_runs():
    """Of all that a table holds, and of each row of it: with the learning rates and the weights that it
    needs, and with nothing else of other rows."""
    page = (ROOT / "docs" / "results.md").read_text()
    tables = re.findall(r"<!-- (\w+): .*?-->(.*?)<!-- end of", page, re.DOTALL)
    records = (json.loads(line) for path in (ROOT / "results").glob("plan-*.jsonl") for line in path.open())
    recorded, seen = {r["experiment"]["name"] for r in records}, []
    for name, table in tables:
        command = re.search(r"Again: `python -m benchmarks\.(evidence|ablation) ([^`]*)`", table)
        if command is None:
            continue
        plans = {"evidence": evidence_plan, "ablation": ablation}[command[1]].PLANS
        parser = time_slice.parser("", "", plans)
        parts = parser.parse_args(shlex.split(command[2])).plan.split(",")
        every = {e.name: e for part in parts for e in plans[part]()}
        rows = [line.split(" | ") for line in table.splitlines() if "`--only " in line]
        for row in rows:
            args = parser.parse_args(shlex.split(f"{command[2]} {row[-1].strip(' |`')}"))
            chosen = {e.name: e for e in time_slice.select(plans, args.plan.split(","), args.only)}
            own = [e for e in chosen.values() if any(words in f"{e.name}/" for words in args.only)]
            needs = {x for e in own for x in e.tries} | {e.initial.name for e in own if e.initial is not None}
            assert own, row
            assert {e.name for e in chosen.values() if e not in own} <= needs <= chosen.keys()
            short, _, long = row[0].strip("| ").partition(": ")
            rows_of = {short, long, f"{short}, rotary"}
            if name == "arena" and short == "ours":
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


def _record(name, score, rate, **more):
    metric = {"name": "accuracy", "higher_is_better": True, "valid": {"accuracy": score}}
    settings = {"learning_rate": rate}
    return {"experiment": {"name": name, **more}, "metric": metric, "settings": settings, "date": "2026"}


def test_a_run_takes_the_best_learning_rate_that_was_tried():
    low, high, chosen = tiny_plan.three()
    with pytest.raises(NotYet, match="waits for 2 of 2 learning rates"):
        build(chosen, {})
    known = by_name([_record(low.name, 0.5, 1e-3), _record(high.name, 0.4, 3e-3)])
    assert build(chosen, known).learning_rate == 1e-3
    known = by_name([*known.values(), {**_record(high.name, 0.6, 3e-3), "date": "2027"}])
    assert build(chosen, known).learning_rate == 3e-3
    del known[low.name]
    with pytest.raises(NotYet, match="waits for 1 of 2"):
        build(chosen, known)
    assert build(chosen, known, failed={low.name: {}}).learning_rate == 3e-3


def test_a_record_of_other_settings_is_of_another_run():
    low = tiny_plan.three()[0]
    run = build(low, {})
    known = by_name([{**_record(low.name, 0.5, 1e-3), "settings": run.to_dict()}])
    assert is_done(low, run, known)
    assert not is_done(low, run.replace(steps=13), known)
    assert digest(run.replace(workers=3, device="auto")) == digest(run)
    as_published = {**run.model, "output_gate": None, "qk_norm": False}
    assert is_done(low, run.replace(model=as_published), known), "fields that were left out are the paper's"
    assert not is_done(low, run.replace(model={**run.model, "qk_norm": True}), known)


def test_short_runs_are_not_compiled(tmp_path):
    entries = [dataclasses.replace(e, seconds=n) for e, n in zip(tiny_plan.three(), (5, 44, 45), strict=True)]
    plan = Scheduler(entries[:2], tmp_path, tmp_path / "out", [], 1, 8.0, time.monotonic() + 60, fast=True)
    assert [(r.compile, r.cuda_graph) for _, r in plan.look()] == [(False, True), (False, True)]
    plan.entries = [dataclasses.replace(entries[2], tries=())]
    assert [(r.compile, r.cuda_graph) for _, r in plan.look()] == [(True, True)]
    plan.entries = [dataclasses.replace(plan.entries[0], captured=False)]
    assert [(r.compile, r.cuda_graph) for _, r in plan.look()] == [(False, False)]


def test_a_run_that_was_cut_off_behind_its_last_step(tmp_path):
    """Nothing of it was planned to be trained."""
    entry = tiny_plan.three()[0]
    plan = Scheduler([entry], tmp_path, tmp_path / "out", [], 1, 8.0, time.monotonic() + 60)
    slot = Slot(process=None, connection=None, entry=entry, planned=0.0)
    plan._note(slot, {"outcome": "finished", "record": _record(entry.name, 0.5, 1e-3)})
    assert plan.finished == [entry.name]
    assert plan._factor() == 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--plan", "thre"], "--plan has no part 'thre': there are three, failing, cut, chained, endless"),
        (["--plan", "cut", "--only", "nobody"], "--only 'nobody': no run of cut has these words in its name"),
        (["--jobs", "0"], "--jobs and --minutes must be positive"),
        (["--collect", "nowhere.jsonl"], "--collect nowhere.jsonl: there is no such file"),
    ],
)
def test_a_mistake_is_one_sentence(options, says, capsys):
    with pytest.raises(SystemExit) as left:
        time_slice.main("tiny_plan", "Tiny runs.", tiny_plan.PLANS, options)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_the_data_files_are_named(monkeypatch, tmp_path):
    (tmp_path / "enwik8").mkdir()
    (tmp_path / "enwik8" / "enwik8.xz").write_bytes(b"x" * 2**20)
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    entries = evidence_plan.PLANS["lm"]()
    assert files_of(entries) == ["enwik8/enwik8.xz"]
    assert "enwik8/enwik8.xz  1.00 MiB" in time_slice.data(entries)
    assert "labeled.jsonl.xz  not found" in time_slice.data(evidence_plan.PLANS["lra"]())


def test_a_curve_has_few_points(tmp_path):
    lines = []
    for step in range(1, 241):
        lines.append({"step": step, "loss": float(step), "epoch": 0.1})
        if step % 2 == 0:
            lines.append({"step": step, "event": "speed", "tokens": 10 * step, "seconds": step / 4})
        if step % 120 == 0:
            lines.append({"step": step, "event": "valid", "bits": 1 / step})
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = curve.read(tmp_path, "bits", points=10)
    assert [p[0] for p in made["train"]] == list(range(24, 241, 24))
    assert made["train"][1] == [48, 480, 12.0, 36.5]  # the mean of 25 to 48
    assert made["valid"] == [[120, round(1 / 120, 6)], [240, round(1 / 240, 6)]]
