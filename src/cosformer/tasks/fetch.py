"""Downloads public data sets with the package `datasets`, in the layout that the tasks read.

Nothing here is imported before it is asked for. Files are written aside and renamed, into `data` in the cache
folder.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cosformer import atomic
from cosformer.tasks.glue import tasks as glue_tasks
from cosformer.tasks.glue.formats import Glue
from cosformer.tasks.io import cache, sources

Lines = Iterator[str]


def fetch(name: str) -> list[Path]:
    """Fetches the files of a task that are not there yet; those that were written.

    Known are imdb, wikitext2, wikitext103 and the tasks of GLUE.
    """
    if name not in _KNOWN:
        raise ValueError(
            f"{name!r} cannot be fetched: known are {', '.join(sorted(_KNOWN))}. Other data sets are "
            "generated, or their errors say where to get them."
        )
    written = []
    for relative, lines in _KNOWN[name]().items():
        target = cache.root() / "data" / relative
        if any((r / (relative + s)).is_file() for r in sources.roots() for s in sources.PACKED):
            continue
        _write(target, lines())
        written.append(target)
    return written


def _write(target: Path, lines: Lines) -> None:
    with atomic.writing(target) as out:
        out.writelines((line + "\n").encode() for line in lines)


def _load(*arguments: str, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise sources.DataError(
            f"fetching needs the package `datasets` (pip install datasets); or put the files under "
            f"{sources.VARIABLE} by hand."
        ) from error
    return datasets.load_dataset(*arguments, split=split)


def _imdb() -> dict[str, Callable[[], Lines]]:
    def labelled() -> Lines:
        for split in ("train", "test"):
            for row in _load("stanfordnlp/imdb", split=split):
                yield json.dumps({"split": split, "label": row["label"], "text": row["text"]})

    def unlabelled() -> Lines:
        for row in _load("stanfordnlp/imdb", split="unsupervised"):
            yield json.dumps({"text": row["text"]})

    return {"imdb/labeled.jsonl": labelled, "imdb/unsup.jsonl": unlabelled}


def _wikitext(folder: str) -> dict[str, Callable[[], Lines]]:
    def of(kind: str, split: str) -> Callable[[], Lines]:
        name = f"{folder}-v1" if kind == "tokens" else f"{folder}-raw-v1"
        home = {"train": "train", "valid": "validation", "test": "test"}[split]
        return lambda: (
            row["text"].removesuffix("\n") for row in _load("Salesforce/wikitext", name, split=home)
        )

    return {
        f"{folder}/wiki.{split}.{kind}": of(kind, split)
        for split in ("train", "valid", "test")
        for kind in ("tokens", "raw")
    }


def _glue(task: type[Glue]) -> dict[str, Callable[[], Lines]]:
    """Their rows in the columns of the original files; columns that are not read stay empty."""
    form = task.format
    fields = {
        "sst2": ("sentence",), "cola": ("sentence",), "qnli": ("question", "sentence"),
        "qqp": ("question1", "question2"), "mnli": ("premise", "hypothesis"),
    }.get(task.name, ("sentence1", "sentence2"))  # fmt: skip
    names = None if form.labels is None else {number: label for label, number in form.labels.items()}

    def of(home: str, columns: int | tuple[str, ...], label: int) -> Callable[[], Lines]:
        def lines() -> Lines:
            width = columns if isinstance(columns, int) else len(columns)
            if not isinstance(columns, int):
                yield "\t".join(columns)
            for row in _load("nyu-mll/glue", task.name, split=home):
                cells = [""] * width
                for at, field in zip(form.texts, fields, strict=True):
                    cells[at] = " ".join(row[field].split("\t")).replace("\n", " ")
                cells[label] = f"{row['label']:.3f}" if names is None else names[row["label"]]
                yield "\t".join(cells)

        return lines

    files = {f"glue/{form.folder}/train.tsv": of("train", form.columns, form.label)}
    columns, label = form.test_columns or form.columns, form.test_label or form.label
    homes = {"dev.tsv": "validation", "dev_matched.tsv": "validation_matched"}
    files[f"glue/{form.folder}/{form.test}"] = of(homes[form.test], columns, label)
    if task.name == "mnli":
        files["glue/MNLI/dev_mismatched.tsv"] = of("validation_mismatched", columns, label)
    return files


_KNOWN: dict[str, Callable[[], dict[str, Callable[[], Lines]]]] = {
    "imdb": _imdb,
    "text": _imdb,
    "wikitext2": lambda: _wikitext("wikitext-2"),
    "wikitext103": lambda: _wikitext("wikitext-103"),
    **{
        task.name: partial(_glue, task)
        for task in (
            glue_tasks.Sst2, glue_tasks.Cola, glue_tasks.Mrpc, glue_tasks.Rte, glue_tasks.Stsb,
            glue_tasks.Qnli, glue_tasks.Qqp, glue_tasks.Mnli,
        )
    },
}  # fmt: skip
