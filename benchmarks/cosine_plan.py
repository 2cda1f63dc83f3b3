"""The cosine itself: does its shape matter, or only that it is a window? Small language models over the bytes
of enwik8, for CPU cores, so that every row has three seeds.

Without windows: ReLU alone, and the cosine with a horizon of one, two and four lengths of a text, the flatter
the longer; all with rotary positions. With windows, which need no positions: cut off at W (ReLU, a box), and
falling to zero at W (the cosine), and boxes whose weights add up to as much as those of the cosine; softmax
without and with the same windows beside them. Then the other weights of the paper's tables, with rotary
positions; and what this library adds to windows, at equal parameters: a gate and norms, which softmax is
given too, and one layer of softmax. In both directions, over masked bytes of WikiText-2, those rows once more
that answer the same questions, and the other weights of the paper's tables, all with rotary positions: a
window that looks both ways weighs what is ahead as what is behind, and a model with nothing else cannot tell
a text from its mirror image. What that costs is the rows without positions.
"""

import dataclasses
import math
from itertools import product
from typing import Any

from benchmarks.plan import Entry, on_cpu, with_seed
from cosformer.models import defaults

PLAN = "cosine"
LENGTH, LAYERS, HEADS, WIDTH = 512, 4, 4, 128
WINDOWS = [2, 4, 16, 512]
STEPS, BATCH = 800, 4
RATES = (3e-3, 1e-3)
_ROTARY: dict[str, Any] = {"position": "rotary"}
_SEEN = {"windows": WINDOWS}
_WINDOWED: dict[str, Any] = {"attention_parameters": _SEEN}


def box_of(window: int) -> int:
    """The window of a causal box whose weights, each 1, add up to as much as those of a cosine, or nearly."""
    total = sum(math.cos(math.pi / 2 * distance / window) for distance in range(window))
    return round(total) if total <= 256 else 64 * round(total / 64)


PUBLISHED = ("leaky_relu", "identity", "linear", "performer", "rfa")
_GATED: dict[str, Any] = defaults.recommended(WIDTH, HEADS, 4 * WIDTH) | _WINDOWED
# Row: the attention, and what of the model is its own.
ROWS: dict[str, tuple[str | list[str], dict[str, Any]]] = {
    "relu": ("relu", _ROTARY),
    "cosine, M = T": ("cosformer", {**_ROTARY, "horizon": LENGTH}),
    "cosine, M = 2T": ("cosformer", {**_ROTARY, "horizon": 2 * LENGTH}),
    "cosine, M = 4T": ("cosformer", {**_ROTARY, "horizon": 4 * LENGTH}),
    "relu, windows": ("relu", _WINDOWED),
    "relu, narrower windows": ("relu", {"attention_parameters": {"windows": [box_of(w) for w in WINDOWS]}}),
    "cosine, windows": ("cosformer", _WINDOWED),
    "softmax": ("softmax", _ROTARY),
    "softmax, windows": ("softmax", {**_ROTARY, **_WINDOWED}),
    **{name: (name, _ROTARY) for name in PUBLISHED},
    "cosine, windows, gate and norms": ("cosformer", _GATED),
    "softmax, windows, gate and norms": ("softmax", {**_GATED, **_ROTARY}),
    "cosine, windows, gate and norms; one softmax layer": (
        ["cosformer", "cosformer", "softmax", "cosformer"],
        {**_GATED, "attention_parameters": [_SEEN, _SEEN, {"windows": [LENGTH] * HEADS}, _SEEN]},
    ),
}


BLIND = "; no positions"
# Rows that are also trained in both directions: with rotary positions, and without any.
MASKED = (
    "relu", "cosine, M = T", "relu, windows", "cosine, windows", "softmax", "softmax, windows",
    "cosine, windows, gate and norms", "softmax, windows, gate and norms",
    "cosine, windows, gate and norms; one softmax layer", *PUBLISHED,
    *(f"{row}{BLIND}" for row in (
        "relu, windows", "cosine, windows", "cosine, windows, gate and norms",
        "cosine, windows, gate and norms; one softmax layer",
    )),
)  # fmt: skip
# Column: its task's settings, and what of a run is its own. Masked bytes are scored once, at the end: there
# are twice as many held out as are trained on.
COLUMNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "enwik8": ({"length": LENGTH, "held_out": 131_072}, {"eval_every": STEPS // 2}),
    "mlm": ({"length": LENGTH, "tokens": "bytes", "documents": "joined"}, {"eval_every": STEPS}),
}


def entries() -> list[Entry]:
    """Two learning rates of each row with the first seed, then two further seeds of the better one."""
    made = []
    for column, rows in (("enwik8", tuple(ROWS)), ("mlm", MASKED)):
        tried = {row: [_entry(column, row, rate) for rate in RATES] for row in rows}
        made += [e for own in tried.values() for e in own]
        for seed, row in product((1, 2), rows):
            best = with_seed(_entry(column, row, None), seed)
            made.append(dataclasses.replace(best, tries=tuple(e.name for e in tried[row])))
    return made


def _entry(column: str, row: str, rate: float | None) -> Entry:
    attention, own = ROWS[row.removesuffix(BLIND)]
    settings, more = COLUMNS[column]
    if column == "mlm" and not row.endswith(BLIND):
        own = {**own, **_ROTARY}
    model = {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH, "position": "none", "dropout": 0.0, "initializer_range": 0.06,
        **defaults.PAPER, **own,
    }  # fmt: skip
    overrides = {
        "task_settings": settings, "model": model, "steps": STEPS, "batch_size": BATCH, "warmup": STEPS // 10,
        "save_every": STEPS // 2, "eval_batch_size": 8, "weight_decay": 0.01, **more,
    }  # fmt: skip
    return on_cpu(PLAN, column, row, attention, rate, overrides)
