"""ListOps of the Long Range Arena (Nangia and Bowman, 2018; Tay et al., 2020, arXiv:2011.04006)."""

import hashlib
import itertools
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cosformer.ops.checks import positive_int
from cosformer.tasks.base import SPLITS, Split, Task, checked_split
from cosformer.tasks.io import cache, sources, workers
from cosformer.tasks.io.ragged import LabelledRows, Ragged, RaggedWriter, load_numbers, save_numbers
from cosformer.tasks.lra.listops_trees import CLOSE, SYMBOLS, Grammar, Trees, grow
from cosformer.tasks.metrics import Accuracy
from cosformer.tasks.registry import register
from cosformer.tasks.synthetic.tables import sizes

_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS) if symbol}
_VALUES = {str(digit): digit for digit in range(10)}
_GROWN_AT_ONCE = 4096
_ADVICE = "Take the folder lra_release/listops-1000 of the Long Range Arena's release, or leave `files` out."


@register("listops")
@dataclass(frozen=True)
class ListOps(Task):
    """The value of nested operations on digits, one of ten classes.

        input_ids   [MAX 4 [MIN 2 3 ] 0 [MED 1 5 8 9 ] ]
        labels      6

    Provenance: generated from a seed by the grammar and the limits of the published generator (96,000 / 2,000
    / 2,000 distinct trees of 501 to 1,999 tokens, depth up to 10, 2 to 10 arguments), on all cores, with the
    same result on any number of them, and cached. Or, with `files`, the original basic_{train,val,test}.tsv,
    whose redundant parentheses are left out. Brackets are tokens: 15 symbols, and padding.

    Args:
        min_length, max_length: a tree is kept if min_length < tokens < max_length.
        max_depth: of a digit; the root has depth 1.
        max_args: the most arguments of an operator.
        train_rows, valid_rows, test_rows: sizes of the splits; files have to have as many rows.
        seed: of the generator.
        files: folder of the original TSVs under COSFORMER_DATA (such as "listops-1000"); None: generate.
    """

    min_length: int = 500
    max_length: int = 2000
    max_depth: int = 10
    max_args: int = 10
    train_rows: int = 96_000
    valid_rows: int = 2_000
    test_rows: int = 2_000
    seed: int = 0
    files: str | None = None

    title = "ListOps"
    head = "classification"
    metric = Accuracy()
    vocab_size = len(SYMBOLS)
    num_labels = 10
    pad_token_id = 0

    def __post_init__(self) -> None:
        for name in ("min_length", "max_length", "max_depth", "max_args"):
            positive_int(name, getattr(self, name))
        if self.max_args < 2 or self.max_length <= self.min_length + 1:
            raise ValueError(
                f"max_args must be at least 2 and max_length beyond min_length + 1, but got max_args "
                f"{self.max_args}, min_length {self.min_length} and max_length {self.max_length}."
            )

    @property
    def length(self) -> int:
        return self.max_length

    def dataset(self, split: Split) -> LabelledRows:
        checked_split(split)
        if self.files is None:
            counts = {s: sizes(self, s) for s in SPLITS}
            key = {"version": 1, "seed": self.seed, "counts": counts, "grammar": asdict(self._grammar)}
            folder = cache.entry("listops", key, partial(_generate, self.seed, counts, self._grammar))
        else:
            file = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}[split]
            path = sources.find(f"{self.files}/{file}", advice=_ADVICE)
            key = {"version": 1, "file": sources.identity(path), "longest": self.max_length}
            folder = cache.entry("listops-tsv", key, partial(_convert, path, split, self.max_length))
            found, expected = len(load_numbers(folder, f"{split}.labels")), sizes(self, split)
            if found != expected:
                raise sources.DataError(
                    f"{path}: {found:,} rows, but {split}_rows is {expected:,}, by default the official "
                    f"number; fetch the file again, or set {split}_rows."
                )
        return LabelledRows(
            {"input_ids": Ragged(folder, split)}, load_numbers(folder, f"{split}.labels"), self.length
        )

    @property
    def _grammar(self) -> Grammar:
        return Grammar(self.min_length, self.max_length, self.max_depth, self.max_args)

    def example(self) -> str:
        texts = _distinct(iter([grow(np.random.default_rng(self.seed), 1000, Grammar(10, 22))]))
        tokens, value = next((t, v) for t, v in texts if t.count(CLOSE) > 1)
        return f"input_ids  {' '.join(SYMBOLS[t] for t in tokens)}\n   labels  {value}"


def _generate(seed: int, counts: dict[Split, int], grammar: Grammar, folder: Path) -> None:
    """Distinct trees in the order of the jobs that grew them, dealt out to the splits one after another."""
    rows = _distinct(workers.ordered(partial(_block, seed, grammar), itertools.count()))
    for split, count in counts.items():
        labels = []
        with RaggedWriter(folder, split, len(SYMBOLS)) as writer:
            for tokens, value in itertools.islice(rows, count):
                writer.add(tokens)
                labels.append(value)
        save_numbers(folder, f"{split}.labels", labels, np.uint8)
    rows.close()


def _block(seed: int, grammar: Grammar, job: int) -> Trees:
    return grow(np.random.default_rng([seed, job]), _GROWN_AT_ONCE, grammar)


def _distinct(blocks: Iterator[Trees]) -> Generator[tuple[bytes, int], None, None]:
    seen = set()
    for trees in blocks:
        data, end = trees.tokens.tobytes(), 0
        for length, value in zip(trees.lengths.tolist(), trees.values.tolist(), strict=True):
            tokens = data[end : end + length]
            end += length
            digest = hashlib.blake2b(tokens, digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                yield tokens, value


def _convert(path: Path, split: Split, longest: int, folder: Path) -> None:
    """An original TSV: the expression with a pair of parentheses around each step of its construction."""
    labels = []
    with RaggedWriter(folder, split, len(SYMBOLS)) as writer:
        for line, (source, target) in sources.tsv(path, ("Source", "Target")):
            try:
                row = [_NUMBERS[symbol] for symbol in source.split() if symbol not in ("(", ")")]
            except KeyError as error:
                raise sources.bad(path, line, f"{error} is no symbol of ListOps") from error
            if len(row) > longest:
                raise sources.bad(path, line, f"{len(row)} symbols, and max_length is {longest}")
            writer.add(row)
            labels.append(sources.label(path, line, target, _VALUES))
    save_numbers(folder, f"{split}.labels", labels, np.uint8)
