"""The Long Range Arena in small: its five tasks with short inputs, for CPU cores, so that every row is whole
and has three seeds, and so that softmax is given what cosFormer is given.

Two layers of width 64 with 4 heads, and at most 256 tokens; citations are read as byte pairs, because a
model of this size does not leave one half byte by byte. All rows of a task have the same positions:
learned ones, or rotary ones for texts. With windows there is a gate and norms, at equal parameters; beside
the cosine's windows stand ReLU and softmax under the same windows, gate and norms.
"""

import dataclasses
from itertools import product
from typing import Any

from benchmarks.plan import Entry, on_cpu, with_seed
from cosformer.models import defaults

PLAN = "lra-small"
LAYERS, HEADS, WIDTH, INNER = 2, 4, 64, 128
RATES = (3e-3, 1e-3)
GATED: dict[str, Any] = defaults.recommended(WIDTH, HEADS, INNER)
# Row: the attention, and whether it has windows, gate and norms.
ROWS: dict[str, tuple[str, bool]] = {
    "softmax": ("softmax", False),
    "linear": ("linear", False),
    "relu": ("relu", False),
    "cosformer": ("cosformer", False),
    "windows": ("cosformer", True),
    "relu with windows": ("relu", True),
    "softmax with windows": ("softmax", True),
}
_ROTARY: dict[str, Any] = {"position": "rotary", "embedding_range": 0.3}
_PICTURES: dict[str, Any] = {"position": "learned", "embedding_range": 0.3, "ordered_tokens": True}
# Column: its task's settings, what of the model is its own, steps, rows of a step.
COLUMNS: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    "listops": (
        {
            "min_length": 10, "max_length": 100, "max_depth": 6, "max_args": 5,
            "train_rows": 40_000, "valid_rows": 2000, "test_rows": 5000,
        },
        {"position": "learned"}, 1000, 64,
    ),
    "text": ({"length": 256}, _ROTARY, 700, 32),
    "citations": (
        {"length": 128, "tokens": "bpe", "bpe_size": 4096, "bpe_corpus": "wikitext2"}, _ROTARY, 600, 32,
    ),
    "image": ({"side": 16}, {"position": "learned"}, 700, 32),
    "pathfinder": (
        {"side": 8, "train_rows": 40_000, "valid_rows": 2000, "test_rows": 10_000},
        {**_PICTURES, "pooling": "max"}, 1000, 64,
    ),
}  # fmt: skip


def entries() -> list[Entry]:
    """Two learning rates of each place with the first seed, then two further seeds of the better one."""
    tried = {place: [_entry(*place, rate) for rate in RATES] for place in product(COLUMNS, ROWS)}
    made = [e for own in tried.values() for e in own]
    for seed, place in product((1, 2), tried):
        best = with_seed(_entry(*place, None), seed)
        made.append(dataclasses.replace(best, tries=tuple(e.name for e in tried[place])))
    return made


def _entry(column: str, row: str, rate: float | None) -> Entry:
    attention, gated = ROWS[row]
    settings, own, steps, batch = COLUMNS[column]
    model = {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": INNER, "dropout": 0.0, "initializer_range": 0.1, **defaults.PAPER,
        **(GATED if gated else {}), **own,
    }  # fmt: skip
    overrides = {
        "task_settings": settings, "model": model, "steps": steps, "batch_size": batch,
        "warmup": steps // 10, "eval_every": steps // 4, "save_every": steps // 2, "eval_batch_size": 50,
        "weight_decay": 0.01,
    }  # fmt: skip
    return on_cpu(PLAN, column, row, attention, rate, overrides)
