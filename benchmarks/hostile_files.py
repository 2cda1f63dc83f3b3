"""Spoilt files against all that reads files: models, tokenizers, caches, runs, data, records, recipes."""

import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from benchmarks.mutations import CODE, spoil
from benchmarks.sandbox import Refused
from cosformer.cli import main
from cosformer.models import CosformerCache, CosformerConfig, CosformerForCausalLM, byte_tokenizer

TINY = ["steps=2", "save_every=1", "save_total_limit=9", "model.hidden_size=16",
        "task_settings.train_rows=32", "task_settings.valid_rows=8", "task_settings.test_rows=8"]  # fmt: skip
TRAIN = ["train", "mqar", "--scale", "tiny", *TINY, "--folder", "run", "--results", "results.jsonl"]
TEXTS = [
    "generate", "model", "--prompts", "texts/prompts.jsonl", "--out", "texts/out.jsonl", "--tokens", "3",
]  # fmt: skip
RECIPE = """from cosformer.training.recipes import build as other

def build(scale="small", attention="cosformer", **overrides):
    return other("mqar", scale="tiny", attention=attention, **overrides)
"""


@dataclass(frozen=True)
class Reader:
    """What is spoilt (a folder of the pristine files, and which of them), and who reads it then."""

    folder: str
    files: tuple[str, ...]
    read: Callable[[random.Random], Any]
    sealed: bool = False  # checksums are rewritten afterwards, as an attacker would


def _command(*lines: list[str]) -> Callable[[random.Random], Any]:
    return lambda rng: main(rng.choice(lines))


def _cache(rng: random.Random) -> None:
    config = CosformerConfig.from_pretrained("model")
    try:
        CosformerCache.load("cache/cache.safetensors", config)
    except (ValueError, OSError) as error:
        if "\n" in str(error):
            raise
        raise Refused(f"cosformer: {error}") from None


def _texts(rng: random.Random) -> int:
    code = main(TEXTS)
    return 0 if code == 1 else code  # lines that could not be used are named, and the others are there


READERS = {
    "model": Reader("model", ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                              "tokenizer_config.json"),
                    _command(["generate", "model", "--prompt", "a", "--tokens", "2"],
                             [*TRAIN[:-4], "initial=model", "--folder", "new"])),
    "cache": Reader("cache", ("cache.safetensors",), _cache),
    "run": Reader("run", ("*.json", "*.jsonl", "checkpoint-2/*", "checkpoint-1/*"),
                  _command(["eval", "run"], ["generate", "run", "--prompt", "a"], TRAIN,
                           ["eval", "run/checkpoint-2"])),
    "sealed run": Reader("run", ("checkpoint-2/*", "checkpoint-1/*"),
                         _command(["eval", "run"], ["generate", "run", "--prompt", "a"], TRAIN,
                                  ["eval", "run/checkpoint-2"]), sealed=True),
    "data": Reader("data", ("*/*", "*/*/*"),
                   _command(["data", "image", "official=false"], ["data", "sst2", "official=false"],
                            ["data", "text", "official=false"], ["data", "enwik8", "official=false"])),
    "data cache": Reader("cached", ("*/*/*",),
                         _command(["data", "image", "official=false"], ["data", "sst2", "official=false"])),
    "records": Reader("records", ("*",), _command(
        ["report", "--results", "records", "--benchmarks", "records"])),
    "texts": Reader("texts", ("prompts.jsonl", "out.jsonl"), _texts),
    "recipe": Reader("recipe", ("mine.py",), _command(["train", "recipe/mine.py", *TINY, "--folder", "new"])),
}  # fmt: skip


