"""Files of a run that are not what they should be: a sentence that names the file, and never a traceback."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.training import checkpoint

ROOT = Path(__file__).parents[2]
TINY = ["steps=2", "save_every=1", "save_total_limit=9", "model.hidden_size=16",
        "task_settings.train_rows=32", "task_settings.valid_rows=8", "task_settings.test_rows=8"]  # fmt: skip
ODD = {
    "empty": b"", "a list": b"[]", "a number": b"7", "null": b"null", "an empty object": b"{}",
    "text": b'"text"', "nested": b"[" * 100_000, "no text": b"\xff\xfe", "cut": b'{"a": 1, "b',
    "odd values": b'{"id": 7, "run": {"task": []}, "files": [], "step": "x", "best_step": [], "metric": 1}',
    "objects of the wrong kind": b'[{"step": {}}, {}]\n{"step": null}\n',
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "mqar", "--scale", "tiny", *TINY, "--folder", "run"]) == 0
    return folder / "run"


def rehashed(folder):
    """The manifest made to fit, as somebody would who means harm."""
    found = {
        file.name: {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in folder.iterdir()
        if file.name != checkpoint.MANIFEST
    }
    (folder / checkpoint.MANIFEST).write_text(json.dumps({"files": found}))


def said_by(capsys, words):
    try:
        code = main([str(word) for word in words])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err.strip()
    return code, said.splitlines()[-1] if said else ""


IN_THE_FOLDER = [(file, odd) for file in ("run.json", "record.json") for odd in ODD]
IN_THE_FOLDER += [
    ("log.jsonl", odd) for odd in ("a list", "nested", "no text", "cut", "objects of the wrong kind")
]
IN_A_CHECKPOINT = [
    (f"checkpoint-2/{file}", odd)
    for file in ("run.json", "status.json", "config.json", "manifest.json", "trainer_state.json")
    for odd in ("a list", "nested", "odd values")
]


@pytest.mark.parametrize(("file", "odd"), IN_THE_FOLDER + IN_A_CHECKPOINT)
def test_an_odd_file_is_a_sentence(finished, file, odd, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(finished, tmp_path / "run")
    (run / file).write_bytes(ODD[odd])
    if file.startswith("checkpoint") and "manifest" not in file:
        rehashed((run / file).parent)
    if file != "record.json":
        (run / "record.json").unlink()
    train = ["train", "mqar", "--scale", "tiny", *TINY, "--folder", run, "--results", "r.jsonl"]
    score = ["eval", run / "checkpoint-2" if odd == "a list" else run]
    for words in [score] * file.startswith("checkpoint") + [train] * (odd == "a list" or "/" not in file):
        code, said = said_by(capsys, words)
        assert code in (0, 2), (words, said)
        if code == 2:
            assert said.startswith(f"cosformer {words[0]}: "), (words, said)


def test_the_record_of_another_run_is_refused(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(finished, tmp_path / "run")
    record = json.loads((run / "record.json").read_text())
    for change in (
        {"id": "x"},
        {"metric": {}},
        {"steps": "two"},
        {"wall_time_s": None},
        {"tokens_per_s": "x"},
        {"metric": {k: v for k, v in record["metric"].items() if k != "best_step"}},
        {"metric": record["metric"] | {"valid": {}}},
        {"metric": record["metric"] | {"test": {"accuracy": "high"}}},
    ):
        (run / "record.json").write_text(json.dumps(record | change))
        code, said = said_by(capsys, ["train", "mqar", "--scale", "tiny", *TINY, "--folder", run])
        assert code == 2, (change, said)
        assert "record.json is damaged" in said
        assert "Remove it" in said


RECIPES = {
    "raises": "def build(scale, attention, **o):\n    return 1 / 0\n",
    "raises when it is read": "undefined_name\n",
    "raises nothing of ours": "class Odd(Exception): pass\ndef build(**o):\n    raise Odd\n",
    "leaves": "import sys\nsys.exit(3)\n",
    "leaves in build": "import sys\ndef build(**o):\n    sys.exit('gone')\n",
    "recurses": "def build(**o):\n    return build(**o)\n",
    "is no text": "# \xff\ndef build(**o): pass\n",
    "has a NUL": "x = 1\x00\n",
    "takes nothing": "def build(): pass\n",
    "imports what is missing": "import no_such_module\n",
    "asserts": "def build(**o):\n    assert False\n",
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_fails_is_a_sentence(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_bytes(RECIPES[name].encode("latin-1"))
    code, said = said_by(capsys, ["train", "mine.py"])
    assert code == 2, said
    assert said.startswith("cosformer train: ")
    assert "mine.py" in said


@pytest.mark.parametrize("prompt", ["\udcff", "a\ud800b"])
def test_a_prompt_that_is_no_text(prompt, tmp_path, capsys):
    code, said = said_by(capsys, ["generate", tmp_path, "--prompt", prompt])
    assert code == 2
    assert "--prompt is not text in UTF-8" in said


@pytest.mark.parametrize("odd", ODD)
def test_odd_records_and_benchmarks(odd, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, name in (("results", "t.jsonl"), ("benchmarks/reports", "b.json")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_bytes(ODD[odd])
        code, said = said_by(capsys, ["report"])
        assert code in (0, 2), said
        if code:
            assert said.startswith("cosformer report: ")
            assert name in said
        shutil.rmtree(tmp_path / folder)


@pytest.mark.parametrize("odd", ODD)
def test_odd_records_of_a_demonstration(odd, tmp_path, capsys):
    (tmp_path / "record.json").write_bytes(ODD[odd])
    code, said = said_by(capsys, ["demo", "--tiny", "--out", tmp_path])
    assert code == 2, said
    assert "give another folder" in said


def test_a_demonstration_whose_parts_are_odd(tmp_path, capsys):
    from dataclasses import asdict

    from cosformer.demo.settings import TINY as SETTINGS

    for parts in ({"steps": "x"}, {"steps": 10, "training": []}, {"steps": 10, "training": {"models": 3}}):
        kept = {"settings": json.loads(json.dumps(asdict(SETTINGS))), "machine": {}} | parts
        (tmp_path / "record.json").write_text(json.dumps(kept))
        code, said = said_by(capsys, ["demo", "--tiny", "--out", tmp_path])
        assert code == 2, said
        assert "--fresh" in said


def test_a_pipe_among_the_records_is_not_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    os.mkfifo(tmp_path / "results" / "t.jsonl")
    code, said = said_by(capsys, ["report"])
    assert (code, "t.jsonl cannot be read" in said) == (2, True), said


@pytest.mark.parametrize("change", [{"commit": 7}, {"timings": 7}, {"hardware": []}, {"settings": None}])
def test_a_benchmark_with_odd_parts_is_named(change, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record = json.loads((ROOT / "benchmarks/reports/operator-cpu-20261115.json").read_text())
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "b.json").write_text(json.dumps(record | change))
    code, said = said_by(capsys, ["report", "--benchmarks", "benchmarks"])
    assert (code, "b.json is not what it should be" in said) == (2, True), said


@pytest.mark.parametrize("content", ["", "x", "x" * 25])
@pytest.mark.parametrize("words", [["data", "enwik8", "official=false"],
                                   ["train", "enwik8", "--scale", "tiny",
                                    "task_settings.official=false"]])  # fmt: skip
def test_data_without_rows(content, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    (tmp_path / "enwik8").mkdir()
    (tmp_path / "enwik8" / "enwik8").write_text(content)
    code, said = said_by(capsys, [*words, "steps=1"] if words[0] == "train" else words)
    assert code == (2 if len(content) < 20 else code), said
    assert "mmap" not in said
