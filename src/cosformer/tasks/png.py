"""Grey PNG files of 8 bits, read and written with zlib and numpy alone (ISO/IEC 15948)."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.tasks.sources import bad

Picture = np.ndarray[Any, np.dtype[np.uint8]]

MOST = 1 << 26  # pixels of a picture; a sheet of CIFAR-10 has 10,240,000
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY = (8, 0, 0, 0, 0)  # bits, colour type, compression, filter, interlace


def read(path: Path) -> Picture:
    """The picture [height, width], of at most `MOST` pixels: nothing is unpacked beyond what the header says,
    nor before it is known to be possible."""
    if path.stat().st_size > 2 * MOST:
        raise bad(path, None, f"no PNG of a data set has {path.stat().st_size:,} bytes")
    data = path.read_bytes()
    if not data.startswith(_SIGNATURE):
        raise bad(path, None, "no PNG file")
    at, packed, header, finished = len(_SIGNATURE), [], None, False
    while at + 12 <= len(data) and not finished:
        (size,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        check = data[at + 8 + size : at + 12 + size]
        if len(check) < 4 or zlib.crc32(kind + content) != int.from_bytes(check):
            raise bad(path, None, f"the PNG file is cut off or damaged at byte {at:,}")
        if kind == b"IHDR":
            if len(content) != 13:
                raise bad(path, None, f"the PNG's header has {len(content)} bytes instead of 13")
            header = struct.unpack(">IIBBBBB", content)
        elif kind == b"IDAT":
            packed.append(content)
        finished = kind == b"IEND"
        at += 12 + size
    if header is None or not finished:
        raise bad(path, None, f"the PNG file is cut off at byte {len(data):,}")
    width, height = header[:2]
    if header[2:] != _GREY:
        raise bad(path, None, "the PNG must be grey, of 8 bits, not interlaced")
    if not 0 < width * height <= MOST:
        raise bad(path, None, f"a PNG of {width:,} x {height:,} pixels is none of a data set")
    try:
        raw = zlib.decompressobj().decompress(b"".join(packed), height * (width + 1) + 1)
    except zlib.error as error:
        raise bad(path, None, f"the PNG's pixels cannot be unpacked ({error})") from error
    if len(raw) != height * (width + 1):
        raise bad(
            path,
            None,
            f"the PNG should hold {height} rows of {width} pixels, but its data are of another size",
        )
    rows = np.frombuffer(raw, np.uint8).reshape(height, width + 1)
    if rows[:, 0].max(initial=0) > 4:
        raise bad(path, None, "the PNG has a filter that does not exist")
    return _unfiltered(rows[:, 1:], rows[:, 0])


def _unfiltered(x: Picture, kinds: Picture) -> Picture:
    """Adds what each row's filter has taken away: a guess from the pixels left, above, and left above.

    All of these lie on earlier diagonals, so that whole diagonals are done at once. Line d of `skewed` is
    diagonal d: the pixel of row i and column d - i stands at i + 1.
    """
    height, width = x.shape
    row, column = np.arange(height)[:, None], np.arange(width)
    skewed = np.zeros((height + width + 1, height + 1), np.uint8)
    skewed[row + column + 2, row + 1] = x
    masks = [kinds == kind for kind in range(5)]
    for d in range(2, height + width + 1):
        # Outside the picture pixels are 0, so that only the diagonal's own rows may be written.
        own = slice(max(0, d - 1 - width), min(height, d - 1))
        left, above, corner = (
            line.astype(np.int16)
            for line in (skewed[d - 1, 1:][own], skewed[d - 1, :-1][own], skewed[d - 2, :-1][own])
        )
        guess = left + above - corner
        a, b, c = abs(guess - left), abs(guess - above), abs(guess - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, above, corner))
        added = np.select([m[own] for m in masks], [0 * left, left, above, (left + above) // 2, paeth])
        skewed[d, 1:][own] += added.astype(np.uint8)
    return skewed[row + column + 2, row + 1]


def write(path: Path, picture: Picture) -> None:
    """Writes a picture [height, width]."""
    height, width = picture.shape
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = picture
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, *_GREY),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts.items()
    ]
    path.write_bytes(_SIGNATURE + b"".join(chunks))
