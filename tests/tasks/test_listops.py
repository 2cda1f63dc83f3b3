"""ListOps: labels by an independent evaluator, the published distribution, the same bytes on any cores."""

import math
import random
import re
import statistics
from collections import Counter

import numpy as np
import pytest

from benchmarks import listops_judge
from cosformer import tasks
from cosformer.tasks.lra import listops
from cosformer.tasks.lra.listops_trees import SYMBOLS, Grammar, grow
from tests.tasks.tiny import write

GROWN = 15_000


@pytest.fixture(scope="module")
def trees():
    """Texts and values of trees of the published limits."""
    made = grow(np.random.default_rng(7), GROWN, Grammar())
    ends = np.cumsum(made.lengths)
    texts = [
        [SYMBOLS[t] for t in made.tokens[end - length : end]]
        for end, length in zip(ends.tolist(), made.lengths.tolist(), strict=True)
    ]
    return texts, made.values.tolist()


def value(symbols):
    """Another way to the value: the innermost brackets first, by Python's own functions."""
    text, inner = " ".join(symbols), re.compile(r"\[(MIN|MAX|MED|SM) ([\d ]+) \]")
    apply = {"MIN": min, "MAX": max, "MED": lambda x: int(statistics.median(x)), "SM": lambda x: sum(x) % 10}
    while not text.isdigit():
        text, count = inner.subn(lambda m: str(apply[m[1]](list(map(int, m[2].split())))), text)
        assert count, text
    return int(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[MAX 4 [MIN 2 3 ] 0 ]", 4),
        ("[MED 1 5 8 9 ]", 6),
        ("[SM 9 9 [MED 3 4 ] ]", 1),
        ("[MIN [MAX 7 8 ] 9 ]", 8),
    ],
)
def test_the_evaluators_themselves(text, expected):
    assert value(text.split()) == listops_judge.value(text) == expected


@pytest.mark.parametrize("text", ["", "[MAX 4 2", "[MAX 4 2 ] 3", "4 ]", "[AVG 4 2 ]"])
def test_the_judge_refuses_what_is_no_tree(text):
    with pytest.raises(ValueError):  # noqa: PT011 (int's own message among them)
        listops_judge.value(text)


def texts_and_values(made):
    ends = np.cumsum(made.lengths).tolist()
    symbols = np.array(SYMBOLS, dtype=object)[made.tokens]
    for end, length, label in zip(ends, made.lengths.tolist(), made.values.tolist(), strict=True):
        yield " ".join(symbols[end - length : end]), label


def test_an_independent_evaluator_confirms_10_000_labels():
    """Of trees of the published size; a second one, that works from the inside out, some of them."""
    rng, seen = np.random.default_rng(3), 0
    while seen < 10_000:
        for text, label in texts_and_values(grow(rng, 20_000, Grammar())):
            assert listops_judge.value(text) == label
            if seen % 50 == 0:
                assert value(text.split()) == label
            seen += 1


def test_grammar(trees):
    texts, _ = trees
    depths, arguments = [], []
    for symbols in texts[:300]:
        assert 500 < len(symbols) < 2000
        open_ = []
        deepest = 0
        for symbol in symbols:
            if symbol == "]":
                arguments.append(open_.pop())
                assert arguments[-1] in range(2, 11)
            if symbol != "]" and open_:
                open_[-1] += 1
            if symbol.startswith("["):
                open_.append(0)
            deepest = max(deepest, len(open_) + (symbol != "]" and not symbol.startswith("[")))
        assert not open_
        depths.append(deepest)
    assert max(depths) == 10, "digits at depth 10, operators at most at 9"
    assert statistics.mean(depths) > 9, "trees of that length are deep"
    assert min(arguments) == 2
    assert max(arguments) == 10


def published_length(rng, depth=1):
    """The length of a tree by the published generator, node by node."""
    if depth >= 10 or rng.random() > 0.25:
        return 1
    return 2 + sum(published_length(rng, depth + 1) for _ in range(rng.randint(2, 10)))


