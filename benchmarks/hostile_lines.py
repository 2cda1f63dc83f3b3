"""Command lines with mistakes: right ones, changed a word at a time."""

import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosformer.cli import main

TRAIN = ["mqar", "--scale", "tiny", "steps=2", "model.hidden_size=16", "task_settings.train_rows=16",
         "task_settings.valid_rows=8", "task_settings.test_rows=8"]  # fmt: skip
RIGHT = (
    ["info"], ["info", "--json"], ["data", "mqar", "length=64"], ["data"], ["eval", "run", "--split",
    "valid"],
    ["train", *TRAIN, "--folder", "new", "--attention", "softmax", "seed=3"], ["train", *TRAIN,
    "--print_config"],
    ["compare", *TRAIN, "--attentions", "cosformer,relu", "--folder", "both"],
    ["generate", "model", "--prompt", "a", "--tokens", "3", "--temperature", "0.5", "--top_k", "4",
    "--seed", "1"],
    ["generate", "model", "--context", "text.txt", "--tokens", "3", "--device", "cpu", "--dtype", "float32"],
    ["report", "--results", "records", "--benchmarks", "records", "--out", "pages"],
)  # fmt: skip
WORDS = (
    "", " ", "-", "--", "---", "=", "x=", "=x", "--help", "-h", "--fresh", "--version", "--out", "--folder",
    "--tokens", "0", "-1", "1e999", "nan", "inf", "9" * 40, "9" * 5000, "0.5", "true", "null", "[]", "{}",
    "[" * 5000, "\ud800", "ünïcödé", "a" * 10_000, "a\nb", "/", "/dev/null", "/dev/zero", "/proc/self/mem",
    ".",
    "..", "~", "nowhere", "run", "model", "steps=0", "steps=many", "seed=-1", "model=5", "model.attention=x",
    "model.hidden_size=17", "model.x=1", "batch_size=99999999", "workers=9999", "task_settings=[]",
    "attention=softmax", "device=toaster", "precision=fp8", "initial=somebody/model", "initial=/dev/zero",
    "schedule=7", "task_settings.seed=x", "compile_backend=7", "max_grad_norm=x",
    "model.attention_parameters={}", "model.num_hidden_layers=1e9", "model.position=learnt",
    "model.windows=3",
)  # fmt: skip


def case(base: Path, folder: Path, rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """A command line, and the function that runs it."""
    for name in ("run", "model", "records"):
        (folder / name).symlink_to(base / name)
    (folder / "text.txt").write_text("some text")
    words = list(rng.choice(RIGHT))
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(words))
        change = rng.choice(("replace", "replace", "insert", "drop", "twice", "typo", "swap", "case"))
        if change == "replace":
            words[at] = rng.choice(WORDS)
        elif change == "insert":
            words.insert(at + 1, rng.choice(WORDS))
        elif change == "drop" and len(words) > 1:
            del words[at]
        elif change == "twice":
            words.insert(at, words[at])
        elif change == "typo" and words[at]:
            place = rng.randrange(len(words[at]))
            words[at] = words[at][:place] + rng.choice("axz-=_. é") + words[at][place + rng.randrange(2) :]
        elif change == "swap":
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif change == "case":
            words[at] = words[at].swapcase()
    return f"cosformer {shlex.join(words)}"[:300], lambda: main(words)
