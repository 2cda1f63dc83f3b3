"""WikiText-2 and WikiText-103 (Merity et al., 2016, arXiv:1609.07843)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from cosformer.ops.checks import flag, positive_int
from cosformer.tasks.base import SPLITS, Row, Split, Task, checked_split
from cosformer.tasks.io import cache, corpora, sources
from cosformer.tasks.io.tokens import Bpe, vocabulary
from cosformer.tasks.language.windows import Stream, Windows, collate_windows
from cosformer.tasks.metrics import WordPerplexity
from cosformer.tasks.registry import register

_EOS = "<eos>"
_KINDS = ("words", "bpe")


@dataclass(frozen=True)
class WikiText(Task):
    """The next word of Wikipedia's good articles, or the next piece of a word; perplexity is per word.

    A word is what stands between spaces, and so is the end of each line, <eos>. With tokens="words" the text
    is that of the `tokens` files, where rare words are <unk>: the standard vocabulary, in descending order of
    frequency. With tokens="bpe" it is that of the `raw` files, every word written with one space before it;
    the perplexity is exp(nats / words), with the same number of words, so that it can be compared with others
    of open vocabulary.

    Args:
        length: tokens of a window.
        overlap: tokens that a window of valid and test shares with the one before, and does not predict.
        tokens: "words" or "bpe".
        bpe_size: tokens that byte-pair encoding has, learned from the training text.
        official: whether the files must have the official counts.
    """

    length: int = 512
    overlap: int = 1
    tokens: str = "words"
    bpe_size: int = 16_384
    official: bool = True

    head = "causal_lm"
    num_labels = None
    pad_token_id = None
    official_words: ClassVar[dict[Split, int]]
    official_vocabulary: ClassVar[int]

    def __post_init__(self) -> None:
        positive_int("length", self.length)
        positive_int("bpe_size", self.bpe_size)
        flag("official", self.official)
        Windows(np.empty(0), 0, self.length, self.overlap)
        if self.tokens not in _KINDS:
            raise ValueError(f"tokens must be one of {', '.join(_KINDS)}, but got {self.tokens!r}.")

    @cached_property
    def _words(self) -> list[str]:
        return (_folder(self) / "vocabulary.txt").read_text(encoding="utf-8").split("\n")

    @property
    def _bpe(self) -> Bpe:
        found = vocabulary("bpe", self.bpe_size, self.name)
        assert isinstance(found, Bpe)
        return found

    @property
    def tokenizer(self) -> Any:
        """Of pieces alone: words are numbered by the task itself."""
        return self._bpe.tokenizer if self.tokens == "bpe" else None

    @property
    def vocab_size(self) -> int:
        """Of words: as many as there are, not rounded."""
        return len(self._words) if self.tokens == "words" else self._bpe.vocab_size

    @property
    def metric(self) -> WordPerplexity:
        return WordPerplexity(None if self.tokens == "words" else self._bpe.word_starts())

    def dataset(self, split: Split) -> Windows:
        checked_split(split)
        (path,) = _folder(self).glob(f"{split}.*")
        stream: Stream = sources.mapped(path, np.dtype(path.suffix[1:]), path)
        start = self._words.index(_EOS) if self.tokens == "words" else self._bpe.eos
        return Windows(stream, start, self.length, 1 if split == "train" else self.overlap)

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return collate_windows(rows, self.length)

    def example(self) -> str:
        ids = self.dataset("valid")[0]["input_ids"][1:17].tolist()
        text = (
            [self._words[i] for i in ids] if self.tokens == "words" else [self._bpe.decode([i]) for i in ids]
        )
        return f"     text  {'|'.join(text)}\ninput_ids  {' '.join(map(str, ids))}\n   labels  the same"


@register("wikitext2")
@dataclass(frozen=True)
class WikiText2(WikiText):
    """WikiText-2: 720 articles.

        text        <eos> = Robert <unk> = <eos> <eos> Robert <unk> is an English film ...

    Provenance: `wikitext-2/wiki.{train,valid,test}.{tokens,raw}` (or .xz, .gz). 36,718 / 3,760 / 4,358 lines,
    2,088,628 / 217,646 / 245,569 words with <eos>, vocabulary 33,278. Licence: CC BY-SA.
    """

    title = "WikiText-2"
    official_words: ClassVar = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    official_vocabulary: ClassVar = 33_278


@register("wikitext103")
@dataclass(frozen=True)
class WikiText103(WikiText):
    """WikiText-103: 28,595 articles.

        text        <eos> = Robert <unk> = <eos> <eos> Robert <unk> is an English film ...

    Provenance: `wikitext-103/wiki.{train,valid,test}.{tokens,raw}` (or .xz, .gz). 1,801,350 / 3,760 / 4,358
    lines, 103,227,021 / 217,646 / 245,569 words with <eos>, vocabulary 267,735. Licence: CC BY-SA.
    """

    title = "WikiText-103"
    official_words: ClassVar = {"train": 103_227_021, "valid": 217_646, "test": 245_569}
    official_vocabulary: ClassVar = 267_735


def _folder(task: WikiText) -> Path:
    """The streams of all splits, and the vocabulary of words."""
    kind = "tokens" if task.tokens == "words" else "raw"
    paths = {split: corpora.wikitext(task.name, split, kind) for split in SPLITS}
    key = {
        "version": 1,
        "tokens": task.tokens,
        "size": None if task.tokens == "words" else task.bpe_size,
        "official": task.official,
        "files": [sources.identity(path) for path in paths.values()],
    }
    return cache.entry(task.name, key, partial(_build, task, paths))


def _build(task: WikiText, paths: dict[Split, Path], folder: Path) -> None:
    if task.tokens == "words":
        counts = Counter(word for words in _lines(paths["train"]) for word in words)
        known = [word for word, _ in counts.most_common()]
        expected = (task.official_vocabulary,) if task.official else ()
        sources.counted(paths["train"], len(known), expected, "distinct words")
        (folder / "vocabulary.txt").write_text("\n".join(known), encoding="utf-8")
        encode, size = partial(_numbers, {word: number for number, word in enumerate(known)}), len(known)
    else:
        encode, size = partial(_pieces, task._bpe), task._bpe.vocab_size
    dtype = np.min_scalar_type(size)
    for split, path in paths.items():
        total = 0

        def words(path: Path = path) -> Iterator[list[str]]:
            nonlocal total
            for line in _lines(path):
                total += len(line)
                yield line

        with (folder / f"{split}.{dtype.name}").open("wb") as out:
            for ids in encode(words()):
                out.write(np.array(ids, dtype).tobytes())  # tofile says nothing of a full disk
        expected = (task.official_words[split],) if task.official else ()
        sources.counted(path, total, expected, "words with <eos>")


def _lines(path: Path) -> Iterator[list[str]]:
    for _, line in sources.lines(path):
        yield [*line.split(), _EOS]


def _numbers(numbers: dict[str, int], lines: Iterator[list[str]]) -> Iterator[list[int]]:
    """A word that the training text has not is <unk>; the official files say so themselves."""
    unknown = numbers.get("<unk>", numbers[_EOS])
    return ([numbers.get(word, unknown) for word in line] for line in lines)


def _pieces(bpe: Bpe, lines: Iterator[list[str]]) -> Iterator[list[int]]:
    for ids in bpe.encode("".join(f" {word}" for word in line[:-1]) for line in lines):
        yield [*ids, bpe.eos]
