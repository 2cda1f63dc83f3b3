"""The campaign: it sees every end that none of its cases may have, goes on where it was stopped, and finds
nothing in a small part of its cases."""

import collections
import faulthandler
import json
import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest

from benchmarks import campaign, drawn_calls, hostile_files, sandbox, training_faults


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    for name in ("COSFORMER_DATA", "COSFORMER_CACHE", "COSFORMER_WORKERS"):
        monkeypatch.setenv(name, "")  # which is put back afterwards


def fails():
    raise ZeroDivisionError("inside")


def refuses():
    raise sandbox.Refused("cosformer: no.")


def runs_code():
    Path("ran").touch()


def connects():
    try:
        socket.create_connection(("localhost", 9))
    except OSError as error:
        raise sandbox.Refused(str(error)) from None


def takes_memory():
    return len(bytearray(2 * sandbox.MEMORY))


def crashes():
    faulthandler.disable()  # which would write its trace among the tests' words
    os.kill(os.getpid(), signal.SIGSEGV)


ENDS = {
    "answered": lambda: 0,
    "refused": refuses,
    "traceback": fails,
    "killed": crashes,
    "hang": lambda: time.sleep(60),
    "code run": runs_code,
    "network": connects,
    "question": input,
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_is_seen(end, tmp_path):
    assert sandbox.run(ENDS[end], tmp_path, seconds=0.5 if end == "hang" else 30)["end"] == end


def test_memory_is_limited(tmp_path):
    found = sandbox.run(takes_memory, tmp_path)
    assert found["end"] == "traceback"
    assert "MemoryError" in found["said"]


@pytest.mark.thorough
def test_a_part_of_it_finds_nothing_and_goes_on(tmp_path, monkeypatch, capsys):
    out = tmp_path / "campaign.json"
    counts = {"files": "20", "lines": "12", "operator": "120", "faults": "16"}
    arguments = [word for name, count in counts.items() for word in (f"--{name}", count)]
    arguments += ["--seed", "1", "--out", str(out)]
    whole, made = campaign.one, []

    def stopped(part, number, *rest):
        if len(made) == 10:
            raise KeyboardInterrupt
        made.append((part, number))
        return whole(part, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(campaign, "one", stopped)
        with pytest.raises(KeyboardInterrupt):
            campaign.main(arguments)
    again = []
    monkeypatch.setattr(campaign, "one", lambda *a: again.append(a[:2]) or whole(*a))
    assert campaign.main(arguments) == 0, capsys.readouterr().out
    assert len(again) == 20 + 12 + 120 + 4 - 10
    assert not set(again) & set(made)
    parts = json.loads(out.read_text())["parts"]
    assert [len(part["wrong"]) for part in parts.values()] == [0, 0, 0, 0]
    assert parts["files"]["cases"] == 20
    assert parts["lines"]["ends"]["refused"] >= 5
    assert parts["operator"]["ends"] == {"right": 120}
    assert parts["faults"]["ends"] == {"identical": 4}
    assert sum(parts["faults"]["kinds"].values()) >= 16
    assert not out.with_suffix(".part.jsonl").exists()


def test_what_was_wrong_is_run_once_more(tmp_path, capsys):
    out, wrong = tmp_path / "campaign.json", {"number": 3, "seed": 1, "end": "wrong", "what": "a call"}
    part = {
        "seed": 1,
        "cases": 2,
        "ends": {"right": 1, "wrong": 1},
        "kinds": {},
        "wrong": [wrong],
        "date": "",
    }
    out.write_text(json.dumps({"format": campaign.FORMAT, "parts": {"operator": part}}))
    assert campaign.main(["--again", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["parts"]["operator"]
    assert (found["ends"], found["wrong"]) == ({"right": 2}, [])
    assert found["again"][0]["now"] == "right"


def test_a_wrong_number_is_seen(monkeypatch):
    """Of the operator: a row that is a thousandth off."""
    whole = drawn_calls.Case.results

    def results(self, backend):
        found = whole(self, backend)
        return found if backend == "reference" else found | {"out": found["out"] * 1.001}

    monkeypatch.setattr(drawn_calls.Case, "results", results)
    ends = collections.Counter(drawn_calls.run(n, random.Random(n), 30)["end"] for n in range(0, 40, 2))
    assert ends["wrong"] >= 5


def test_a_run_that_ends_otherwise_or_is_lost_is_seen(tmp_path, monkeypatch):
    (tmp_path / "runs/undisturbed").mkdir(parents=True)
    (tmp_path / "runs/undisturbed/things").write_text("5")
    (tmp_path / "runs/truth.json").write_text('{"checkpoint": "checkpoint-8"}')
    monkeypatch.setattr(training_faults, "_struck", lambda *a: training_faults.Ended(-9, "", True))
    monkeypatch.setattr(training_faults, "KINDS", ("kill",))
    for name, code, outcome, end in (
        ("a", 0, {"checkpoint": "checkpoint-8"}, "identical"),
        ("b", 0, {"checkpoint": "checkpoint-6"}, "otherwise"),
        ("c", 2, {"checkpoint": "checkpoint-8"}, "lost"),
    ):
        (tmp_path / name).mkdir()
        ended = training_faults.Ended(code, "", False)
        monkeypatch.setattr(training_faults, "_stretch", lambda *a, ended=ended: ended)
        monkeypatch.setattr(training_faults, "outcome", lambda folder, found=outcome: found)
        made = training_faults.run(tmp_path / "runs", tmp_path / name, random.Random(0))
        assert made["end"] == end
        assert made["kinds"] == ["kill"] * 4


def test_a_case_is_made_again_from_its_number(tmp_path):
    whats = []
    hostile_files.prepare(tmp_path / "whole", campaign.ROOT)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        what, _ = hostile_files.case(tmp_path / "whole", tmp_path / name, random.Random("files 3 0"))
        whats.append(what)
    assert whats[0] == whats[1]


def test_the_recorded_campaign_found_nothing_but_what_is_documented():
    parts = json.loads((campaign.ROOT / "benchmarks/reports/campaign.json").read_text())["parts"]
    known = parts["operator"]["wrong"]  # docs/limits.md, "Gradients that cancel"
    assert {case["end"] for case in known} <= {"worse than plain"}
    assert {kind for case in known for kind in case["kinds"]} <= {"triton"}
    assert len(known) <= 5
    assert [name for name, part in parts.items() if part["wrong"]] in ([], ["operator"])
    assert parts["files"]["cases"] >= 500
    assert parts["lines"]["cases"] >= 300
    assert parts["operator"]["cases"] >= 10_000
    assert sum(parts["faults"]["kinds"].values()) >= 2_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--files", "-1"], "--files: a positive whole number is expected"),
        (["--only", "files"], "--only wants PART:NUMBER"),
        (["--parts", "files,lanes"], "there is no part 'lanes'"),
        (["--out", "nowhere/x.json"], "there is no folder nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^2$"):
        campaign.main(arguments)
    assert says in capsys.readouterr().err
