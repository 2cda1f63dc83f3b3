"""Files that are damaged: errors that name the file and the line, and nothing half-written."""

import gzip
import json
import lzma
import struct
import zlib

import PIL.Image
import pytest

from cosformer import tasks
from cosformer.tasks.io import sources
from tests.tasks import tiny
from tests.tasks.tiny import write

SST2 = ["sentence\tlabel", "good film\t1", "bad film\t0"]
GOOD = {"split": "train", "label": 1, "text": "fine"}


def sst2(*more):
    write("glue/SST-2/train.tsv", [*SST2, *more])
    return tasks.build("sst2", official=False)


def refused(task, message, tmp_path):
    with pytest.raises(tasks.DataError, match=message) as caught:
        task.dataset("train")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()], "nothing half-written"
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "one\ttwo\t1",
            r"SST-2.train.tsv, line 4: 2 columns are expected, but there are 3; repair the file, or fetch",
        ),
        ("one", r"SST-2.train.tsv, line 4: 2 columns are expected, but there are 1"),
        ("", r"SST-2.train.tsv, line 4: 2 columns are expected, but there are 1"),
        ("one\t2", r"SST-2.train.tsv, line 4: the label must be one of 0, 1, but it is '2'"),
        ("one\t", r"SST-2.train.tsv, line 4: the label must be one of 0, 1, but it is ''"),
    ],
)
def test_damaged_rows(row, message, tmp_path):
    refused(sst2(row), message, tmp_path)


def test_wrong_names_of_columns(tmp_path):
    write("glue/SST-2/train.tsv", ["label\tsentence", "1\tgood"])
    task = tasks.build("sst2", official=False)
    refused(task, r"line 1: the columns must be sentence, label, but they are label, sentence", tmp_path)


@pytest.mark.parametrize("score", ["5.1", "-1", "nan", "five", ""])
def test_scores(score, tmp_path):
    cells = [""] * 10
    cells[9] = score
    write("glue/STS-B/train.tsv", ["\t".join(tiny.STSB), "\t".join(cells)])
    task = tasks.build("stsb", official=False)
    refused(
        task,
        rf"STS-B.train.tsv, line 2: the score must be a number from 0 to 5, but it is '{score}'",
        tmp_path,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"labeled.jsonl, line 2: no JSON"),
        ("[1]", r"labeled.jsonl, line 2: a JSON object is expected, but there is '\[1\]'"),
        (json.dumps(GOOD | {"text": 5}), r"line 2: field 'text' must be of type str, but it is '5'"),
        (json.dumps(GOOD | {"label": 3}), r"line 2: the label must be one of 0, 1, but it is '3'"),
        (json.dumps(GOOD | {"split": "dev"}), r"line 2: split must be train or test, but it is 'dev'"),
    ],
)
@pytest.mark.parametrize("name", ["imdb", "text"])
def test_damaged_records(name, line, message, tmp_path):
    write("imdb/labeled.jsonl", [json.dumps(GOOD), line])
    refused(tasks.build(name, official=False), message, tmp_path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"overall": 6.0, "reviewText": "x"}, "line 1: overall must be 1, 2, 3, 4 or 5 stars, but it is 6.0"),
        ({"overall": 3.5, "reviewText": "x"}, "line 1: overall must be 1, 2, 3, 4 or 5 stars"),
        ({"overall": "5", "reviewText": "x"}, "line 1: field 'overall' must be of type int or float"),
        ({"overall": 5.0, "reviewText": 7}, "line 1: reviewText must be a text, but it is '7'"),
    ],
)
def test_amazon(record, message, tmp_path):
    write("amazon/reviews.json", [json.dumps(record)])
    refused(tasks.build("amazon"), message, tmp_path)


def test_not_utf8(tmp_path):
    path = write("glue/SST-2/train.tsv", SST2)
    path.write_bytes(path.read_bytes() + b"\xff\xfe\t1\n")
    refused(
        tasks.build("sst2", official=False), r"line 4: no UTF-8 \(invalid start byte at byte 0\)", tmp_path
    )


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
class TestArchives:
    def test_whole(self, suffix, pack):
        path = write("glue/SST-2/train.tsv", SST2 * 1 + ["more\t1"] * 20)
        path.with_name(path.name + suffix).write_bytes(pack(path.read_bytes()))
        plain = list(sources.tsv(path, ("sentence", "label")))
        path.unlink()
        task = tasks.build("sst2", official=False)
        assert list(sources.tsv(task.path("train"), ("sentence", "label"))) == plain
        assert len(task.dataset("train")) == 20

    @pytest.mark.parametrize("keep", [0.5, 0.95])
    def test_cut_off(self, suffix, pack, keep, tmp_path):
        lines = [*SST2, *(f"{tiny.sentence(i)}\t1" for i in range(3000))]
        path = write("glue/SST-2/train.tsv", lines)
        packed = pack(path.read_bytes())
        path.unlink()
        path.with_name(path.name + suffix).write_bytes(packed[: int(len(packed) * keep)])
        message = rf"train.tsv{suffix}, line \d+: the archive is damaged or cut off here .*fetch it again"
        refused(tasks.build("sst2", official=False), message, tmp_path)

    def test_no_archive_at_all(self, suffix, pack, tmp_path):
        path = write(f"glue/SST-2/train.tsv{suffix}", SST2)
        assert path.is_file()
        refused(tasks.build("sst2", official=False), "line 1: the archive is damaged or cut off", tmp_path)

    def test_bytes_cut_off(self, suffix, pack, tmp_path):
        path = write("enwik8/enwik8", (tiny.sentence(i) for i in range(3000)))
        packed = pack(path.read_bytes())
        path.unlink()
        path.with_name(f"enwik8{suffix}").write_bytes(packed[:-20])
        message = rf"enwik8{suffix}: the archive is damaged or cut off behind byte [\d,]+"
        refused(tasks.build("enwik8", official=False), message, tmp_path)