def test_published_distribution(trees):
    """As many trees are kept, and they are as long, as where they are grown node by node; operators and
    digits are equally likely; no class is rare."""
    texts, labels = trees
    rng = random.Random(0)
    kept = [n for n in (published_length(rng) for _ in range(5000)) if 500 < n < 2000]
    share, expected = len(texts) / GROWN, len(kept) / 5000
    assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 5000)
    lengths = [len(text) for text in texts]
    error = statistics.stdev(kept) / math.sqrt(len(kept))
    assert abs(statistics.mean(lengths) - statistics.mean(kept)) < 5 * error
    symbols = Counter(s for text in texts[:300] for s in text)
    for kind in (["[MIN", "[MAX", "[MED", "[SM"], "0123456789"):
        shares = np.array([symbols[s] for s in kind]) / sum(symbols[s] for s in kind)
        assert (abs(shares * len(kind) - 1) < 0.05).all()
    shares = np.bincount(labels, minlength=10) / len(labels)
    assert shares.min() > 0.04
    assert shares.max() < 0.25


def rows(**settings):
    small = {"min_length": 10, "max_length": 40, "train_rows": 300, "valid_rows": 20, "test_rows": 20}
    return tasks.build("listops", **small | settings).dataset("train")


def test_the_same_bytes_on_any_number_of_cores(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(listops, "_GROWN_AT_ONCE", 512)
    for workers in ("1", "2"):
        monkeypatch.setenv("COSFORMER_WORKERS", workers)
        monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path / workers))
        made = rows()  # of several jobs
        found.append((made.sequences["input_ids"].values.tobytes(), made.labels.tobytes()))
    assert found[0] == found[1]
    assert found[0][0] != rows(seed=1).sequences["input_ids"].values.tobytes()


def test_trees_are_distinct_across_splits():
    task = tasks.build("listops", min_length=2, max_length=7, train_rows=900, valid_rows=90, test_rows=90)
    seen = [tuple(row["input_ids"].tolist()) for s in ("train", "valid", "test") for row in task.dataset(s)]
    assert len(set(seen)) == len(seen) == 1080


def test_original_files():
    lines = ["Source\tTarget", "( ( ( ( [MAX 4 ) ( ( ( [MIN 2 ) 3 ) ] ) ) 0 ) ] )\t4", "5\t5"]
    for name in ("train", "val", "test"):
        write(f"listops-1000/basic_{name}.tsv", lines)
    with pytest.raises(
        tasks.DataError, match=r"basic_train.tsv: 2 rows, but train_rows is 96,000, .* or set train_rows"
    ):
        tasks.build("listops", files="listops-1000").dataset("train")
    task = tasks.build("listops", files="listops-1000", train_rows=2, valid_rows=2, test_rows=2)
    for split in ("train", "valid", "test"):
        data = task.dataset(split)
        text = [SYMBOLS[t] for t in data[0]["input_ids"].tolist()]
        assert " ".join(text) == "[MAX 4 [MIN 2 3 ] 0 ]"
        assert [int(row["labels"]) for row in data] == [4, 5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[MAX 4 2 ]\t4\t1", r"basic_train.tsv, line 3: 2 columns are expected, but there are 3"),
        ("[MAX 4 2 ]\t11", r"basic_train.tsv, line 3: the label must be one of 0, 1, .*, but it is '11'"),
        ("[AVG 4 2 ]\t3", r"basic_train.tsv, line 3: '\[AVG' is no symbol of ListOps"),
        ("[MAX " + "4 " * 2000 + "]\t3", r"line 3: 2002 symbols, and max_length is 2000"),
    ],
)
def test_damaged_files(line, message, tmp_path):
    write("listops-1000/basic_train.tsv", ["Source\tTarget", "5\t5", line])
    with pytest.raises(tasks.DataError, match=message):
        tasks.build("listops", files="listops-1000").dataset("train")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()], "nothing half-written"


@pytest.mark.parametrize("settings", [{"max_args": 1}, {"min_length": 50, "max_length": 51}])
def test_impossible_settings(settings):
    with pytest.raises(ValueError, match="max_args must be at least 2 and max_length beyond min_length"):
        tasks.build("listops", **settings)
