"""Reviews: the Long Range Arena's Text, IMDB and Amazon for fine-tuning."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cosformer.ops.checks import flag, positive_int
from cosformer.tasks.base import Split, Task, checked_split
from cosformer.tasks.glue.finetuning import FineTuning, Part, checked_share, held_out
from cosformer.tasks.io import cache, sources
from cosformer.tasks.io.ragged import LabelledRows, Ragged, RaggedWriter, load_numbers, save_numbers
from cosformer.tasks.io.tokens import Bytes
from cosformer.tasks.metrics import Accuracy
from cosformer.tasks.registry import register

_OFFICIAL = 25_000


def _imdb() -> Path:
    return sources.find("imdb/labeled.jsonl", advice='Call cosformer.tasks.fetch("imdb").')


def _imdb_records(part: Part) -> Iterator[tuple[tuple[str, ...], float]]:
    path = _imdb()
    for line, record in sources.jsonl(path, {"split": str, "label": int, "text": str}):
        if record["split"] not in ("train", "test"):
            raise sources.bad(path, line, f"split must be train or test, but it is {record['split'][:60]!r}")
        if record["split"] == part:
            yield (record["text"],), sources.label(path, line, str(record["label"]), {"0": 0, "1": 1})


@register("text")
@dataclass(frozen=True)
class Text(Task):
    """Text of the Long Range Arena: is a film review positive? Read byte by byte.

        input_ids   66 114 111 109 119 101 108 108 32 72 105 103 104 32 105 115 ...     "Bromwell High is ..."
        labels      1

    Provenance: Large Movie Review Dataset (Maas et al., 2011), as `imdb/labeled.jsonl` (split, label, text;
    or .xz, .gz): 25,000 / 25,000 reviews, balanced, no film in both. A tenth of train is held out as valid:
    22,500 / 2,500 / 25,000. (The Long Range Arena itself validates on test.)

    Args:
        length: the most bytes; what is behind is left out.
        held_out: the share of the official training rows that is valid, at most 5,000 rows.
        official: whether the file must have the official counts.
    """

    length: int = 4000
    held_out: float = 0.1
    official: bool = True

    title = "Text"
    head = "classification"
    metric = Accuracy()
    vocab_size = Bytes.vocab_size
    num_labels = 2
    pad_token_id = Bytes.pad

    def __post_init__(self) -> None:
        positive_int("length", self.length)
        checked_share(self.held_out)
        flag("official", self.official)

    def dataset(self, split: Split) -> LabelledRows:
        part: Part = "test" if checked_split(split) == "test" else "train"
        key = {"version": 1, "file": sources.identity(_imdb()), "official": self.official, "part": part}
        folder = cache.entry("text", key, partial(_build_text, part, self.official))
        labels = load_numbers(folder, "labels")
        chosen = held_out(len(labels), self.held_out, split)
        return LabelledRows({"input_ids": Ragged(folder, "texts")}, labels, self.length, chosen)

    def example(self) -> str:
        (text,), label = next(_imdb_records("train"))
        ids = " ".join(str(b) for b in text.encode()[:16])
        return f"     text  {text[:70]!r} ...\ninput_ids  {ids} ...\n   labels  {label}"


def _build_text(part: Part, official: bool, folder: Path) -> None:
    labels = []
    with RaggedWriter(folder, "texts", 255) as writer:
        for (text,), label in _imdb_records(part):
            writer.add(text.encode())
            labels.append(label)
    sources.counted(_imdb(), len(labels), (_OFFICIAL,) if official else (), f"rows of {part}")
    save_numbers(folder, "labels", labels, np.uint8)


@register("imdb")
@dataclass(frozen=True)
class Imdb(FineTuning):
    """IMDB (Maas et al., 2011): is a film review positive? Accuracy.

        text        Bromwell High is a cartoon comedy. It ran at the same time as some other programs ...
        labels      1

    Provenance: `imdb/labeled.jsonl` (split, label, text; or .xz, .gz), 25,000 / 25,000 reviews, balanced, no
    film in both. The official test set is test.
    """

    title = "IMDB"
    metric = Accuracy()
    num_labels = 2
    counts: ClassVar = {"train": (_OFFICIAL,), "test": (_OFFICIAL,)}

    def path(self, part: Part) -> Path:
        return _imdb()

    def records(self, part: Part) -> Iterator[tuple[tuple[str, ...], float]]:
        return _imdb_records(part)


@register("amazon")
@dataclass(frozen=True)
class Amazon(FineTuning):
    """Amazon reviews (Ni et al., 2019): how many stars, 1 to 5 (labels 0 to 4)? Accuracy.

        text        This game is a bit hard to get the hang of, but when you do it's great.
        labels      4

    Provenance: the JSON lines of a category, as they are published (`overall`, `reviewText`), as `file` (or
    .xz, .gz). Reviews without a text are left out. There is no official split: every tenth line is test.

    Args:
        file: under COSFORMER_DATA.
    """

    file: str = "amazon/reviews.json"

    title = "Amazon"
    metric = Accuracy()
    num_labels = 5

    def path(self, part: Part) -> Path:
        return sources.find(
            self.file,
            advice="Take a category of the Amazon review data of 2018 (nijianmo.github.io/amazon), such as "
            "Video_Games_5.json.gz, and put it there.",
        )

    def records(self, part: Part) -> Iterator[tuple[tuple[str, ...], float]]:
        path = self.path(part)
        for line, record in sources.jsonl(path, {"overall": (int, float)}):
            if (part == "test") == (line % 10 == 0) and record.get("reviewText"):
                yield (_text(path, line, record),), _stars(path, line, record["overall"])


def _text(path: Path, line: int, record: dict[str, Any]) -> str:
    if not isinstance(record["reviewText"], str):
        raise sources.bad(
            path, line, f"reviewText must be a text, but it is {str(record['reviewText'])[:60]!r}"
        )
    return record["reviewText"]


def _stars(path: Path, line: int, overall: float) -> int:
    if overall not in (1, 2, 3, 4, 5):
        raise sources.bad(path, line, f"overall must be 1, 2, 3, 4 or 5 stars, but it is {overall!r}")
    return int(overall) - 1
