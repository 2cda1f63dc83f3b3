"""Retrieval of the Long Range Arena (Tay et al., 2020, arXiv:2011.04006)."""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cosformer.ops.checks import flag
from cosformer.tasks.base import Split
from cosformer.tasks.io import cache, sources
from cosformer.tasks.io.ragged import RaggedWriter
from cosformer.tasks.lra.pairs import DocumentPairs, save_pairs
from cosformer.tasks.registry import register

_FILES = {"train": "train", "valid": "eval", "test": "test"}
_COUNTS = {"train": 147_086, "valid": 18_090, "test": 17_437}
_LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}


@register("retrieval")
@dataclass(frozen=True)
class Retrieval(DocumentPairs):
    """Does one paper cite the other? Two texts of up to 4,000 bytes.

        text        We describe a statistical approach to the resolution of ...
        text        This paper presents an unsupervised method for ...
        labels      1

    Provenance: the ACL Anthology Network (Radev et al., 2013), in the Long Range Arena's own TSV files
    `retrieval/new_aan_pairs.{train,eval,test}.tsv` (or .xz, .gz): label, id, id, text, text, without names of
    the columns. 147,086 / 18,090 / 17,437 pairs.

    Args:
        official: whether the files must have the official counts.
    """

    official: bool = True

    title = "Retrieval"

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("official", self.official)

    def folder(self, split: Split) -> Path:
        name = f"new_aan_pairs.{_FILES[split]}.tsv"
        path = sources.find(
            f"retrieval/{name}",
            f"tsv_data/{name}",
            advice="It is in lra_release.gz of the Long Range Arena, in the folder tsv_data. The task "
            "`citations` is a stand-in, on other papers.",
        )
        key = {"version": 1, "file": sources.identity(path), "official": self.official, "split": split}
        return cache.entry("retrieval", key, partial(_build, path, split, self.official))


def _build(path: Path, split: Split, official: bool, folder: Path) -> None:
    """A paper is in many pairs; its text is kept once."""
    known: dict[bytes, int] = {}
    pairs = []
    with RaggedWriter(folder, "documents", 255) as writer:

        def number(text: str) -> int:
            data = text.encode()
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if digest not in known:
                known[digest] = len(known)
                writer.add(data)
            return known[digest]

        for line, (label, _, _, first, second) in sources.tsv(path, 5):
            pairs.append((number(first), number(second), sources.label(path, line, label, _LABELS)))
    sources.counted(path, len(pairs), (_COUNTS[split],) if official else (), "pairs")
    save_pairs(folder, split, pairs)
