"""The benchmark of all attentions: nothing wrong is timed, claims are checked, reports come from records."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.attention import main, plan, predict
from benchmarks.attention_cases import contender, examine, find, state_numbers
from benchmarks.contenders import Shape
from cosformer import attention
from cosformer.report.render import markdown
from cosformer.report.sections.attention import document, exponent, growth

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Shape(1, 64, 2, 16, torch.float32, torch.device("cpu"))


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.attention", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_every_attention_is_a_contender():
    assert [c.name for c in find(SHAPE)[0]] == list(attention.names())


@pytest.mark.parametrize("name", attention.names())
def test_right_ones_pass(name):
    verdict = examine(contender(name), SHAPE)
    assert verdict["verdict"] == "passed", verdict
    assert len(verdict["checks"]) == 2 * 4 * len(contender(name).modes)


def test_wrong_ones_do_not():
    right = contender("relu")
    for wrong in (
        lambda q, k, v, causal: right.attend(q, k, v, causal) * 1.001,
        lambda q, k, v, causal: right.attend(q, k, v, False),
        lambda q, k, v, causal: right.attend(q, k.detach(), v, causal) + 0 * k,
        lambda q, k, v, causal: contender("linear").attend(q, k, v, causal),
    ):
        verdict = examine(replace(right, attend=wrong), SHAPE)
        assert verdict["verdict"] == "wrong"
        assert "is off by" in verdict["reason"]


def test_a_narrow_type_is_looked_at_too():
    checks = examine(contender("relu"), replace(SHAPE, dtype=torch.bfloat16))["checks"]
    narrow = [c for c in checks if c["part"] == "torch.bfloat16"]
    assert len(narrow) == 4
    assert all(0 < c["error"] < 0.05 for c in narrow)


def test_states():
    sizes = {n: [state_numbers(n, replace(SHAPE, length=t)) for t in (64, 128)] for n in attention.names()}
    for name, (short, long) in sizes.items():
        traits = attention.traits(name)
        if not traits.recurrent:
            assert short is None
        elif traits.constant_state:
            assert short == long


def test_the_exponent_is_that_of_the_longest_lengths():
    assert exponent([(t, 3.0 * t**1.5) for t in (512, 1024, 2048)]) == pytest.approx(1.5)
    assert exponent([(64, 1e9), (512, 1.0), (1024, 4.0), (2048, 16.0)]) == pytest.approx(2.0)
    assert exponent([(512, 1.0)]) is None


def test_a_claim_that_does_not_hold_is_reported():
    timings = [
        {"contender": name, "mode": "causal", "phase": "forward+backward", "length": t, "median_s": t**power}
        for name, power in (("straight", 1.05), ("bent", 1.3))
        for t in (512, 1024, 2048)
    ]
    data = {
        "contenders": {"straight": "", "bent": ""}, "costs": {"straight": "linear", "bent": "linear"},
        "settings": {"lengths": [512, 1024, 2048]}, "timings": timings, "memory": [],
    }  # fmt: skip
    assert {g["contender"]: g["above"] for g in growth(data)} == {"straight": False, "bent": True}


def test_what_would_not_fit_is_foreseen():
    assert predict([], 512) == 0
    assert predict([(512, 100.0)], 1024) == pytest.approx(200)
    assert predict([(512, 100.0), (1024, 400.0)], 4096) == pytest.approx(6400)


def test_what_was_skipped_for_its_memory_is_not_timed():
    found = [contender("relu"), contender("softmax")]
    skipped = {"contender": "softmax", "mode": "causal", "length": 128, "skipped": "skipped: needs 9 GiB"}
    cases, left_out = plan(found, SHAPE, [64, 128], [skipped])
    assert len(cases) == 2 * 2 * 2 * 2 - 2
    assert {(x["contender"], x["length"], x["skipped"]) for x in left_out} == {
        ("softmax", 128, "skipped: needs 9 GiB")
    }
    _, unmeasured = plan(found, SHAPE, [8192], None)
    assert {x["contender"] for x in unmeasured} == {"softmax"}


def test_a_small_run_writes_a_report(tmp_path):
    small = ["--lengths", "64,128", "--heads", "2", "--dim", "16", "--seconds", "0.001", "--threads", "1"]
    only = ["--only", "cosformer,relu,softmax", "--quick", "--no-memory"]
    done = run(*small, *only, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("*.json")
    data = json.loads(record.read_text())
    assert {t["contender"] for t in data["timings"]} == {"cosformer", "relu", "softmax"}
    assert all(v["verdict"] == "passed" for v in data["gate"])
    assert data["states"]["relu"] == {"64": 544, "128": 544}
    assert record.with_suffix(".png").stat().st_size > 10_000
    assert record.with_suffix(".md").read_text() == markdown(
        document(data), picture=record.with_suffix(".png").name
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "cosfromer"], "cosfromer is not an attention"),
        (["--render", "missing.json"], "missing.json: there is no such file"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention.py", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "record", sorted((ROOT / "benchmarks/reports").glob("attention-*.json")), ids=lambda p: p.name
)
def test_reports_are_rendered_from_their_records(record):
    data = json.loads(record.read_text())
    assert record.with_suffix(".md").read_text() == markdown(
        document(data), picture=record.with_suffix(".png").name
    )
