"""Attention maps as PNG, written by hand: one colour, the weight as its opacity, so that a map is light on a
light page and dark on a dark one."""

import base64
import struct
import zlib
from collections.abc import Sequence


def data_address(weights: Sequence[Sequence[float]], colour: str) -> str:
    """A data: address of a picture with a pixel for each weight between 0 and 1; the colour is #rrggbb."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    rows = bytearray()
    for row in weights:
        rows.append(0)  # no filter
        for weight in row:
            rows += bytes((red, green, blue, round(255 * min(max(weight, 0.0), 1.0))))
    head = struct.pack(">IIBBBBB", len(weights[0]), len(weights), 8, 6, 0, 0, 0)  # 8 bits, RGBA
    parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(bytes(rows), 9)), _chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
