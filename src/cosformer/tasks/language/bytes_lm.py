"""Language models over bytes: enwik8, and the source of Python's standard library."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from cosformer.ops.checks import flag, positive_int
from cosformer.tasks.base import Row, Split, Task, checked_split
from cosformer.tasks.io import cache, corpora, sources
from cosformer.tasks.language.windows import Stream, Windows, collate_windows
from cosformer.tasks.metrics import BitsPerCharacter
from cosformer.tasks.registry import register

_NEWLINE = 10


@dataclass(frozen=True)
class ByteStream(Task):
    """The next byte of a text, in windows of a fixed length.

    Args:
        length: bytes of a window.
        overlap: bytes that a window of valid and test shares with the one before, and does not predict.
        held_out: the most bytes of valid and of test, where a whole evaluation would take too long.
    """

    length: int = 1024
    overlap: int = 1
    held_out: int | None = None

    head = "causal_lm"
    metric = BitsPerCharacter()
    vocab_size = 256
    num_labels = None
    pad_token_id = None

    def __post_init__(self) -> None:
        positive_int("length", self.length)
        if self.held_out is not None:
            positive_int("held_out", self.held_out)
        Windows(np.empty(0), 0, self.length, self.overlap)

    @abstractmethod
    def stream(self, split: Split) -> Stream:
        """The bytes of a split, memory-mapped."""

    def dataset(self, split: Split) -> Windows:
        checked_split(split)
        if split == "train":
            return Windows(self.stream(split), _NEWLINE, self.length)
        return Windows(self.stream(split)[: self.held_out], _NEWLINE, self.length, self.overlap)

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return collate_windows(rows, self.length)

    def example(self) -> str:
        row = self.dataset("valid")[0]["input_ids"][1:61].tolist()
        text = bytes(row).decode(errors="replace")
        return f"     text  {text!r}\ninput_ids  {' '.join(map(str, row[:16]))} ...\n   labels  the same"


@register("enwik8")
@dataclass(frozen=True)
class Enwik8(ByteStream):
    """The first 10^8 bytes of Wikipedia of 3 March 2006, byte by byte, in bits per character.

        input_ids   ... [ [ 1 8 6 0 ] ]   t h e   ...

    Provenance: enwik8 of Matt Mahoney's Large Text Compression Benchmark, as `enwik8/enwik8` (or .xz, .gz).
    The usual split: 90,000,000 / 5,000,000 / 5,000,000 bytes, in this order. Licences: CC BY-SA and GFDL.

    Args:
        official: whether the file must have its 10^8 bytes; else it is split 90 / 5 / 5 %.
    """

    official: bool = True

    title = "enwik8"

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("official", self.official)

    def stream(self, split: Split) -> Stream:
        path = sources.find(
            "enwik8/enwik8", advice="Take mattmahoney.net/dc/enwik8.zip and unpack it into a folder enwik8."
        )
        if path.suffix:
            folder = cache.entry(
                "enwik8", {"file": sources.identity(path)}, partial(_unpack, path, self.official)
            )
            whole = sources.mapped(folder / "enwik8", np.uint8, path)
        else:
            whole = sources.mapped(path, np.uint8, path)
        sources.counted(path, len(whole), (10**8,) if self.official else (), "bytes")
        test = valid = len(whole) // 20
        train = len(whole) - valid - test
        return {
            "train": whole[:train],
            "valid": whole[train : train + valid],
            "test": whole[train + valid :],
        }[split]


@register("python")
@dataclass(frozen=True)
class PythonSource(ByteStream):
    """The source of Python's standard library, byte by byte: real and long, on every machine.

        input_ids   d e f   p a r s e ( s e l f , ...

    Provenance: the .py files of the running interpreter, without tests, in the order of their names; so it
    differs from version to version, and a record names the version. A file is in train, valid or test by a
    digest of its name (18 / 1 / 1 of twenty): about 11 / 0.6 / 0.6 million bytes. Licence: PSF.
    """

    title = "Python source"

    def stream(self, split: Split) -> Stream:
        key = {"version": 1, "files": corpora.identity("python", split)}
        folder = cache.entry("python", key, partial(_join, split))
        return np.memmap(folder / "source", np.uint8, "r")


def _unpack(path: Path, official: bool, folder: Path) -> None:
    with (folder / "enwik8").open("wb") as out:
        for piece in sources.pieces(path, limit=10**8 if official else None):
            out.write(piece)


def _join(split: Split, folder: Path) -> None:
    with (folder / "source").open("wb") as out:
        for path in corpora.python_files(split):
            out.write(path.read_bytes())
            out.write(b"\n")
