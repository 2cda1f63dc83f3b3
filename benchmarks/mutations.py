"""Files spoilt in every way that a disk, a network or a person who means harm may spoil them; drawn from a
generator, so that a case can be made again from its number."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEEP = "[" * 50_000
CODE = "from pathlib import Path\nPath('ran').touch()\nclass Evil: pass\n"
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**30, -(2**63), 1e308, 0.5, float("nan"),
    float("inf"), "", "x",
    "a" * 10_000, "\ud800", "../../etc/passwd", "/dev/zero", "evil.Evil", [], {}, [[]], [None], ["x"] * 100,
    {"": ""}, {"x": {"y": []}}, [1, 2, 3], "float23", "bert", "cosformer", "softmax",
)  # fmt: skip
# Fields by which somebody could hope to lead a loader elsewhere.
TEMPTING: dict[str, Any] = {
    "auto_map": {"AutoTokenizer": ["evil.Evil", None], "AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"},
    "trust_remote_code": True,
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "attn_implementation": "somebody/kernel",
    "_attn_implementation": "somebody/kernel",
    "tokenizer_class": "EvilTokenizer",
    "transformers_weights": "../other.safetensors",
    "configuration_files": ["config.4.0.0.json"],
    "chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "_name_or_path": "somebody/model",
    "base_model_name_or_path": "somebody/model",
    "num_beams": 10**9,
    "num_hidden_layers": 10**9,
    "max_length": 10**18,
}


def spoil(path: Path, rng: random.Random) -> str:
    """Spoils one file; in which way."""
    ways: list[Callable[[Path, random.Random], None]] = [
        _cut,
        _flip,
        _insert,
        _repeat,
        _zero,
        _replace,
        _odd_file,
    ]
    if path.suffix in (".json", ".jsonl"):
        ways += [_node] * 6 + [_field] * 3
    if path.suffix == ".safetensors":
        ways += [_header] * 5
    way = rng.choice(ways)
    way(path, rng)
    return way.__name__.strip("_")


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 30)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _insert(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at] + rng.randbytes(rng.choice((1, 8, 1000))) + data[at:])


def _repeat(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at] + data[rng.randrange(at + 1) :])


def _zero(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) + 1)
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)


def _replace(path: Path, rng: random.Random) -> None:
    texts = (
        "",
        "[]",
        "{}",
        "null",
        "7",
        '"x"',
        DEEP,
        '{"a":' * 20_000,
        "\0" * 100,
        "\udcff",
        "{}\n[]\n",
        "NaN",
    )
    path.write_bytes(rng.choice(texts).encode(errors="surrogateescape"))


def _odd_file(path: Path, rng: random.Random) -> None:
    path.unlink()
    kind = rng.choice(("gone", "folder", "pipe", "endless", "dangling", "itself"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "gone":
        path.symlink_to({"endless": "/dev/zero", "dangling": "/nowhere/at/all", "itself": path.name}[kind])


def _node(path: Path, rng: random.Random) -> None:
    """Puts something odd in the place of a random part of a JSON text, or takes the part out."""
    lines = path.read_text().splitlines() or [""] if path.suffix == ".jsonl" else [path.read_text()]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(_changed(json.loads(lines[at]), rng))
    path.write_text("\n".join(lines) + "\n")


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def _field(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines() or [""] if path.suffix == ".jsonl" else [path.read_text()]
    found = json.loads(lines[-1])
    if isinstance(found, dict):
        name = rng.choice([*TEMPTING, "unknown"])
        lines[-1] = json.dumps(found | {name: TEMPTING.get(name, rng.choice(ODD))})
    path.write_text("\n".join(lines) + "\n")


def _header(path: Path, rng: random.Random) -> None:
    """Changes the JSON header of a safetensors file, and its length with it, or without."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    text = json.dumps(_changed(header, rng)).encode(errors="replace")
    stated = rng.choice((len(text), len(text), len(text), 0, 2**62, size))
    path.write_bytes(stated.to_bytes(8, "little") + text + data[8 + size :])
