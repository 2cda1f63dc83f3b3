"""Files of records: nothing that somebody else wrote is cut off or written behind, and nothing is lost."""

import json
import os

import pytest

from cosformer import record_file
from cosformer.cli import main
from cosformer.training import train
from tests.training.toy import toy

OWN = {"format": "cosformer run 1", "id": "new", "task": "t"}
OLD = json.dumps({"format": "cosformer run 1", "id": "old", "task": "t"})


@pytest.mark.parametrize("cut", [1, 2, 9, 20, 40, len(OLD) - 1])
@pytest.mark.parametrize("before", ["", OLD.replace("old", "older") + "\n"])
def test_a_line_that_was_begun_here_is_removed(tmp_path, before, cut):
    path = tmp_path / "r.jsonl"
    path.write_text(before + OLD[:cut])
    assert record_file.append_once(path, OWN, "id")
    assert path.read_text() == before + json.dumps(OWN) + "\n"


def test_a_last_line_without_its_end_is_completed_and_kept(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(OLD)
    assert record_file.append_once(path, OWN, "id")
    assert path.read_text() == OLD + "\n" + json.dumps(OWN) + "\n"
    path.write_text(json.dumps(OWN))
    assert not record_file.append_once(path, OWN, "id"), "it is there already"
    assert path.read_text() == json.dumps(OWN) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        "my notes", "# Title\n\nmy notes\n", "{}x", "[1, 2", '{"mine": 1', "[]\n", '{"a": 1}\nmine\n',
        OLD + "\nmy notes", OLD + "\n\x00\x01\n", "\xff",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_refused_and_stays(tmp_path, content):
    path = tmp_path / "r.jsonl"
    path.write_bytes(content.encode("latin-1"))
    for attempt in (lambda: record_file.append_once(path, OWN, "id"), lambda: record_file.check(path)):
        with pytest.raises(ValueError, match=r"r\.jsonl.* is no file of records.*give another file"):
            attempt()
    assert path.read_bytes() == content.encode("latin-1")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "endless"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind, monkeypatch):
    path = tmp_path / "r.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        monkeypatch.setattr(record_file, "LIMIT", 100)
        path.write_text((OLD + "\n") * 10)
    with pytest.raises(ValueError, match=r"r\.jsonl"):
        record_file.append_once(path, OWN, "id")


def test_a_record_is_known_by_its_own_key_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(OWN | {"id": "x", "nested": {"id": "new"}}) + "\n")
    assert record_file.append_once(path, OWN, "id")


def test_it_is_refused_before_the_first_step(tmp_path, monkeypatch, capsys):
    path = tmp_path / "README.md"
    path.write_text("# Mine")
    with pytest.raises(ValueError, match="is no file of records"):
        train(toy(workers=0), tmp_path / "run", progress=False, results=path)
    assert not (tmp_path / "run").exists()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mqar", "--scale", "tiny", "--results", str(path)]) == 2
    said = capsys.readouterr().err
    assert "is no file of records" in said
    assert len(said.splitlines()) == 1
    assert path.read_text() == "# Mine"
