"""Texts by name, as streams of lines or documents: for language models, pretraining and tokenizers.

name           documents                          train / valid / test
wikitext2      articles (raw text)                600 / 60 / 60 articles
wikitext103    articles (raw text)                28,475 / 60 / 60 articles
imdb           unlabelled reviews                 45,000 / 2,500 / 2,500 reviews
python         files of the standard library      9 / 0.5 / 0.5 of ten files, by a digest of their names
"""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer.tasks.base import Split
from cosformer.tasks.io import sources
from cosformer.tasks.io.sources import DataError

NAMES = ("imdb", "python", "wikitext103", "wikitext2")
_WIKITEXT = {"wikitext2": "wikitext-2", "wikitext103": "wikitext-103"}
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_IMDB_SPLITS = {"train": (0, 45_000), "valid": (45_000, 47_500), "test": (47_500, 50_000)}


def documents(corpus: str, split: Split) -> Iterator[str]:
    """The documents of a split."""
    if corpus in _WIKITEXT:
        yield from _articles(line for _, line in sources.lines(wikitext(corpus, split, "raw")))
    elif corpus == "imdb":
        first, last = _IMDB_SPLITS[split]
        for line, record in sources.jsonl(unlabelled_reviews(), {"text": str}):
            if first < line <= last:
                yield record["text"]
    elif corpus == "python":
        for path in python_files(split):
            yield path.read_text(encoding="utf-8", errors="replace")
    else:
        raise ValueError(f"corpus must be one of {', '.join(NAMES)}, but got {corpus!r}.")


def identity(corpus: str, split: Split) -> list[Any]:
    """Of all files a split of a corpus is read from, for the keys of caches."""
    if corpus in _WIKITEXT:
        return [corpus, sources.identity(wikitext(corpus, split, "raw"))]
    if corpus == "imdb":
        return [corpus, sources.identity(unlabelled_reviews())]
    if corpus == "python":
        digest = hashlib.sha256(repr([sources.identity(p) for p in python_files(split)]).encode())
        return [corpus, digest.hexdigest()]
    raise ValueError(f"corpus must be one of {', '.join(NAMES)}, but got {corpus!r}.")


def wikitext(corpus: str, split: Split, kind: str) -> Path:
    """The file of WikiText-2 or -103, `tokens` (rare words are <unk>) or `raw` (they are not)."""
    folder = _WIKITEXT[corpus]
    return sources.find(
        f"{folder}/wiki.{split}.{kind}",
        f"{folder}-raw/wiki.{split}.{kind}",
        advice=f"Unpack {folder}-v1.zip and {folder}-raw-v1.zip into {folder}, or call "
        f"cosformer.tasks.fetch({corpus!r}).",
    )


def unlabelled_reviews() -> Path:
    return sources.find("imdb/unsup.jsonl", advice='Call cosformer.tasks.fetch("imdb").')


def python_files(split: Split) -> list[Path]:
    """Of the running interpreter's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_THE_LIBRARY]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    chosen = [p for p in sorted(found) if _python_split(p.relative_to(root).as_posix()) == split]
    if not chosen:
        raise DataError(
            f"{root} holds no source of Python's standard library: this interpreter came without it. Use one "
            "that has it, or another corpus."
        )
    return chosen


def _python_split(name: str) -> Split:
    number = hashlib.sha256(name.encode()).digest()[0] % 20
    return "valid" if number == 0 else "test" if number == 1 else "train"


def _articles(lines: Iterator[str]) -> Iterator[str]:
    """An article begins with its title, ` = Title = `, alone between two empty lines; sections have more
    signs, and some tables lines of the same form."""
    article: list[str] = []
    before, line = "", next(lines, None)
    while line is not None:
        after = next(lines, None)
        alone = not before.strip() and not (after or "").strip()
        title = line.startswith(" = ") and line.endswith(" = ") and not line.startswith(" = = ")
        if alone and title and article:
            yield "\n".join(article).rstrip()
            article = []
        if line.strip() or article:
            article.append(line.strip())
        before, line = line, after
    if article:
        yield "\n".join(article).rstrip()
