"""No mistake of a user's shows a traceback: one sentence that says what to do, and exit code 2."""

import errno
import re
import sys

import pytest
import torch

from cosformer.cli import main
from cosformer.cli.errors import about, capitalised
from tests.cli.mistakes import MISTAKES


def run(capsys, arguments):
    """Exit code and what was said on stderr."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as left:
        code = left.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("there is no run.", "There is no run."),
        ("stopped.", "Stopped."),
        ("runs/int3 cannot be scored.", None),
        ("hidden_size must be positive.", None),
        ("--out x is a file.", None),
        ("train.tsv is missing.", None),
        ("mine holds no checkpoint.", None),
    ],
)
def test_only_words_begin_with_a_capital(said, shown, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert capitalised(said) == (shown or said)


def test_sentences_of_our_own_are_said_as_they_are():
    assert about(OSError("set COSFORMER_CACHE.")) == "set COSFORMER_CACHE."
    assert about(OSError(13, "Permission denied", "x")) == "permission denied (x)."


def test_a_name_at_the_beginning_stays_as_it_is(capsys):
    assert main(["train", "mqar", "model.hidden_size=-1"]) == 2
    assert "train: hidden_size" in capsys.readouterr().err


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name, saved, tmp_path, capsys, monkeypatch):
    if "GPU" in name:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / "cache"))
    typed, says = MISTAKES[name]
    arguments = typed(saved, tmp_path)
    capsys.readouterr()  # bars of models that were saved for it
    code, said = run(capsys, arguments)
    assert code == 2, said
    assert says.lower() in said.lower()
    assert len(said.strip().splitlines()) == 1, said
    # The terminal speaks of commands, not of Python.
    assert not re.search(r"\w\(\)|\w\.\w+\(|=(True|False|None)\b|_pretrained", said), said


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize("arguments", [["generate", "SAVED"], ["demo"], ["bench", "generation"]])
def test_without_transformers(arguments, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [m for m in sys.modules if m.startswith("cosformer.models")]:
        monkeypatch.delitem(sys.modules, name)
    code, said = run(capsys, [saved if a == "SAVED" else a for a in arguments])
    assert code == 2, said
    assert 'pip install ".[models]"' in said


def test_a_folder_that_may_not_be_written_to(tmp_path, capsys, monkeypatch):
    def refuse(dir):
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr("cosformer.cli.errors.TemporaryFile", refuse)
    code, said = run(capsys, ["demo", "--out", tmp_path])
    assert code == 2
    assert "may not be written to" in said


def test_results_are_tried_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cosformer.training.train", None)  # it would be called in vain
    assert main(["train", "mqar", "--scale", "tiny", "--results", str(tmp_path)]) == 2
