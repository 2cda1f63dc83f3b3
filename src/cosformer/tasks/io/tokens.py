"""Tokens of a text: its bytes, or byte-pair encoding learned from a corpus."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.checks import positive_int
from cosformer.tasks.base import Task
from cosformer.tasks.io import cache, corpora

KINDS = ("bytes", "bpe")


class Vocabulary(ABC):
    """Numbers for texts; the special tokens are those of `cosformer.models.byte_tokenizer` and `train_bpe`.

    Attributes:
        vocab_size: how many there are, rounded up to a multiple of 8.
        ordinary: the first number of a token that is text, and the number behind the last.
        tokenizer: the same numbers as transformers has them.
    """

    vocab_size: int
    ordinary: tuple[int, int]
    pad: int
    bos: int
    eos: int
    sep: int
    mask: int
    tokenizer: Any

    @abstractmethod
    def encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """The tokens of each text, without special ones."""

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of tokens; special ones are left out."""


class Bytes(Vocabulary):
    """Token b is byte b of the UTF-8 text."""

    vocab_size = 264
    ordinary = (0, 256)
    pad, bos, eos, sep, mask = 256, 257, 258, 259, 261

    @property
    def tokenizer(self) -> Any:
        from cosformer.models import byte_tokenizer

        return byte_tokenizer()

    def encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        return (list(text.encode()) for text in texts)

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class Bpe(Vocabulary):
    """Byte-pair encoding, learned from the training split of a corpus."""

    def __init__(self, tokenizer: Any):
        from cosformer.models import token_fields

        self.tokenizer = tokenizer
        self.vocab_size = token_fields(tokenizer)["vocab_size"]
        self.pad, self.bos, self.eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
        self.sep, self.mask = tokenizer.sep_token_id, tokenizer.mask_token_id
        self.ordinary = (len(tokenizer.all_special_ids), len(tokenizer))

    def encode(self, texts: Iterable[str]) -> Iterator[list[int]]:
        texts = iter(texts)
        while some := list(islice(texts, 512)):
            # The tokenizers library itself: transformers' wrapper would build masks and type ids that are not
            # used.
            yield from (e.ids for e in self.tokenizer.backend_tokenizer.encode_batch_fast(some))

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def word_starts(self) -> Tensor:
        """[vocab_size], 1 for tokens that begin with a space: the first of each word, where texts are words
        with one space before each; and for <eos>, which stands for the end of a line."""
        starts = torch.zeros(self.vocab_size, dtype=torch.int64)
        starts[[i for token, i in self.tokenizer.get_vocab().items() if token.startswith("Ġ")]] = 1
        starts[self.eos] = 1
        return starts


class Tokenised(Task):
    """A task over the tokens of a vocabulary."""

    @property
    @abstractmethod
    def _vocabulary(self) -> Vocabulary: ...

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def pad_token_id(self) -> int:
        return self._vocabulary.pad


def checked(kind: str, size: int) -> None:
    """Raises where there is no such vocabulary."""
    if kind not in KINDS:
        raise ValueError(f"tokens must be one of {', '.join(KINDS)}, but got {kind!r}.")
    positive_int("bpe_size", size)


def vocabulary(kind: str, size: int, corpus: str) -> Vocabulary:
    """Bytes, or byte-pair encoding with this number of tokens, learned from a corpus once and then cached."""
    checked(kind, size)
    if kind == "bytes":
        return Bytes()
    key = {"version": 1, "size": size, "corpus": corpora.identity(corpus, "train")}
    return _loaded(cache.entry("bpe", key, functools.partial(_learn, size, corpus)))


def identity(kind: str, size: int, corpus: str) -> list[Any]:
    """What a vocabulary depends on, for the keys of caches."""
    return [kind] if kind == "bytes" else [kind, size, corpora.identity(corpus, "train")]


def _learn(size: int, corpus: str, folder: Path) -> None:
    from cosformer.models import train_bpe

    train_bpe(corpora.documents(corpus, "train"), size).save_pretrained(folder)


@functools.lru_cache(maxsize=4)
def _loaded(folder: Path) -> Bpe:
    from cosformer.models import loading

    return Bpe(loading.load_tokenizer(folder))
