"""The recipe that reverses sequences: its data, its metric, and the record that it left."""

import json
from pathlib import Path

import pytest
import torch

from recipes.reverse import END, FIRST, PAD, START, Settings, build, exact, pairs, train

RESULTS = Path(__file__).resolve().parents[2] / "results" / "reverse.jsonl"
TINY = Settings(
    letters=3, shortest=1, longest=2, hidden_size=32, layers=1, batch=32, steps=150, warmup=10, tested=50
)


def test_answers_are_the_sources_reversed():
    settings = Settings()
    ids, mask, labels = pairs(settings, 100, torch.Generator().manual_seed(0))
    for source, real, answer in zip(ids, mask.bool(), labels, strict=True):
        wanted = [*source[real].flip(0).tolist(), END]
        assert answer[: len(wanted)].tolist() == wanted
        assert (answer[len(wanted) :] == -100).all()
        assert (source[~real] == PAD).all()
    assert len({int(m.sum()) for m in mask}) == 9, "all lengths occur"


def test_the_metric_counts_whole_sequences(monkeypatch):
    model = build(TINY)
    _, _, labels = pairs(TINY, TINY.tested, torch.Generator().manual_seed(TINY.seed + 1_000_003))

    def answers(*args, **kwargs):
        right = labels.masked_fill(labels == -100, PAD)
        right[: TINY.tested // 2, 0] = FIRST + 10  # no such letter
        return torch.cat([torch.full((TINY.tested, 1), START), right], 1)

    monkeypatch.setattr(model, "generate", answers)
    assert exact(model, TINY) == 0.5


def test_a_tiny_one_learns():
    model = build(TINY)
    before = exact(model, TINY)
    curve = train(model, TINY, every=50)
    assert curve[-1][1] < 0.3 * curve[0][1]
    assert exact(model, TINY) > before + 0.5


@pytest.mark.parametrize(
    "line", RESULTS.read_text().splitlines(), ids=lambda line: json.loads(line)["mechanism"]
)
def test_recorded_runs_are_complete(line):
    record = json.loads(line)
    assert record["metric"]["exact match of greedy generation, unseen sequences"] > 0.95
    assert record["commit"]["id"]
    assert not record["commit"]["dirty"]
    Settings(**record["settings"])
    assert {"seed", "hardware", "versions", "parameters", "wall_time_s", "tokens_per_s"} <= set(record)
