"""Every example runs as it stands, short as it is."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SMALL = {
    "train_a_byte_lm": ["--steps", "2", "--length", "64"],
    "classify_long_documents": ["--steps", "2", "--length", "128"],
    "stream_a_long_file": [],
    "swap_attention_in_bert": [],
}
SAYS = {
    "train_a_byte_lm": "after 2 steps",
    "classify_long_documents": "% right",
    "stream_a_long_file": "A text has no bound.",
    "swap_attention_in_bert": "BertSelfAttention",
}


def said_alone(path, arguments, folder):
    """What an example prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1",
                          "COSFORMER_CACHE": str(folder / "cache")},
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def said_here(monkeypatch, capsys):
    """The same in this process, which has imported everything already."""

    def said(path, arguments, folder):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COSFORMER_CACHE", str(folder / "cache"))
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return said


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_example(path, tmp_path, said_here):
    """The one that changes transformers alone, and imports it first."""
    assert len(path.read_text().splitlines()) <= 40
    said = said_alone if path.stem == "swap_attention_in_bert" else said_here
    assert SAYS[path.stem] in said(path, SMALL[path.stem], tmp_path)


def test_a_long_file_is_read_to_its_end_in_constant_memory(tmp_path, said_here):
    (tmp_path / "long.txt").write_bytes(b"To be, or not to be. " * 10000)
    lines = said_here(ROOT / "examples" / "stream_a_long_file.py", ["long.txt", "--piece", "7000"], tmp_path)
    read = [line.split("; ") for line in lines.splitlines()[1:]]
    assert [line[0].strip() for line in read] == [f"{n:,} bytes read" for n in range(7000, 210001, 7000)]
    assert len({line[1] for line in read}) == 1


def test_all_examples_are_named():
    assert {p.stem for p in (ROOT / "examples").glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_help_does_nothing_else(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    drawn = torch.get_rng_state()
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert left.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(f"usage: {name}.py")
    assert (
        " ".join((ROOT / "examples" / f"{name}.py").read_text().partition("\n")[0].strip('".').split())
        in said
    )
    assert not list(tmp_path.iterdir())
    assert torch.equal(torch.get_rng_state(), drawn)
