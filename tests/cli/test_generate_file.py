"""`cosformer generate --prompts`: a text for every line, in order, whatever is wrong with some of them and
wherever an earlier command was stopped."""

import json
import os

import pytest

from cosformer.cli import generate_file, main
from cosformer.models import CosformerForCausalLM, byte_tokenizer

LINES = [
    b'{"prompt": "def main("}',
    b'{"prompt": "Wer reitet so sp\xc3\xa4t", "id": "erl", "more": 1}',
    b'{"prompt": 3}',
    b"not json",
    b'{"prompt": "\xff"}',
    b'{"prompt": "' + b"x" * 300 + b'"}',
    b'{"prompt": ""}',
    b'["prompt"]',
    b'{"prompt": "import "}',
]
BAD = {3: "object with a text", 4: "not JSON", 5: "not text in UTF-8", 6: "shorten the context", 8: "object"}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n".join(LINES) + b"\n\n")
    return path


def command(saved, prompts, out, *more):
    options = ["--prompts", str(prompts), "--out", str(out), "--tokens", "12", "--batch_size", "2"]
    return main(["generate", str(saved), *options, *more])


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_text_for_every_line_in_order(saved, prompts, tmp_path, capsys):
    out = tmp_path / "made" / "texts.jsonl"
    assert command(saved, prompts, out, "--greedy") == 1, "some lines were bad"
    said = capsys.readouterr().out
    assert said.startswith(f"4 texts in {out}")
    assert "5 lines could not be used (3, 4, 5, 6, 8)" in said
    found = records(out)
    assert [record["line"] for record in found] == list(range(1, 10))
    for record in found:
        assert BAD.get(record["line"], "") in record.get("error", "")
        assert ("text" in record) == (record["line"] not in BAD)
    assert found[1]["id"] == "erl"
    model, tokenizer = CosformerForCausalLM.from_pretrained(saved).eval(), byte_tokenizer()
    for record in (found[0], found[1], found[8]):
        ids = tokenizer(record["prompt"], return_tensors="pt")["input_ids"]
        text = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        assert record["text"] == tokenizer.decode(text, skip_special_tokens=True)


def test_a_command_that_was_stopped_goes_on(saved, prompts, tmp_path, capsys, monkeypatch):
    """Killed between lines, in the middle of one, and by Ctrl-C: the file ends the same to the byte."""
    whole, out = tmp_path / "whole.jsonl", tmp_path / "texts.jsonl"
    command(saved, prompts, whole)
    data = whole.read_bytes()
    for size in (0, data.find(b"\n") + 1, len(data) // 2, len(data) - 1, len(data)):
        out.write_bytes(data[:size])
        assert command(saved, prompts, out) == 1
        assert out.read_bytes() == data
    out.unlink()
    original = generate_file._in_order

    def stopped(*args):
        for count, record in enumerate(original(*args)):
            if count == 4:
                raise KeyboardInterrupt
            yield record

    with monkeypatch.context() as patch:
        patch.setattr(generate_file, "_in_order", stopped)
        capsys.readouterr()
        assert command(saved, prompts, out) == 130
    assert "topped with 4 of 9 lines" in capsys.readouterr().err
    assert command(saved, prompts, out) == 1
    assert out.read_bytes() == data


def test_mistakes(saved, prompts, tmp_path, capsys):
    out = tmp_path / "texts.jsonl"
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert command(saved, prompts, out) == 1
    before = out.read_bytes()
    for arguments, sentence in (
        (["--prompts", prompts], "--prompts needs --out"),
        (["--out", out], "--out is for --prompts"),
        (["--prompts", prompts, "--out", out, "--prompt", "a"], "goes with neither --prompt nor --context"),
        (["--prompts", prompts, "--out", prompts], "is the file of the prompts"),
        (["--prompts", tmp_path / "missing", "--out", out], "does not exist"),
        (["--prompts", empty, "--out", tmp_path / "new"], "is empty; a line is an object"),
        (
            ["--prompts", prompts, "--out", out, "--tokens", "12", "--seed", "1"],
            "has something else in line 1",
        ),
    ):
        capsys.readouterr()
        assert main(["generate", str(saved), *map(str, arguments)]) == 2
        assert sentence in capsys.readouterr().err
    prompts.write_bytes(prompts.read_bytes().replace(b"import", b"export"))
    assert command(saved, prompts, out) == 2
    assert "has something else in line 9" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_a_file_without_an_end_is_not_read(saved, prompts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generate_file, "LARGEST", 1000)
    (tmp_path / "large.jsonl").write_bytes(b"x" * 2000)
    os.mkfifo(tmp_path / "pipe")
    for given, out, says in (
        (prompts, "/dev/zero", "/dev/zero is no ordinary file"),
        (prompts, tmp_path / "pipe", "pipe is no ordinary file"),
        (prompts, tmp_path / "large.jsonl", "at most 1,000 are read"),
        (tmp_path / "large.jsonl", tmp_path / "new", "at most 1,000 are read"),
    ):
        assert command(saved, given, out) == 2
        assert says in capsys.readouterr().err
