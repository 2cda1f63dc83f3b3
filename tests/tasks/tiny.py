"""Tiny data sets in the official formats, and settings with which every task reads or makes some rows."""

import json
import os
from pathlib import Path

import numpy as np
import PIL.Image

WORDS = ["red", "green", "blue", "good", "bad", "stop", "naïve", "数", "it's"]


def sentence(number, size=6):
    return " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(size)) + f" {number}"


def write(name, lines):
    path = Path(os.environ["COSFORMER_DATA"]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def glue(folder, columns, label_names, texts, label, files=("train.tsv", "dev.tsv"), rows=20):
    """Rows with sentences in the text columns and labels in turn; `columns` may differ from file to file."""
    for i, file in enumerate(files):
        names, at = (columns, label) if isinstance(columns[0], str | int) else (columns[i], label[i])
        width = names[0] if isinstance(names[0], int) else len(names)
        lines = [] if isinstance(names[0], int) else ["\t".join(names)]
        for row in range(rows):
            cells = [f"x{row}"] * width
            for text in texts:
                cells[text] = sentence(row + text)
            cells[at] = label_names[row % len(label_names)]
            lines.append("\t".join(cells))
        write(f"glue/{folder}/{file}", lines)


MNLI = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse",
        "sentence1_parse", "sentence2_parse", "sentence1", "sentence2"]  # fmt: skip
STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2",
        "score"]  # fmt: skip
MRPC = ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"]


def reviews():
    rows = [
        {"split": s, "label": i % 2, "text": sentence(i, 12)} for s in ("train", "test") for i in range(20)
    ]
    write("imdb/labeled.jsonl", map(json.dumps, rows))


def wikitext(folder):
    for split in ("train", "valid", "test"):
        lines = []
        for article in range(3):
            lines += ["", f" = Title {article} = ", ""]
            lines += [f" {sentence(article + i)} <unk> , . " for i in range(8)]
        for kind in ("tokens", "raw"):
            write(f"{folder}/wiki.{split}.{kind}", [line.replace("<unk>", "word") if kind == "raw" else line
                                                    for line in lines])  # fmt: skip


def cifar():
    """Sheets of 2 x 2 pictures; the first pixel of each picture is its number."""
    folder = Path(os.environ["COSFORMER_DATA"]) / "cifar10"
    folder.mkdir(parents=True)
    for sheet, name in enumerate([*(f"gray_train{i}" for i in range(1, 6)), "gray_test"]):
        picture = np.random.default_rng(sheet).integers(0, 256, (64, 64), dtype=np.uint8)
        picture[::32, ::32] = 4 * (sheet % 5) + np.arange(4).reshape(2, 2)
        PIL.Image.fromarray(picture).save(folder / f"{name}.png")
    labels = {"y_train": [i % 10 for i in range(20)], "y_test": [i % 10 for i in range(4)]}
    (folder / "labels.json").write_text(json.dumps(labels))


def papers():
    write(
        "citations/papers.jsonl", (json.dumps({"id": f"p{i}", "text": sentence(i, 120)}) for i in range(60))
    )
    write("citations/citations.tsv", (f"p{i}\tp{j}" for i in range(60) for j in (i + 1, i + 3) if j < 60))


def aan():
    for split in ("train", "eval", "test"):
        write(f"retrieval/new_aan_pairs.{split}.tsv",
              (f"{i % 2}.0\t{i}\t{i + 1}\t{sentence(i)}\t{sentence(i + 1)}" for i in range(20)))  # fmt: skip


def amazon():
    rows = [{"overall": float(1 + i % 5), "reviewText": sentence(i)} for i in range(40)]
    write("amazon/reviews.json", map(json.dumps, [*rows, {"overall": 2.0}]))


def text_bytes():
    write("enwik8/enwik8", (sentence(i) for i in range(200)))


# What each task needs: the function that writes its files (None: none), and settings.
SMALL = {"train_rows": 12, "valid_rows": 5, "test_rows": 5}
READ = {"official": False}
TASKS = {
    "amazon": (amazon, READ),
    "citations": (papers, READ),
    "cola": (lambda: glue("CoLA", [4], ["0", "1"], (3,), 1), READ),
    "copy": (None, SMALL),
    "enwik8": (text_bytes, READ | {"length": 64}),
    "image": (cifar, READ),
    "imdb": (reviews, READ),
    "listops": (None, SMALL | {"min_length": 20, "max_length": 60}),
    "masked": (None, {"of": "pathfinder", "settings": SMALL}),
    "mlm": (lambda: wikitext("wikitext-2"), {"length": 64}),
    "mnli": (lambda: glue("MNLI", [[*MNLI, "label1", "gold_label"],
                                   [*MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"]],
                          ["entailment", "neutral", "contradiction"], (8, 9), [11, 15],
                          ("train.tsv", "dev_matched.tsv")), READ),
    "mqar": (None, SMALL | {"length": 64, "pairs": 4, "vocab_size": 64}),
    "mrpc": (lambda: glue("MRPC", MRPC, ["0", "1"], (3, 4), 0), READ),
    "pathfinder": (None, SMALL),
    "pathx": (None, {"train_rows": 2, "valid_rows": 2, "test_rows": 2}),
    "python": (None, {"length": 128}),
    "qnli": (lambda: glue("QNLI", ["index", "question", "sentence", "label"],
                          ["entailment", "not_entailment"], (1, 2), 3), READ),
    "qqp": (lambda: glue("QQP", ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], ["0", "1"],
                         (3, 4), 5), READ),
    "retrieval": (aan, READ),
    "reverse": (None, SMALL),
    "rte": (lambda: glue("RTE", ["index", "sentence1", "sentence2", "label"],
                         ["entailment", "not_entailment"], (1, 2), 3), READ),
    "sst2": (lambda: glue("SST-2", ["sentence", "label"], ["0", "1"], (0,), 1), READ),
    "stsb": (lambda: glue("STS-B", STSB, ["5.000", "2.5", "0"], (7, 8), 9), READ),
    "text": (reviews, READ),
    "wikitext103": (lambda: wikitext("wikitext-103"), READ | {"length": 32}),
    "wikitext2": (lambda: wikitext("wikitext-2"), READ | {"length": 32}),
}  # fmt: skip