def prepare(base: Path, checkout: Path) -> None:
    """Whole files of every kind, made once."""
    base.mkdir(parents=True)
    before = Path.cwd()
    os.environ |= {"COSFORMER_DATA": str(base / "data"), "COSFORMER_CACHE": str(base / "cached")}
    os.environ |= {"COSFORMER_WORKERS": "1"}
    torch.manual_seed(0)
    config = CosformerConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, position="rotary")
    model = CosformerForCausalLM(config).eval()
    model.save_pretrained(base / "model")
    byte_tokenizer().save_pretrained(base / "model")
    (base / "model" / "evil.py").write_text(CODE)
    (base / "cache").mkdir()
    model(torch.zeros(2, 5, dtype=torch.int64), use_cache=True).past_key_values.save(
        base / "cache/cache.safetensors"
    )
    _data(base / "data")
    (base / "texts").mkdir()
    (base / "texts" / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "id": 7}\n')
    (base / "recipe").mkdir()
    (base / "recipe" / "mine.py").write_text(RECIPE)
    (base / "records").mkdir()
    for record in ("results/mqar.jsonl", "benchmarks/reports/operator-cpu-20261115.json"):
        lines = (checkout / record).read_text().splitlines(keepends=True)
        (base / "records" / Path(record).name).write_text(
            "".join(lines[:3] if record.endswith("l") else lines)
        )
    os.chdir(base)
    try:
        for words in (TRAIN, TEXTS, ["data", "image", "official=false"], ["data", "sst2", "official=false"]):
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
                code = main(words)
            if code:
                raise RuntimeError(
                    f"{' '.join(words)} failed, though nothing was spoilt yet: {said.getvalue()}"
                )
        (base / "run" / "record.json").unlink()
    finally:
        os.chdir(before)


def _data(root: Path) -> None:
    for name in ("cifar10", "glue/SST-2", "imdb", "enwik8"):
        (root / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in (*(f"gray_train{i}" for i in range(1, 6)), "gray_test"):
        picture = rng.integers(0, 256, (64, 64), dtype=np.uint8)
        PIL.Image.fromarray(picture).save(root / "cifar10" / f"{name}.png")
    labels = {"y_train": [i % 10 for i in range(20)], "y_test": [0, 1, 2, 3]}
    (root / "cifar10" / "labels.json").write_text(json.dumps(labels))
    for name in ("train.tsv", "dev.tsv"):
        rows = "".join(f"a good film number {i}\t{i % 2}\n" for i in range(20))
        (root / "glue" / "SST-2" / name).write_text("sentence\tlabel\n" + rows)
    reviews = [
        {"split": s, "label": i % 2, "text": f"text {i}"} for s in ("train", "test") for i in range(20)
    ]
    (root / "imdb" / "labeled.jsonl").write_text("".join(json.dumps(r) + "\n" for r in reviews))
    (root / "enwik8" / "enwik8").write_text("some text. " * 1000)


def _seal(manifest: Path) -> None:
    """Sizes and checksums of whatever lies beside a manifest now."""
    beside = [p for p in sorted(manifest.parent.iterdir()) if p.is_file() and p != manifest]
    entries = {
        p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in beside
    }
    if manifest.is_file() and not manifest.is_symlink():
        manifest.write_text(json.dumps({"files": entries}))


def case(base: Path, folder: Path, rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """A case in words, and the function that runs it in the folder it was made in."""
    name = rng.choice(sorted(READERS))
    reader = READERS[name]
    for part in {reader.folder, "model", "cached", "data"}:
        shutil.copytree(base / part, folder / part, symlinks=True, copy_function=shutil.copy2)
    found = sorted(
        {p for pattern in reader.files for p in (folder / reader.folder).glob(pattern) if p.is_file()}
    )
    spoilt = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(found)
        if (path.is_file() and path.suffix != ".py") or (name == "recipe" and path.is_file()):
            try:
                spoilt.append(f"{path.relative_to(folder)}: {spoil(path, rng)}")
            except (ValueError, RecursionError, OSError):  # it was spoilt before, and is no JSON any more
                continue
    if reader.sealed:
        for manifest in (folder / reader.folder).glob("*/manifest.json"):
            _seal(manifest)
    seed = rng.random()

    def run() -> Any:
        os.environ |= {"COSFORMER_DATA": str(folder / "data"), "COSFORMER_CACHE": str(folder / "cached")}
        return reader.read(random.Random(seed))

    return f"{name}: {'; '.join(spoilt)}", run
