"""The embedded text: the source of Python's own standard library. Real, long, on every machine."""

import sysconfig
import zlib
from pathlib import Path

import torch
from torch import Tensor

LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
    "ensurepip",
}
HELD_OUT = 20  # every so many-th file, by its name's checksum, is never trained on
MOST = 12_000_000  # bytes


def corpus() -> tuple[Tensor, Tensor]:
    """Bytes (uint8) to train on, and bytes to judge by, from different files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not LEFT_OUT & set(name.parts):
            held_out = zlib.crc32(name.as_posix().encode()) % HELD_OUT == 0
            parts[held_out].append(path.read_bytes())
    train, valid = (torch.frombuffer(bytearray(b"\n".join(p)[:MOST]), dtype=torch.uint8) for p in parts)
    return train, valid


def windows(text: Tensor, length: int, count: int, draw: torch.Generator) -> Tensor:
    """`count` stretches of the text, [count, length], as token ids of the byte tokenizer."""
    starts = torch.randint(len(text) - length, (count,), generator=draw)
    return torch.stack([text[s : s + length] for s in starts.tolist()]).long()
