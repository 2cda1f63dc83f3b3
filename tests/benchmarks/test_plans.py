"""Plans as they are run: what they wait for, what they need, and a scheduler that is stopped, fails and goes
on."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import curve, evidence_plan, time_slice, worker
from benchmarks.plan import NotYet, build, by_name, files_of, is_done, repeats
from benchmarks.scheduler import Scheduler
from benchmarks.slot import Slot
from cosformer.training import checkpoint
from cosformer.training.run import digest
from tests.benchmarks import stubborn, tiny_plan

ROOT = Path(__file__).resolve().parents[2]


def arguments(folder, plan, *options):
    own = {"--plan": plan, "--jobs": "2", "--folder": folder, "--out": folder / "out"}
    return [*(str(x) for pair in own.items() for x in pair), "--results", str(folder / "results"), *options]


def begun(folder, plan, *options):
    """The command in a process of its own, with no data and a cache of its own."""
    environment = {**os.environ, "COSFORMER_DATA": str(folder / "nothing"), "COSFORMER_CACHE": str(folder)}
    command = [sys.executable, "-m", "tests.benchmarks.tiny_plan", *arguments(folder, plan, *options)]
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
    first = begun(tmp_path, "cut", "--jobs", "1")
    while not list(tmp_path.glob("tiny-mqar-long-*/checkpoint-*")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    said, errors = first.communicate()
    assert first.returncode == 0, errors
    assert "is cut off: tiny/mqar/long" in errors
    assert "tiny/mqar/long: cut off at" in said
    (folder,) = tmp_path.glob("tiny-mqar-long-*")
    assert 0 < max(checkpoint.steps(folder)) < 4000
    identity = json.loads((folder / "run.json").read_text())["id"]
    assert "tiny/mqar/low" in [r["experiment"]["name"] for r in records(tmp_path)]

    said, errors = called(tmp_path, "cut")
    assert "begins: tiny/mqar/low" not in errors, "it has a record"
    made = {r["experiment"]["name"]: r for r in records(tmp_path)}
    assert set(made) == {"tiny/mqar/long", "tiny/mqar/low", "tiny/mqar/high"}
    assert made["tiny/mqar/long"]["id"] == identity
    assert made["tiny/mqar/long"]["steps"] == 4000
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
    assert errors.index("begins: tiny/mqar/first") < errors.index("begins: tiny/mqar/second")
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


def test_weights_are_not_made_for_runs_that_are_not_needed(tmp_path):
    """Further seeds of what was not the best."""
    second, first = tiny_plan.chained()
    low, high, _ = tiny_plan.three()
    seed = dataclasses.replace(second, tries=(low.name, high.name), repeats=high.name)
    known = [
        _record(e.name, score, 1e-3) | {"settings": build(e, {}).to_dict(), "date": "2026"}
        for e, score in ((low, 0.6), (high, 0.5), (first, 0.5))
    ]
    plan = Scheduler([seed, first], tmp_path, tmp_path / "out", known, 1, 8.0, time.monotonic() + 60)
    plan.look()
    assert plan.state[seed.name].startswith("not needed")
    assert plan.state[first.name] == "recorded"


def test_what_a_run_starts_from_comes_with_it(tmp_path, capsys):
    said = here(tmp_path, capsys, "chained", "--only", "second", "--dry-run")
    assert "tiny/mqar/first" in said.split("Data files")[0]


def test_recorded_runs_are_made_again_in_a_folder_of_their_own(tmp_path, capsys, monkeypatch):
    """With what an earlier call has left there, and with no record from elsewhere."""
    own = tmp_path / "again"
    made = {**_record("tiny/mqar/low", 0.5, 1e-3), "settings": build(tiny_plan.three()[0], {}).to_dict()}
    monkeypatch.setattr(time_slice, "_known", {tmp_path / "results": [made], own / "results": []}.get)

    def state(*options):
        said = here(tmp_path, capsys, "three", "--dry-run", *options)
        return next(line for line in said.splitlines() if line.startswith("tiny/mqar/low "))[-9:].strip()

    assert state() == "recorded"
    assert state("--again", str(own)) == "to be run"
    (own / "runs").mkdir(parents=True, exist_ok=True)
    (own / "runs" / "records.jsonl").write_text(json.dumps(made) + "\n")
    assert state("--again", str(own)) == "recorded"


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


def test_one_run_for_each_place_that_has_none():
    """The first of its place, and what it needs, recorded or not."""
    first, second = tiny_plan.chained()[::-1]
    again = dataclasses.replace(second, part="again")
    plans = {"tried": tiny_plan.three(), "chained": [first, second, again]}

    def chosen(*rows, only=""):
        known = [{"experiment": {"plan": "tiny", "column": "mqar", "row": row}} for row in rows]
        return [e.row for e in time_slice.select(plans, list(plans), [only], known)]

    assert chosen() == ["low", "high", "chosen", "first", "second"]
    assert chosen("low", "chosen", "first") == ["high", "first", "second"]
    assert chosen("low", "high", "chosen", "second", only="/chosen/") == []
    assert chosen("low", "high", "second") == ["low", "high", "chosen", "first"]
    known = [{"experiment": {"plan": "tiny", "column": "mqar", "row": "first"}}]
    left = time_slice.select(plans, ["chained"], [""], known, [second.name])
    assert [e.name for e in left] == [first.name, again.name], "what has failed fills no place"


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


def _record(name, score, rate, **more):
    metric = {"name": "accuracy", "higher_is_better": True, "valid": {"accuracy": score}}
    settings = {"learning_rate": rate}
    return {"experiment": {"name": name, **more}, "metric": metric, "settings": settings, "date": "2026"}


def test_a_run_takes_the_best_learning_rate_that_was_tried():
    low, high, chosen = tiny_plan.three()
    with pytest.raises(NotYet, match=f"waits for 2 of 2 tries: {low.name}"):
        build(chosen, {})
    known = by_name([_record(low.name, 0.5, 1e-3), _record(high.name, 0.4, 3e-3)])
    assert build(chosen, known).learning_rate == 1e-3
    known = by_name([*known.values(), {**_record(high.name, 0.6, 3e-3), "date": "2027"}])
    assert build(chosen, known).learning_rate == 3e-3
    del known[low.name]
    with pytest.raises(NotYet, match="waits for 1 of 2"):
        build(chosen, known)
    assert build(chosen, known, failed={low.name: {}}).learning_rate == 3e-3
    with pytest.raises(NotYet, match="not needed: all of 2 tries failed"):
        build(chosen, {}, failed={low.name: {}, high.name: {}})


def test_further_seeds_are_made_of_the_best():
    """Of each place; what was not the best is not needed, and nothing waits for it."""
    low, high, _ = tiny_plan.three()
    tried = [dataclasses.replace(low, row="a"), dataclasses.replace(high, row="a", part="high")]
    seeds = repeats(tried, (1, 2))
    assert [e.overrides["seed"] for e in seeds] == [1, 1, 2, 2]
    with pytest.raises(NotYet, match=f"waits for 1 of 2 tries: {tried[1].name}"):
        build(seeds[0], by_name([_record(tried[0].name, 0.5, 1e-3)]))
    known = by_name([_record(tried[0].name, 0.5, 1e-3), _record(tried[1].name, 0.6, 3e-3)])
    for entry in seeds[::2]:
        with pytest.raises(NotYet, match=f"not needed: {tried[1].name} was better on validation"):
            build(entry, known)
    runs = [build(entry, known) for entry in seeds[1::2]]
    assert runs == [build(tried[1], {}).replace(seed=seed) for seed in (1, 2)]


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
