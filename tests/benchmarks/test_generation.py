"""The benchmark of generation: a small run, and reports that come from their records."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import generation, generation_steps
from benchmarks.generation_cases import CONTENDERS, Sizes, build, cache_bytes, disagreement, filled
from cosformer.models import step
from cosformer.report.render import markdown
from cosformer.report.sections.generation import document, findings

ROOT = Path(__file__).resolve().parents[2]
SMALL = Sizes(hidden=32, layers=1, heads=2, vocabulary=264)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.generation", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_a_small_run_writes_a_report(tmp_path):
    small = ["--contexts", "64,256", "--batches", "1,2", "--hidden", "32", "--layers", "1", "--threads", "1"]
    done = run(*small, "--rounds", "2", "--no-memory", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("*.json")
    data = json.loads(record.read_text())
    assert len(data["results"]) == 12
    assert all(g["passed"] for g in data["gate"].values())
    assert record.with_suffix(".png").stat().st_size > 10_000
    assert record.with_suffix(".md").read_text() == markdown(
        document(data), picture=record.with_suffix(".png").name
    )
    constant = [row for row in findings(data) if "cache is constant" in row[0]]
    assert [row[2] for row in constant] == ["yes", "yes"]


@pytest.mark.parametrize("name", CONTENDERS)
def test_caches_have_the_size_their_shapes_say(name):
    model = build(name, SMALL, 512, torch.device("cpu"))
    cache = filled(name, model, SMALL, 2, 100)
    assert cache.get_seq_length() == 100
    counted = SMALL.cache_bytes(name, 2, 100)
    assert counted <= cache_bytes(cache) <= counted * 1.05, "positions and masks come on top"


def test_a_broken_cache_would_be_seen(monkeypatch):
    model = build("cosformer", SMALL, 512, torch.device("cpu"))
    assert disagreement(model, 40) < 1e-4
    monkeypatch.setattr("cosformer.models.model.placed", lambda state, positions, seen: state.select([1, 1]))
    assert disagreement(model, 40) > 1e-2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--contexts", "64,none"], "--contexts wants positive whole numbers"),
        (["--render", "missing.json"], "missing.json: there is no such file"),
        (["--render", "README.md"], "README.md cannot be read as JSON"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks.generation", *arguments])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match=r"^2$"):
        generation.main()
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "record", sorted((ROOT / "benchmarks/reports").glob("generation-*.json")), ids=lambda p: p.name
)
def test_reports_are_rendered_from_their_records(record):
    data = json.loads(record.read_text())
    assert record.with_suffix(".md").read_text() == markdown(
        document(data), picture=record.with_suffix(".png").name
    )


def test_ways_of_a_step(monkeypatch, capsys):
    """A tiny run on the CPU: ways give the tokens of no cache, and each is timed."""
    small = ["--device=cpu", "--batches=1", "--contexts=16", "--hidden=128", "--layers=1", "--dtype=float32",
             "--vocabulary=64", "--backend=eager"]  # fmt: skip
    monkeypatch.setattr(generation_steps, "TOKENS", (2, 4))
    monkeypatch.setattr(generation_steps, "CHECKED", 20)
    monkeypatch.setattr(generation_steps, "WAYS", ("general", "compiled"))
    monkeypatch.setattr(sys, "argv", ["generation_steps", *small])
    generation_steps.main()
    data = json.loads(capsys.readouterr().out)
    assert len(data["differing_tokens"]) == 2 * len(data["results"]) == 4
    assert set(data["differing_tokens"].values()) == {0}
    assert all("ms_a_token" in row for row in data["results"])
    assert step.DEVICES == ("cpu",)
