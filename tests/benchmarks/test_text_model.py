"""Steps of the byte-level text model: measured, out of memory, and rendered."""

import json

import pytest
import torch

from benchmarks import text_model
from cosformer.report.render import markdown
from cosformer.report.sections import text_model as section


def run(monkeypatch, folder, *options):
    own = ["--device", "cpu", "--lengths", "64,128", "--tokens", "128", "--steps", "1", "--out", str(folder)]
    monkeypatch.setattr("sys.argv", ["text_model", *own, *options])
    text_model.main()
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def test_measured_and_rendered(monkeypatch, tmp_path, capsys):
    real = text_model.timed

    def timed(work, device, steps):
        if lost:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return real(work, device, steps)

    lost = False
    monkeypatch.setattr(text_model, "timed", timed)
    data, text = run(monkeypatch, tmp_path, "--rows", "softmax,ours")
    assert [(m["row"], m["length"], m["texts"]) for m in data["measured"][::2]] == [
        ("softmax", 64, 2), ("ours", 64, 2), ("softmax", 128, 1), ("ours", 128, 1),
    ]  # fmt: skip
    assert all(m["step_s"] > 0 for m in data["measured"])
    assert len(list(tmp_path.glob("*.png"))) == 1
    assert "| softmax |" in text
    assert "6.95 / 2.23 / x / x" in text
    assert "T = 128" in capsys.readouterr().out
    lost = True
    data, text = run(monkeypatch, tmp_path, "--rows", "sparse")
    assert [m["failed"] for m in data["measured"]] == ["out of memory"] * 2 + ["not tried"] * 2
    assert "| sparse | out of memory | not tried | - | 6.77 / 2.2 / x / x |" in text
    assert "| ours | not run |" in markdown(
        section.document(data | {"settings": {**data["settings"], "rows": ["ours"]}})
    )


def test_what_is_not_about_memory_is_an_error(monkeypatch):
    def broken(*call):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(text_model, "timed", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        text_model.measure("softmax", 64, 64, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rows", "softmax,astrology"], "--rows has no 'astrology'; there are softmax, cosformer, windows"),
        (["--lengths", "64,many"], "--lengths must be numbers with commas between them, got '64,many'"),
        (["--steps", "0"], "--lengths, --tokens and --steps must be positive"),
    ],
)
def test_a_mistake_is_one_sentence(options, says, monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, tmp_path, *options)
    assert left.value.code == 2
    assert says in capsys.readouterr().err
