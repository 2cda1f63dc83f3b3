"""Folders and files that somebody else has written, at the command line: no code of theirs is run, nothing is
guessed, and the answer is one sentence."""

import io
import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosformer.cli import main
from cosformer.lock import locked

CODE = "from pathlib import Path\nPath('ran').touch()\nclass Evil: pass\n"
DEEP = b"[" * 100_000


def config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights(folder, change):
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def strip_layers(stored):
    for name in [n for n in stored if ".layers." in n]:
        del stored[name]


def code_for(name):
    def write(folder):
        (folder / "evil.py").write_text(CODE)
        path = folder / name
        found = json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
        path.write_text(json.dumps(found))

    return write


# What is done to a saved model, and what `cosformer generate` has to say of it.
FOLDERS = {
    "code beside a tokenizer": (code_for("tokenizer_config.json"), "names code of its own"),
    "code beside a model": (code_for("config.json"), "names code of its own"),
    "weights without layers": (lambda f: weights(f, strip_layers), "lacks model.layers.0"),
    "weights left over": (lambda f: weights(f, lambda s: s.update(more=torch.ones(1))), "has more, which"),
    "weights that are not numbers": (
        lambda f: weights(f, lambda s: s["model.embed_tokens.weight"].fill_(torch.nan)),
        "holds NaN",
    ),
    "a list for a configuration": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object"),
    "a deep configuration": (lambda f: (f / "config.json").write_bytes(DEEP), "nested too deeply"),
    "a dtype that does not exist": (lambda f: config(f, dtype="float23"), "'float23'"),
    "a dtype that is no name": (lambda f: config(f, dtype=7), "dtype 7"),
    "a tokenizer cut short": (
        lambda f: (f / "tokenizer.json").write_bytes((f / "tokenizer.json").read_bytes()[:500]),
        "tokenizer of",
    ),
    "a deep tokenizer": (lambda f: (f / "tokenizer.json").write_bytes(DEEP), "tokenizer of"),
    "a list for a tokenizer": (lambda f: (f / "tokenizer_config.json").write_text("[1]"), "must hold a JSON"),
    "a deep generation configuration": (
        lambda f: (f / "generation_config.json").write_bytes(DEEP),
        "nested too deeply",
    ),
    "a list for a generation configuration": (
        lambda f: (f / "generation_config.json").write_text("[]"),
        "must hold a JSON object",
    ),
    "ends that are no tokens": (
        lambda f: (f / "generation_config.json").write_text('{"eos_token_id": {"a": 1}}'),
        "eos_token_id",
    ),
    "an end that is no number": (
        lambda f: (f / "generation_config.json").write_text('{"eos_token_id": [1, "x"]}'),
        "eos_token_id is [1, 'x']",
    ),
    "words for numbers": (lambda f: config(f, hidden_size="wide"), "hidden_size"),
    "a number for parameters": (lambda f: config(f, attention_parameters=7), "cannot be loaded"),
    "architectures of another kind": (lambda f: config(f, architectures=7), "architectures"),
    "an index for weights": (
        lambda f: (
            (f / "model.safetensors").rename(f / "x.safetensors"),
            (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
        ),
        "names no safetensors files of its own folder",
    ),
}


def run(capsys, arguments):
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as left:
        code = left.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_not_what_it_should_be(name, saved, tmp_path, capsys, monkeypatch):
    spoil, says = FOLDERS[name]
    folder = shutil.copytree(saved, tmp_path / "model")
    spoil(folder)
    monkeypatch.chdir(tmp_path)
    answers = io.StringIO("y\n" * 10)
    monkeypatch.setattr(sys, "stdin", answers)
    code, said = run(capsys, ["generate", folder, "--prompt", "a", "--tokens", "2"])
    assert not (tmp_path / "ran").exists(), "code was run"
    assert answers.tell() == 0, "a question was asked"
    assert code == 2, said
    assert says in said
    assert len(said.strip().splitlines()) == 1, said


def test_a_damaged_tokenizer_is_not_replaced_by_bytes(saved, tmp_path, capsys):
    """A model over 256 bytes needs none, but what is there and cannot be read was meant to be used."""
    folder = shutil.copytree(saved, tmp_path / "model")
    config(folder, vocab_size=256, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    (folder / "generation_config.json").unlink()
    weights(folder, lambda s: s.update({n: x[:256].clone() for n, x in s.items() if "embed_tokens" in n}))
    typed = ["generate", folder, "--prompt", "a", "--tokens", "2"]
    whole = (folder / "tokenizer.json").read_bytes()
    for damaged in (whole[:500], b"", b"{}", b"[]", whole.replace(b"BPE", b"ABC")):
        (folder / "tokenizer.json").write_bytes(damaged)
        code, said = run(capsys, typed)
        assert code == 2, said
        assert "tokenizer" in said
        assert len(said.strip().splitlines()) == 1, said
    (folder / "tokenizer.json").unlink()  # tokenizer_config.json tells that there was one
    code, said = run(capsys, typed)
    assert (code, "no tokenizer.json" in said) == (2, True), said
    (folder / "tokenizer_config.json").unlink()
    assert run(capsys, typed)[0] == 0


@pytest.mark.parametrize(
    "typed", [["train", "mqar", "--scale", "tiny", "--folder"], ["demo", "--tiny", "--out"]]
)
def test_a_folder_in_use_is_refused(typed, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with locked(tmp_path / "run", "trains"):
        code, said = run(capsys, [*typed, tmp_path / "run"])
    assert code == 2
    assert f"is in use: process {os.getpid()} " in said
    assert len(said.strip().splitlines()) == 1, said
    assert [p.name for p in (tmp_path / "run").iterdir()] == [".lock.json"], "nothing was begun"


def test_a_generation_configuration_decides_nothing(saved, tmp_path, capsys):
    """It may ask for a million beams; the command line says what is done."""
    folder = shutil.copytree(saved, tmp_path / "model")
    typed = ["generate", folder, "--prompt", "a", "--tokens", "8", "--greedy"]
    assert main([str(word) for word in typed]) == 0
    expected = capsys.readouterr().out
    asked = {"num_beams": 10**6, "num_return_sequences": 10**6, "repetition_penalty": 9.0, "max_time": 1e-9}
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | asked))
    assert main([str(word) for word in typed]) == 0
    assert capsys.readouterr().out == expected


def test_a_context_that_is_too_large(saved, tmp_path, capsys):
    path = tmp_path / "context.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # which takes no room on the disk
    code, said = run(capsys, ["generate", saved, "--context", path])
    assert (code, "at most" in said) == (2, True), said


@pytest.mark.parametrize(
    "typed", [["generate", "a\nb"], ["generate", "\x1b[2Jx"], ["eval", "a\rb\tc"], ["info", "a\nb"]]
)
def test_names_do_not_command_the_terminal(typed, capsys):
    code, said = run(capsys, typed)
    assert code == 2
    assert said.endswith("\n")
    assert said[:-1].isprintable(), said


@pytest.mark.parametrize("content", ["my notes", "{}", '{"line": 2, "x', "[" * 50_000 + "\n", "notes\n"])
def test_texts_do_not_take_the_place_of_what_is_there(content, saved, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"prompt": "a"}) + "\n")
    out.write_text(content)
    typed = ["generate", saved, "--prompts", prompts, "--out", out, "--tokens", "2", "--greedy"]
    code, said = run(capsys, typed)
    assert (code, "has something else in line 1" in said) == (2, True), said
    assert out.read_text() == content
    for begun in ("", '{"li', '{"line": 1, "prompt": "a", "te'):  # what such a command may have left
        out.write_text(begun)
        assert run(capsys, typed)[0] == 0
        assert json.loads(out.read_text())["prompt"] == "a"


def test_half_a_character_in_a_prompt_of_a_file(saved, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"prompt": "a\\ud800"}\n{"prompt": "b"}\n{"prompt": "c", "id": "\\udfff"}\n')
    assert run(capsys, ["generate", saved, "--prompts", prompts, "--out", out, "--tokens", "2"])[0] == 1
    made = [json.loads(line) for line in out.read_text().splitlines()]
    assert ["error" in line for line in made] == [True, False, True]
