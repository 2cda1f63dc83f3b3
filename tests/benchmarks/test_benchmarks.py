"""The benchmark: wrong answers are not timed, mistakes are sentences, reports come from records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import attention_operator
from benchmarks.attention_operator import document
from benchmarks.contenders import Contender, Shape, authors_form, operator, softmax
from benchmarks.gate import admit, examine
from cosformer.report.render import markdown
from cosformer.report.sections import operator_cpu, operator_gpu

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Shape(1, 64, 2, 16, torch.float32, torch.device("cpu"))


def run(*arguments):
    """Without Triton's interpreter, which would be timed too."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.attention_operator", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def refused(monkeypatch, capsys):
    """What the command says where it ends with 2 for these arguments."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["benchmarks.attention_operator", *arguments])
        with pytest.raises(SystemExit, match=r"^2$"):
            attention_operator.main()
        return capsys.readouterr().err

    return call


def test_no_benchmark_takes_the_name_of_a_standard_module():
    """Run as a script, its folder comes first on the import path."""
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert not names & sys.stdlib_module_names


def test_right_contenders_pass():
    for attend in (operator("chunked"), authors_form):
        assert examine(Contender("x", "x", attend), SHAPE)["verdict"] == "passed"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda q, k, v, causal: authors_form(q, k, v, causal) * 1.001,
        lambda q, k, v, causal: authors_form(q, k, v, False),
        lambda q, k, v, causal: authors_form(q, k, v.detach(), causal) + 0 * v,
        softmax,
    ],
    ids=["a thousandth off", "never causal", "no gradient of v", "softmax"],
)
def test_wrong_contenders_are_not_timed(wrong):
    contenders = [Contender("wrong", "wrong", wrong), Contender("right", "right", authors_form)]
    admitted, verdicts = admit(contenders, SHAPE)
    assert [c.name for c in admitted] == ["right"]
    assert verdicts[0]["verdict"] == "wrong"
    assert "is off by" in verdicts[0]["reason"]


@pytest.mark.thorough
def test_a_small_run_writes_a_report(tmp_path):
    done = run("--lengths", "64,128", "--heads", "2", "--dim", "16", "--seconds", "0.01", "--no-memory",
               "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("*.json")
    data = json.loads(record.read_text())
    assert {t["contender"] for t in data["timings"]} >= {"cosformer", "sdpa", "authors"}
    assert all(t["verdict"] == "passed" for t in data["gate"])
    assert record.with_suffix(".png").stat().st_size > 10_000
    assert record.with_suffix(".md").read_text() == markdown(
        document(data), picture=record.with_suffix(".png").name
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--lengths", "64,none"], "--lengths"),
        (["--device", "toaster"], "--device"),
        (["--heads", "0"], "--heads"),
        (["--render", "missing.json"], "missing.json: there is no such file"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, says, refused):
    assert says in refused(*arguments)


@pytest.mark.parametrize("kind", [operator_cpu.FORMAT, operator_gpu.FORMAT])
def test_half_a_record_is_a_mistake(kind, tmp_path, refused):
    path = tmp_path / "half.json"
    path.write_text(json.dumps({"format": kind, "date": "2026-01-01", "hardware": {"gpu": "A GPU"}}))
    assert "is not a whole record of this benchmark" in refused("--render", str(path))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "record", sorted((ROOT / "benchmarks/reports").glob("operator-*.json")), ids=lambda p: p.name
)
def test_reports_are_rendered_from_their_records(record):
    data = json.loads(record.read_text())
    rendered = markdown(document(data), picture=record.with_suffix(".png").name)
    assert record.with_suffix(".md").read_text() == rendered
