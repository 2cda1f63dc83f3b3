"""Files that unpack to more than they can mean are refused on the way, in little memory and time; damaged
ones in a sentence."""

import gzip
import json
import lzma
import os
import struct
import tracemalloc
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from cosformer import tasks
from cosformer.tasks.io import sources
from cosformer.tasks.io.sources import DataError
from cosformer.tasks.lra.pictures import read_grey

PACKERS = {".gz": gzip.open, ".xz": partial(lzma.open, preset=0)}


def packed(path, size, byte=b"a", suffix=".gz"):
    """An archive of so many equal bytes, made a piece at a time."""
    path = Path(f"{path}{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with PACKERS[suffix](path, "wb") as out:
        for _ in range(size >> 20):
            out.write(byte * ((1 << 20) // len(byte)))
    return path


@pytest.fixture
def little():
    """Less than 64 MiB are held at any time."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20, f"{peak >> 20} MiB"


@pytest.mark.parametrize("suffix", PACKERS)
def test_an_archive_beyond_the_limit(tmp_path, monkeypatch, little, suffix):
    monkeypatch.setattr(sources, "LIMIT", 20 << 20)
    path = packed(tmp_path / "x", 40 << 20, b"a" * 65_535 + b"\n", suffix)
    for read in (sources.pieces, sources.lines):
        with pytest.raises(DataError, match=r"unpacks to more than 20,971,520 bytes"):
            for _ in read(path):
                pass


def test_a_line_beyond_the_limit(tmp_path, monkeypatch, little):
    monkeypatch.setattr(sources, "LINE_LIMIT", 1 << 20)
    path = packed(tmp_path / "x.jsonl", 30 << 20)
    with pytest.raises(DataError, match=r"x\.jsonl\.gz, line 1: longer than 1,048,576 bytes"):
        list(sources.lines(path))


def test_the_limits_are_beyond_our_data_sets():
    """The largest file of a data set here has less than 2 GB, the longest line less than 2 MB."""
    assert sources.LIMIT >= 8 << 30
    assert sources.LINE_LIMIT >= 16 << 20


def test_enwik8_ends_where_it_ends(tmp_path, monkeypatch):
    """The official file has 10^8 bytes: more are not unpacked."""
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    packed(tmp_path / "enwik8" / "enwik8", 120 << 20)
    with pytest.raises(DataError, match=r"enwik8\.gz: .*unpacks to more than 100,000,000 bytes"):
        tasks.build("enwik8").dataset("train")


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def picture(path, width, height, pixels, header=None):
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0) if header is None else header
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    return path


def zeros(size):
    made = zlib.compressobj(9)
    return b"".join(made.compress(bytes(1 << 20)) for _ in range(size >> 20)) + made.flush()


def test_a_picture_beyond_its_own_size(tmp_path, little):
    """What its header does not have is not unpacked."""
    path = picture(tmp_path / "x.png", 32, 32, zeros(200 << 20))
    assert read_grey(path).shape == (32, 32)


@pytest.mark.parametrize(
    ("width", "height"), [(2**31 - 1, 2**31 - 1), (1, 2**31), (0, 5), (5, 0), (20_000, 20_000)]
)
def test_a_picture_that_says_it_is_huge(tmp_path, little, width, height):
    path = picture(tmp_path / "x.png", width, height, zeros(1 << 20))
    with pytest.raises(DataError, match=r"x\.png"):
        read_grey(path)


@pytest.mark.parametrize("header", [b"", b"\0" * 12, b"\0" * 14])
def test_a_header_of_another_size(tmp_path, header):
    with pytest.raises(DataError, match=r"x\.png"):
        read_grey(picture(tmp_path / "x.png", 2, 2, b"", header))


def test_pictures_cut_anywhere_and_bytes_changed_anywhere(tmp_path):
    path = tmp_path / "x.png"
    whole = np.arange(35, dtype=np.uint8).reshape(5, 7)
    PIL.Image.fromarray(whole).save(path)
    data = path.read_bytes()
    changed = [data[:end] for end in range(len(data))]
    changed += [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(len(data))]
    refused = 0
    for spoilt in changed:
        path.write_bytes(spoilt)
        try:
            found = read_grey(path)
        except DataError:
            refused += 1
            continue
        assert np.array_equal(found, whole), "behind the pixels, or not at all"
    assert refused > 0.8 * len(changed)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"y_train": 3, "y_test": []}',
        '{"y_train": [[1]], "y_test": []}',
        "7",
        "[]",
        '{"a": 1}',
    ],
)
def test_labels_of_another_kind(tmp_path, monkeypatch, text):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for name in (*(f"gray_train{i}" for i in range(1, 6)), "gray_test"):
        PIL.Image.fromarray(np.zeros((32, 32), np.uint8)).save(folder / f"{name}.png")
    (folder / "labels.json").write_text(text)
    with pytest.raises(DataError, match=r"labels\.json"):
        tasks.build("image", official=False).dataset("train")


def test_records_nested_too_deeply(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a"}) + "\n" + '{"text": ' + "[" * 100_000 + "\n")
    with pytest.raises(DataError, match=r"x\.jsonl, line 2: no JSON"):
        list(sources.jsonl(tmp_path / "x.jsonl", {"text": str}))


def test_a_pipe_is_no_file_of_data(tmp_path, monkeypatch):
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path))
    (tmp_path / "enwik8").mkdir()
    os.mkfifo(tmp_path / "enwik8" / "enwik8")
    with pytest.raises(DataError, match="is missing"):
        tasks.build("enwik8").dataset("train")
