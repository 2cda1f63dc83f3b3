"""The benchmark of generation: a small run, and reports that come from their records."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import generation, generation_gpu, generation_steps
from benchmarks import generation_acceptance as acceptance
from benchmarks.generation_cases import CONTENDERS, Sizes, build, cache_bytes, disagreement, filled
from cosformer.models import generation as steps_of
from cosformer.models import step
from cosformer.report.render import markdown
from cosformer.report.sections import generation_gpu as promises
from cosformer.report.sections.generation import document, findings

ROOT = Path(__file__).resolve().parents[2]
SMALL = Sizes(hidden=32, layers=1, heads=2, vocabulary=264)


def test_a_small_run_writes_a_report(tmp_path, monkeypatch):
    small = ["--contexts", "64,256", "--batches", "1,2", "--hidden", "32", "--layers", "1", "--threads", "1"]
    rest = ["--rounds", "2", "--no-memory", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.generation", *small, *rest])
    generation.main()
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
    monkeypatch.setattr(
        "cosformer.models.model.with_positions", lambda state, positions, seen: state.select([1, 1])
    )
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
    made = promises.document if data["format"] == promises.FORMAT else document
    assert record.with_suffix(".md").read_text() == markdown(
        made(data), picture=record.with_suffix(".png").name
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
    assert step.DEVICES == ("cpu", "cuda")


def test_the_benchmark_for_a_gpu_goes_on_where_it_stopped(monkeypatch, tmp_path, capsys):
    """Tiny, on the CPU: every kind of case once, the last in a second call."""
    out = tmp_path / "record.json"
    tiny = ["--device=cpu", "--contexts=16", "--batches=2", "--hidden=128", "--layers=1", "--vocabulary=64",
            "--dtype=float32", "--backend=eager", "--compile_s=0.1", f"--out={out}"]  # fmt: skip
    cases = [("captured", 2, 16), ("compiled", 2, 16), ("eager", 2, 16), ("prefill", 2, 16), ("llama", 2, 16)]
    monkeypatch.setattr(generation_gpu, "TOKENS", (2, 4))
    monkeypatch.setattr(generation_gpu, "REPEATS", 1)
    monkeypatch.setattr(generation_gpu, "gate", lambda args: {"plain": 0})
    monkeypatch.setattr(generation_gpu, "write_beside", lambda made, path: [])
    for some in (cases[:4], cases):
        monkeypatch.setattr(generation_gpu, "plan", lambda contexts, batches, some=some: some)
        generation_gpu.main(tiny)
    data = json.loads(out.read_text())
    assert [(r["contender"], r["batch"], r["context"]) for r in data["results"]] == cases
    assert not any("skipped" in r for r in data["results"]), data["results"]
    assert [r.get("graphs") for r in data["results"]] == [0, 1, 0, None, 1]
    assert "tokens are those of no cache" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^2$"):
        generation_gpu.main([*tiny, "--hidden=64"])


def test_the_plan_for_a_gpu_begins_with_what_was_promised():
    cases = generation_gpu.plan(list(generation_gpu.CONTEXTS), list(generation_gpu.BATCHES))
    assert len(cases) == len(set(cases))
    assert cases[:2] == [("captured", 1, 1024), ("captured", 1, 131_072)]
    wanted = [("compiled", b, c) for b in (1, 256) for c in (1024, 131_072)]
    wanted += [(name, b, 16_384) for name in ("compiled", "llama") for b in (1, 64)]
    assert set(wanted) <= set(cases[:16])


def row(contender, batch, context, **fields):
    return {"contender": contender, "batch": batch, "context": context, **fields}


def test_promises_that_are_kept_and_broken():
    good = [
        row("compiled", 1, 1024, token_s=1.5e-3, graphs=1),
        row("compiled", 1, 131_072, token_s=1.6e-3, graphs=0),
        row("compiled", 1, 16_384, token_s=1.5e-3, graphs=0),
        row("prefill", 1, 131_072, prefill_peak_bytes=2**30),
        row("compiled", 256, 1024, token_s=3.0e-3, graphs=1),
        row("compiled", 64, 16_384, token_s=2e-3, graphs=1),
        row("llama", 1, 16_384, token_s=3.1e-3),
        row("llama", 64, 16_384, skipped="out of memory"),
    ]
    kept = promises.findings({"differing_tokens": {"plain": 0}, "results": good})
    assert [met for *_, met in kept] == ["yes"] * 8
    bad = [
        row("compiled", 1, 1024, token_s=2.5e-3, graphs=2),
        row("compiled", 1, 131_072, token_s=3.1e-3, graphs=0),
        row("compiled", 1, 16_384, token_s=2.5e-3, graphs=0),
        row("prefill", 1, 131_072, prefill_peak_bytes=2**31),
        row("llama", 1, 16_384, token_s=3.1e-3),
    ]
    broken = promises.findings({"differing_tokens": {"plain": 3}, "results": bad})
    assert [met for *_, met in broken] == ["no"] * 6


def test_only_what_was_promised(monkeypatch, tmp_path, capsys):
    """Tiny, on the CPU: every case has its turn in every round; a way with wrong tokens is not timed."""
    sizes = {1024: 16, 16_384: 24, 131_072: 40, 64: 2, 256: 3, 1: 1}
    small = [[(way, sizes[b], sizes[n]) for way, b, n in group] for group in acceptance.GROUPS]
    for name, value in {"GROUPS": small, "TOKENS": 12, "TOKENS_OF_MANY": 11, "ROUNDS": 2, "LONG": 40}.items():
        monkeypatch.setattr(acceptance, name, value)
    monkeypatch.setattr(generation_gpu, "write_beside", lambda made, path: [])
    tiny = ["--acceptance", "--device=cpu", "--hidden=128", "--layers=1", "--vocabulary=64",
            "--compile_s=0.1", "--dtype=float32", "--backend=eager", "--minutes=1"]  # fmt: skip
    for wrong in ("none", "replayed"):
        out = tmp_path / f"{wrong}.json"
        monkeypatch.setattr(acceptance, "gate", lambda args, way, wrong=wrong: 3 * (way == wrong))
        generation_gpu.main([*tiny, f"--out={out}"])
        data = json.loads(out.read_text())
        cases = [(r["contender"], r["batch"], r["context"]) for r in data["results"]]
        replayed = [c for group in small for c in group if c[0] == "replayed"]
        assert len(cases) == len(set(cases)) == data["planned"]
        assert set(replayed) <= set(cases) if wrong == "none" else not set(replayed) & set(cases)
        assert {("compiled", *c[1:]) for c in replayed} <= set(cases)
        assert not any("skipped" in r for r in data["results"]), data["results"]
        assert all(len(r["rounds_s"]) == 2 for r in data["results"] if r["contender"] != "prefill")
        assert "Least and most of the rounds" in capsys.readouterr().out
        assert steps_of.CAPTURE_COMPILED
    with pytest.raises(SystemExit, match=r"^2$"):
        generation_gpu.main([*tiny, f"--out={out}"])


def test_a_case_that_fails_says_so_and_loses_nothing(monkeypatch):
    def fails(*case):
        raise (torch.OutOfMemoryError if case[2][1] == 64 else RuntimeError)("too much")

    monkeypatch.setattr(acceptance, "warm", fails)
    row, running = acceptance.begun(None, None, ("llama", 64, 24), {})
    assert (row["skipped"], running) == ("out of memory", None)
    row, running = acceptance.begun(None, None, ("llama", 1, 24), {})
    assert (row["skipped"], running) == ("failed: RuntimeError: too much", None)
