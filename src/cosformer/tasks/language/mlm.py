"""Masked language modelling: pretraining, as in RoBERTa (Liu et al., 2019, arXiv:1907.11692)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from cosformer.ops.checks import positive_int
from cosformer.tasks.base import Row, Split, checked_split, stacked
from cosformer.tasks.io import cache, corpora
from cosformer.tasks.io.ragged import Ragged, RaggedWriter
from cosformer.tasks.io.tokens import KINDS, Tokenised, Vocabulary, vocabulary
from cosformer.tasks.io.tokens import identity as tokens_identity
from cosformer.tasks.language.masking import MaskedRows
from cosformer.tasks.metrics import MaskedPerplexity
from cosformer.tasks.registry import register

_DOCUMENTS = ("apart", "joined")


@register("mlm")
@dataclass(frozen=True)
class MaskedLM(Tokenised):
    """The hidden tokens of whole documents that are packed to rows of one length.

        input_ids     <bos> a b # d <eos> <bos> f x h <eos> <pad>
        labels          .   . . c .   .     .   . g .   .     .
        position_ids    0   1 2 3 4   5     0   1 2 3   4     0

    where . is -100, # is <mask> and x another token.

    Provenance: the texts of a corpus: wikitext2 (raw, 600 / 60 / 60 articles), wikitext103 (28,475 / 60 /
    60), imdb (its unlabelled reviews, 45,000 / 2,500 / 2,500) or python (the standard library's source; files
    90 / 5 / 5 %). Which tokens are hidden is sampled in each epoch of train, and is fixed in valid and
    test.

    Args:
        corpus: wikitext2, wikitext103, imdb or python.
        length: tokens of a row.
        tokens: "bytes", or "bpe": byte-pair encoding, learned from the corpus.
        bpe_size: its tokens.
        probability: that a token is to be found again; 80 % of those are <mask>, 10 % another token.
        documents: "apart": no document of a row sees another, told by position_ids; "joined": they all do,
            for attentions that cannot keep them apart, with an attention_mask for the padding.
        seed: of the masks.
    """

    corpus: str = "wikitext2"
    length: int = 512
    tokens: str = "bytes"
    bpe_size: int = 16_384
    probability: float = 0.15
    documents: str = "apart"
    seed: int = 0

    title = "Masked language model"
    head = "masked_lm"
    metric = MaskedPerplexity()
    num_labels = None

    def __post_init__(self) -> None:
        if positive_int("length", self.length) < 8:
            raise ValueError(f"length must be at least 8, but got {self.length}.")
        positive_int("bpe_size", self.bpe_size)
        if not 0 < self.probability < 1:
            raise ValueError(f"probability must be between 0 and 1, but got {self.probability}.")
        choices = {"corpus": corpora.NAMES, "tokens": KINDS, "documents": _DOCUMENTS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, but got {getattr(self, name)!r}."
                )

    @property
    def _vocabulary(self) -> Vocabulary:
        return vocabulary(self.tokens, self.bpe_size, self.corpus)

    @property
    def tokenizer(self) -> Any:
        return self._vocabulary.tokenizer

    def dataset(self, split: Split) -> MaskedRows:
        key = {
            "version": 1,
            "split": checked_split(split),
            "corpus": corpora.identity(self.corpus, split),
            "tokens": tokens_identity(self.tokens, self.bpe_size, self.corpus),
        }
        folder = cache.entry("mlm", key, partial(_encode, self.corpus, split, self._vocabulary))
        documents, seed = Ragged(folder, "documents"), self.seed
        return MaskedRows(
            documents, self._vocabulary, self.length, self.probability, seed, fixed=split != "train"
        )

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = stacked(rows)
        if self.documents == "joined":
            del batch["position_ids"]
            batch["attention_mask"] = (batch["input_ids"] != self.pad_token_id).long()
        return batch

    def example(self) -> str:
        row = {name: column[:24].tolist() for name, column in self.dataset("valid")[0].items()}
        words = self._vocabulary
        special = {words.mask: "#", words.bos: "<bos>", words.eos: "<eos>", -100: "."}
        return "\n".join(
            f"{name:>12}  "
            + " ".join(
                str(t) if name == "position_ids" else special.get(t) or repr(words.decode([t]))[1:-1]
                for t in column
            )
            for name, column in row.items()
        )


def _encode(corpus: str, split: Split, vocabulary: Vocabulary, folder: Path) -> None:
    with RaggedWriter(folder, "documents", vocabulary.vocab_size) as writer:
        for ids in vocabulary.encode(corpora.documents(corpus, split)):
            writer.add([vocabulary.bos, *ids, vocabulary.eos])