def test_quotes_tabs_and_odd_line_ends_are_plain_text():
    write(
        "glue/SST-2/train.tsv",
        ["sentence\tlabel", 'a "quoted\t1', "with\x85next\x0cline\u2028here\t0", "crlf\t1\r"],
    )
    rows = list(tasks.build("sst2").records("train"))
    assert rows == [(('a "quoted',), 1), (("with\x85next\x0cline\u2028here",), 0), (("crlf",), 1)]


def test_qqp_has_torn_rows_but_not_many(tmp_path):
    names = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    good = ["1\t2\t3\ta\tb\t0"] * 12
    write("glue/QQP/train.tsv", [names, *good, *["torn\trow"] * 10])
    assert len(list(tasks.build("qqp").records("train"))) == 12
    write("glue/QQP/train.tsv", [names, *good, *["torn\trow"] * 11])
    refused(tasks.build("qqp", official=False), "line 24: 6 columns are expected, but there are 2", tmp_path)


def test_mnli_mismatched():
    columns = [*tiny.MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"]
    tiny.glue("MNLI", columns, ["neutral"], (8, 9), 15, ("dev_mismatched.tsv",), rows=4)
    rows = tasks.build("mnli", mismatched=True, official=False).dataset("test")
    assert [int(row["labels"]) for row in rows] == [1, 1, 1, 1]


def test_where_files_are_looked_for(monkeypatch, tmp_path):
    """Under COSFORMER_DATA first, then in the cache."""
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "cache" / "data"))
    write("glue/SST-2/train.tsv", ["sentence\tlabel", "in the cache\t0"])
    monkeypatch.delenv("COSFORMER_DATA")
    assert next(tasks.build("sst2").records("train"))[0] == ("in the cache",)
    with pytest.raises(tasks.DataError, match=r"\(COSFORMER_DATA is not set\)"):
        tasks.build("cola").dataset("train")
    monkeypatch.setenv("COSFORMER_DATA", str(tmp_path / "data"))
    write("glue/SST-2/train.tsv", ["sentence\tlabel", "given\t0"])
    assert next(tasks.build("sst2").records("train"))[0] == ("given",)


@pytest.mark.parametrize("keep", [4, 20, 60, -30, -13])
def test_png_cut_off(keep, tmp_path):
    tiny.cifar()
    path = tmp_path / "data" / "cifar10" / "gray_train3.png"
    path.write_bytes(path.read_bytes()[:keep])
    refused(tasks.build("image", official=False), r"gray_train3.png: .*PNG", tmp_path)


def test_png_flipped_bit(tmp_path):
    tiny.cifar()
    path = tmp_path / "data" / "cifar10" / "gray_test.png"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    refused(
        tasks.build("image", official=False), r"gray_test.png: the PNG file is cut off, damaged", tmp_path
    )


@pytest.mark.parametrize(("width", "height"), [(1 << 14, 1 << 14), (1 << 20, 1 << 10), (1 << 30, 1 << 30)])
def test_png_that_claims_too_much(width, height, tmp_path):
    """Its header alone is read: nothing of that size is ever allocated."""
    tiny.cifar()
    path = tmp_path / "data" / "cifar10" / "gray_train1.png"
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path.write_bytes(data)
    refused(tasks.build("image", official=False), r"gray_train1.png: .*pixels", tmp_path)


@pytest.mark.parametrize("mode", ["RGB", "1", "P", "I;16"])
def test_png_of_other_colours(mode, tmp_path):
    tiny.cifar()
    PIL.Image.new(mode, (64, 64)).save(tmp_path / "data" / "cifar10" / "gray_train2.png")
    refused(tasks.build("image", official=False), r"gray_train2.png: the PNG must be grey", tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"y_train": [0] * 20}, "labels.json: JSON with y_train and y_test is expected"),
        (
            {"y_train": [0] * 20, "y_test": [0, 1, 10, 1]},
            r"y_test\[2\] must be a class from 0 to 9, but it is 10",
        ),
        ({"y_train": [0] * 19, "y_test": [0] * 4}, "labels.json: 19 labels for 20 pictures of train"),
    ],
)
def test_image_labels(labels, message, tmp_path):
    tiny.cifar()
    (tmp_path / "data" / "cifar10" / "labels.json").write_text(json.dumps(labels))
    refused(tasks.build("image", official=False), message, tmp_path)


def test_retrieval_rows(tmp_path):
    write("retrieval/new_aan_pairs.train.tsv", ["1.0\ta\tb\tx\ty", "2.0\ta\tb\tx\ty"])
    refused(
        tasks.build("retrieval", official=False), "line 2: the label must be one of 0, 1, 0.0, 1.0", tmp_path
    )
