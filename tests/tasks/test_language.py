"""Windows over a text, words and pieces of words: every token is predicted once, and scores are per word."""

import math
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from cosformer import tasks
from cosformer.tasks.io import corpora
from cosformer.tasks.language.windows import Windows, collate_windows
from tests.tasks import tiny

# length, overlap, tokens: also a last window of a single prediction, and a text shorter than a window.
CASES = [
    (4, 1, 7),
    (4, 1, 9),
    (4, 1, 10),
    (8, 3, 50),
    (8, 7, 9),
    (16, 1, 5),
    (16, 1, 15),
    (16, 1, 16),
    (2, 1, 3),
]


@pytest.mark.parametrize(("length", "overlap", "count"), CASES)
def test_every_token_is_predicted_exactly_once(length, overlap, count):
    stream = np.arange(100, 100 + count, dtype=np.uint8)
    rows = list(Windows(stream, 7, length, overlap))
    predicted = torch.cat([row["labels"][row["labels"] != -100] for row in rows])
    assert predicted.tolist() == stream.tolist()
    for i, row in enumerate(rows):
        assert row["labels"][0] == -100, "the first token of a window has nothing before it"
        assert len(row["input_ids"]) == length or i == len(rows) - 1
        wanted = row["labels"] != -100
        assert torch.equal(row["input_ids"][wanted], row["labels"][wanted])
    assert rows[0]["input_ids"][0] == 7


def test_overlap_gives_more_to_go_by():
    row = list(Windows(np.arange(50), 7, 8, 3))[1]
    assert row["input_ids"].tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert row["labels"].tolist() == [-100, -100, -100, 7, 8, 9, 10, 11]


def test_a_short_window_is_padded_behind():
    rows = list(Windows(np.arange(1, 10), 7, 8, 1))
    batch = collate_windows(rows, 8)
    assert batch["input_ids"].tolist() == [[7, 1, 2, 3, 4, 5, 6, 7], [7, 8, 9, 0, 0, 0, 0, 0]]
    assert batch["labels"][1].tolist() == [-100, 8, 9, -100, -100, -100, -100, -100]


@pytest.mark.parametrize("overlap", [0, 8])
def test_impossible_overlap(overlap):
    with pytest.raises(ValueError, match="overlap must be at least 1 and below length 8"):
        tasks.build("enwik8", length=8, overlap=overlap)


def test_bytes_are_split_in_order():
    whole = tiny.write("enwik8/enwik8", (tiny.sentence(i) for i in range(200))).read_bytes()
    task = tasks.build("enwik8", official=False, length=32)
    found = b""
    for split, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
        ids = torch.cat([row["labels"][row["labels"] != -100] for row in task.dataset(split)])
        found += bytes(ids.tolist())
        assert abs(len(ids) / len(whole) - share) < 0.001
    assert found == whole


def rows_of(task, split):
    """The metric's statistics for a model that knows nothing."""
    rows = task.dataset(split)
    parts = []
    for i in range(0, len(rows), 3):
        batch = task.collate([rows[k] for k in range(i, min(i + 3, len(rows)))])
        logits = torch.zeros(*batch["input_ids"].shape, task.vocab_size)
        parts.append(task.metric.rows(logits, batch))
    return torch.cat(parts)


@pytest.mark.parametrize("tokens", ["words", "bpe"])
def test_perplexity_is_per_word(tokens):
    """With equal probabilities it is exp(tokens log(V) / words), however the words fall apart."""
    tiny.wikitext("wikitext-2")
    task = tasks.build("wikitext2", official=False, length=16, tokens=tokens, bpe_size=300)
    path = corpora.wikitext("wikitext2", "valid", "raw")
    words = sum(len(line.split()) + 1 for line in path.read_text(encoding="utf-8").splitlines())
    rows = rows_of(task, "valid")
    count = int(rows[:, 1].sum())
    assert int(rows[:, 3].sum()) == words
    assert (count == words) == (tokens == "words")
    assert count >= words
    expected = math.exp(count * math.log(task.vocab_size) / words)
    assert task.metric.score(rows)["perplexity"] == pytest.approx(expected, rel=1e-6)


def test_pieces_give_the_words_back():
    tiny.wikitext("wikitext-2")
    task = tasks.build("wikitext2", official=False, length=16, tokens="bpe", bpe_size=300)
    ids = torch.cat([row["labels"][row["labels"] != -100] for row in task.dataset("test")]).tolist()
    text = task._bpe.tokenizer.decode(ids).replace("<eos>", " <eos>").split()
    raw = corpora.wikitext("wikitext2", "test", "raw").read_text(encoding="utf-8")
    assert text == raw.replace("\n", " <eos> ").split()


def test_words_are_in_order_of_frequency():
    tiny.wikitext("wikitext-2")
    task = tasks.build("wikitext2", official=False)
    stream = task.dataset("train").stream
    counts = np.bincount(stream, minlength=task.vocab_size)
    assert (counts > 0).all()
    assert (np.diff(counts) <= 0).all()
    assert set(task._words) == {
        word
        for line in corpora.wikitext("wikitext2", "train", "tokens").read_text(encoding="utf-8").splitlines()
        for word in [*line.split(), "<eos>"]
    }


def test_articles_are_documents():
    tiny.wikitext("wikitext-2")
    found = list(corpora.documents("wikitext2", "train"))
    assert [text.splitlines()[0] for text in found] == ["= Title 0 =", "= Title 1 =", "= Title 2 ="]


def test_python_is_the_library_without_its_tests():
    root = Path(sysconfig.get_paths()["stdlib"])
    files = {split: corpora.python_files(split) for split in ("train", "valid", "test")}
    every = [p.relative_to(root).as_posix() for own in files.values() for p in own]
    assert len(set(every)) == len(every), "no file is in two splits"
    assert {"os.py", "json/decoder.py", "asyncio/tasks.py"} <= set(every)
    assert not [p for p in every if {"test", "tests", "site-packages"} & set(Path(p).parts)]
    sizes = {split: len(tasks.build("python").stream(split)) for split in files}
    assert sizes["train"] > 5_000_000
    assert all(sizes[s] > 100_000 for s in sizes)


def test_an_unknown_corpus():
    for f in (corpora.documents, corpora.identity):
        with pytest.raises(ValueError, match="corpus must be one of imdb, python, wikitext103, wikitext2"):
            list(f("books", "train"))
    with pytest.raises(ValueError, match="corpus must be one of"):
        tasks.build("mlm", corpus="books")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("wikitext2", {"official": False, "tokens": "bpe", "bpe_size": 300}),
        ("mlm", {"tokens": "bpe", "bpe_size": 300}),
        ("mlm", {"tokens": "bytes"}),
    ],
    ids=["wikitext2-bpe", "mlm-bpe", "mlm-bytes"],
)
def test_the_tokenizer_is_that_of_the_rows(name, settings):
    """What is kept beside the weights reads a row of the task back as it was."""
    tiny.wikitext("wikitext-2")
    task = tasks.build(name, length=64, **settings)
    row = task.dataset("test")[0]
    ids = torch.where(row["labels"] == -100, row["input_ids"], row["labels"])[1:40].tolist()
    ordinary = [i for i in ids if i not in task.tokenizer.all_special_ids]
    text = task.tokenizer.decode(ordinary)
    assert task.tokenizer(text, add_special_tokens=False)["input_ids"] == ordinary
    assert len(task.tokenizer) <= task.vocab_size
    assert " green bad " in text
