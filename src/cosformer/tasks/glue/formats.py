"""GLUE (Wang et al., 2018, arXiv:1804.07461): how its files are read. The tasks are in tasks.py."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cosformer.tasks.glue.finetuning import FineTuning, Part
from cosformer.tasks.io import sources


@dataclass(frozen=True)
class Format:
    """A task's files.

    Attributes:
        folder: under `glue`.
        columns: their names, or how many there are, in files without a first line of names.
        texts: the numbers of the columns that hold the sentences.
        label: the number of the label's column.
        labels: the number of each label; None: a score from 0 to 5.
        test: the name of the official development set's file, and its columns where they are others.
        broken: rows of the official files that are known to be no rows.
    """

    folder: str
    columns: int | tuple[str, ...]
    texts: tuple[int, ...]
    label: int
    labels: Mapping[str, int] | None
    test: str = "dev.tsv"
    test_columns: tuple[str, ...] | None = None
    test_label: int | None = None
    broken: int = 0


@dataclass(frozen=True)
class Glue(FineTuning):
    """A task of GLUE, from its original TSV files in `glue/<name>/` (or .xz, .gz). Quotes are plain
    characters."""

    length: int = 256

    format: ClassVar[Format]

    @property
    def _format(self) -> Format:
        return self.format

    def path(self, part: Part) -> Path:
        form = self._format
        file = "train.tsv" if part == "train" else form.test
        return sources.find(
            f"glue/{form.folder}/{file}",
            advice=f"Unpack GLUE's {form.folder}.zip into the folder glue, or call "
            f"cosformer.tasks.fetch({self.name!r}).",
        )

    def records(self, part: Part) -> Iterator[tuple[tuple[str, ...], float]]:
        form, path = self._format, self.path(part)
        columns, at = form.columns, form.label
        if part == "test" and form.test_columns is not None and form.test_label is not None:
            columns, at = form.test_columns, form.test_label
        for line, fields in sources.tsv(path, columns, broken=form.broken):
            yield tuple(fields[i] for i in form.texts), _value(path, line, fields[at], form.labels)


def _value(path: Path, line: int, given: str, labels: Mapping[str, int] | None) -> float:
    if labels is not None:
        return sources.label(path, line, given, labels)
    try:
        score = float(given)
    except ValueError:
        score = -1.0
    if not 0 <= score <= 5:  # refuses NaN too
        raise sources.bad(path, line, f"the score must be a number from 0 to 5, but it is {given[:60]!r}")
    return score
