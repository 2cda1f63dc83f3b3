"""The benchmark of a language model's step: mistakes are told before anything is trained, and the report
comes from its record."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.language_model import document, main
from cosformer.report.render import markdown

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "tpu"], "--device tpu is not a device"),
        (["--device", "cuda:99"], "PyTorch sees"),
        (["--batch", "0"], "--batch must be positive, got 0"),
        (["--attentions", "cosformer,linformer"], "--attentions linformer is no causal attention; there are"),
        (["--out", str(Path(__file__) / "below")], "cannot be used"),
    ],
    ids=["device", "gpu", "number", "attention", "folder"],
)
def test_a_mistake_is_one_sentence(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["language_model", "--device", "cpu", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "record", sorted((ROOT / "benchmarks/reports").glob("language-model-*.json")), ids=lambda p: p.name
)
def test_reports_are_rendered_from_their_records(record):
    assert record.with_suffix(".md").read_text() == markdown(document(json.loads(record.read_text())))
