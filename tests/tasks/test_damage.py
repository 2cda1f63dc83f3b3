"""A damaged cache never gives other rows: it is made again, with a warning that names it."""

import logging
import os
import shutil

import pytest

from cosformer import checksums, tasks
from cosformer.cli import main
from cosformer.tasks.io import cache
from tests.tasks import tiny


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    path.write_bytes(b"")


def longer(path):
    path.write_bytes(path.read_bytes() + b"\0")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x04
    path.write_bytes(data)


def remove(path):
    path.unlink()


def replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (cut, empty, longer, flip, remove, replaced_by_a_folder)
TASKS = ("sst2", "listops", "image", "wikitext2", "retrieval", "mlm")


def prepared(name):
    write = tiny.TASKS[name][0]
    if write is not None:
        write()
    return rows(name)


def rows(name, limit=5):
    task = tasks.build(name, **tiny.TASKS[name][1])
    found = []
    for split in ("train", "valid", "test"):
        dataset = task.dataset(split)
        found.append(
            [{k: x.tolist() for k, x in dataset[i].items()} for i in range(min(limit, len(dataset)))]
        )
        found.append(len(dataset))
    return found


def files():
    return sorted(p for p in cache.root().rglob("*") if p.is_file() and "data" not in p.parts)


@pytest.mark.parametrize("name", TASKS)
def test_damage_is_mended_and_said(name, caplog):
    whole = prepared(name)
    found = files()
    assert len(found) >= 4
    kept = {path: path.read_bytes() for path in found}
    for number, path in enumerate(found):
        damage = DAMAGES[number % len(DAMAGES)]
        damage(path)
        checksums.forget()  # as in a new process
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert rows(name) == whole, (damage.__name__, path)
        said = [r.getMessage() for r in caplog.records if str(path.parent) in r.getMessage()]
        assert len(said) == 1, (damage.__name__, path)
        assert "is made again" in said[0]
        assert path.read_bytes() == kept[path] or path.name == "tokenizer.json"
        caplog.clear()
        assert rows(name) == whole
        assert not caplog.records, "once"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_every_damage_to_every_file(damage, caplog):
    whole = prepared("sst2")
    for path in files():
        damage(path)
        checksums.forget()
        with caplog.at_level(logging.WARNING):
            assert rows("sst2") == whole, path
        assert str(path.parent) in caplog.text


def test_an_entry_of_an_earlier_version_is_made_again(caplog):
    whole = prepared("sst2")
    for path in cache.root().rglob(checksums.FILE):
        path.unlink()
    checksums.forget()
    with caplog.at_level(logging.WARNING):
        assert rows("sst2") == whole
    assert checksums.FILE in caplog.text


def test_large_entries_are_verified_fully_by_the_command(monkeypatch, caplog, capsys):
    """A run looks at the sizes of large files; `cosformer data` reads them."""
    prepared("sst2")
    typed = ["data", "sst2", "official=false"]
    assert main(typed) == 0
    shown = capsys.readouterr().out
    monkeypatch.setattr(checksums, "LARGE", 0)
    path = next(p for p in files() if ".values." in p.name)
    flip(path)
    checksums.forget()
    rows("sst2")
    assert not caplog.records
    assert main(typed) == 0
    assert str(path.parent) in caplog.text
    assert capsys.readouterr().out == shown
    cut(path)
    checksums.forget()
    caplog.clear()
    rows("sst2")
    assert str(path.parent) in caplog.text


def test_damage_that_cannot_be_mended_is_named(monkeypatch):
    prepared("sst2")
    path = files()[0]
    flip(path)
    checksums.forget()

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(OSError, match=f"{path.parent} is damaged .*{path.name}.* set COSFORMER_CACHE"):
        rows("sst2")


def test_a_listing_mends_nothing():
    prepared("sst2")
    shutil.rmtree(next(p for p in (cache.root() / "sst2").iterdir() if p.is_dir()))
    with cache.nothing_is_built(), pytest.raises(cache.NotBuilt):
        rows("sst2")
