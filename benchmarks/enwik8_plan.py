"""Language models over enwik8 at 19 million parameters: the variants that are compared, and their runs.

All variants have 6 layers of width 512 with 8 heads, the same tokens in the same order and the same schedule.
Four learning rates are tried with the short budget by one variant of each family, and the others of the
family take the best of them on the validation split. There are more variants with windows, for which a good
model was looked for, than of other families. Bits per character are those of the first million bytes of the
validation and of the test part, in texts of the training's length.
"""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.plan import Entry, with_seed
from cosformer.models.defaults import PAPER
from cosformer.report.sections.evidence import MORE, STUDY

PLAN = "enwik8"
LAYERS, HEADS, WIDTH = 6, 8, 512
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
TOKENS = 32 * 1024  # of a step
SHORT, LONG = 1200, 5500  # steps: 39 and 180 million tokens

Windows = tuple[int | None, ...]

NARROW: Windows = (2, 4, 8, 16, 64, 256, None, None)
BOUNDED: Windows = (2, 4, 8, 16, 64, 128, 512, 1024)  # the best of the sets: what is added is added to it
SETS: dict[str, Windows] = {
    "windows": NARROW,
    "windows, one full head": (2, 4, 8, 16, 32, 64, 256, None),
    "windows, narrower": (2, 2, 4, 4, 16, 64, 256, None),
    "windows, all bounded": BOUNDED,
    "windows, 8 to 1,024": (8, 16, 32, 64, 128, 256, 512, 1024),
}
# In texts of 1,024 a window of 1,024 weighs as a head without one does, and longer texts have no bound.
GROWING: tuple[Windows, ...] = (
    (2, 2, 4, 4, 8, 8, 16, 16),
    (2, 4, 8, 8, 16, 16, 32, 64),
    (4, 8, 16, 16, 32, 64, 128, 256),
    (4, 8, 16, 32, 64, 128, 256, 1024),
    (8, 16, 32, 64, 128, 256, 512, 1024),
    (8, 16, 64, 128, 256, 1024, 1024, 1024),
)
GATE: dict[str, Any] = {
    "output_gate": "silu",
    "output_norm": True,
    "intermediate_size": 4 * WIDTH - WIDTH // 2,  # the gate has as many weights as are taken away here
}
CONVOLUTION: dict[str, Any] = {"conv_size": 4}


def parameters(windows: Windows) -> dict[str, Any]:
    return {"windows": list(windows)}


@dataclass(frozen=True)
class Variant:
    """A model: its attention, the family whose learning rate it takes, what of `CosformerConfig` is its own,
    how many times a softmax's time it takes, and GiB of the GPU."""

    attention: str | list[str]
    family: str
    model: dict[str, Any] = field(default_factory=dict)
    slower: float = 1.0
    memory: float = 8.0


def _growing(**model: Any) -> Variant:
    of_layers = [parameters(windows) for windows in GROWING]
    return Variant(["cosformer"] * LAYERS, "windows", {"attention_parameters": of_layers, **model}, 1.3)


def _hybrid(
    windows: tuple[Windows, ...] = GROWING, of_softmax: dict[str, Any] | None = None, **model: Any
) -> Variant:
    """One layer of six is softmax."""
    names = ["cosformer"] * LAYERS
    names[3] = "softmax"
    of_layers: list[dict[str, Any]] = [
        of_softmax or {} if name == "softmax" else parameters(of_layer)
        for name, of_layer in zip(names, windows, strict=True)
    ]
    return Variant(names, "windows", {"attention_parameters": of_layers, "position": "rotary", **model}, 1.3)


def _windows(windows: Windows = BOUNDED, **model: Any) -> Variant:
    return Variant("cosformer", "windows", {"attention_parameters": parameters(windows), **model}, 1.3)


VARIANTS: dict[str, Variant] = {
    "softmax, rotary": Variant("softmax", "softmax", {"position": "rotary"}),
    "softmax, learned positions": Variant("softmax", "softmax", {"position": "learned"}),
    "cosformer, no positions": Variant("cosformer", "cosformer"),
    "cosformer, rotary": Variant("cosformer", "cosformer", {"position": "rotary"}),
    "cosformer, learned positions": Variant("cosformer", "cosformer", {"position": "learned"}),
    **{name: _windows(windows) for name, windows in SETS.items()},
    "windows, 16 heads": _windows(
        (2, 2, 4, 4, 8, 8, 16, 16, 32, 64, 64, 128, 256, 256, None, None), num_attention_heads=16
    ),
    "windows, 4 heads": _windows((2, 8, 64, None), num_attention_heads=4),
    "windows, all bounded + rotary": _windows(position="rotary"),
    "windows, all bounded + convolution": _windows(**CONVOLUTION),
    "windows, all bounded + gate and norm": _windows(**GATE),
    "windows, all bounded + q, k norm": _windows(qk_norm=True),
    "windows, all bounded + rotary, convolution, gate, norm": _windows(
        position="rotary", **CONVOLUTION, **GATE
    ),
    "windows, all bounded + convolution, gate, norm": _windows(**CONVOLUTION, **GATE),
    "windows, all bounded + gate, norm; q, k norm": _windows(qk_norm=True, **GATE),
    "windows, all bounded + norm": _windows(output_norm=True),
    "windows, wider + gate, norm": _windows((2, 4, 16, 64, 256, 512, 1024, 1024), **GATE),
    "windows, 4 heads + gate, norm": _windows((2, 16, 128, 1024), num_attention_heads=4, **GATE),
    "growing": _growing(),
    "growing + rotary": _growing(position="rotary"),
    "growing + convolution, gate, norm": _growing(**CONVOLUTION, **GATE),
    "one softmax layer": _hybrid(),
    "one softmax layer + convolution, gate, norm": _hybrid(**CONVOLUTION, **GATE),
    "one softmax layer + gate, norm": _hybrid((BOUNDED,) * LAYERS, **GATE),
    "one softmax layer + gate, norm, no positions": _hybrid((BOUNDED,) * LAYERS, position="none", **GATE),
    # As in models of constant memory: the softmax layer sees 256 tokens.
    "one softmax layer of 256 + gate, norm, no positions": _hybrid(
        (BOUNDED,) * LAYERS, {"windows": [256] * HEADS}, position="none", **GATE
    ),
    # Of constant memory, too: no head sees further than the widest window, softmax's included.
    "one softmax layer of 1,024 + gate, norm; q, k norm": _hybrid(
        (BOUNDED,) * LAYERS, {"windows": [1024] * HEADS}, position="none", qk_norm=True, **GATE
    ),
    "no windows + convolution": Variant("cosformer", "cosformer", {"position": "rotary", **CONVOLUTION}),
    "softmax + windows": Variant(
        "softmax", "softmax", {"position": "rotary", "attention_parameters": parameters(BOUNDED)}, 1.8
    ),
    "softmax + windows, gate, norm; q, k norm": Variant(
        "softmax",
        "softmax",
        {"position": "rotary", "attention_parameters": parameters(BOUNDED), "qk_norm": True, **GATE},
        1.8,
    ),
    "softmax + convolution, gate, norm": Variant(
        "softmax", "softmax", {"position": "rotary", **CONVOLUTION, **GATE}
    ),
    "softmax + gate, norm": Variant("softmax", "softmax", {"position": "rotary", **GATE}),
    "local, blocks of 128": Variant(
        "local", "softmax", {"position": "rotary", "attention_parameters": {"block": 128}}, 1.8
    ),
    "relu, rotary": Variant("relu", "relu", {"position": "rotary"}, 1.0),
    # Of the family that it is a control for: only the shape of the window differs.
    "relu + windows": Variant("relu", "windows", {"attention_parameters": parameters(BOUNDED)}, 3.0, 20.0),
    "linear, rotary": Variant("linear", "linear", {"position": "rotary"}, 1.2),
    "identity, rotary": Variant("identity", "identity", {"position": "rotary"}, 1.5, 12.0),
    "performer, rotary": Variant("performer", "performer", {"position": "rotary"}, 4.0, 20.0),
    "rfa, rotary": Variant("rfa", "rfa", {"position": "rotary"}, 4.0, 20.0),
}
# The variant of each family that tries the learning rates.
TRIED = {
    "softmax": "softmax, rotary",
    "cosformer": "cosformer, rotary",
    "windows": "windows",
    "relu": "relu, rotary",
    "linear": "linear, rotary",
    "identity": "identity, rotary",
    "performer": "performer, rotary",
    "rfa": "rfa, rotary",
}
# What the library recommends, in the tables of the paper, too; and the same without softmax.
OURS, WINDOWS = STUDY["ours"], STUDY["windows"]
FINALISTS = ("softmax, rotary", WINDOWS, OURS)
# Steps at T = 8,192 that take as long for each: alone on an H200 26.54 and 17.44 ms, captured as CUDA graphs.
STEPS_OF_8192 = {"softmax, rotary": 1700, OURS: 2590}
LOWER_RATES = (1e-3, 5e-4)  # longer texts, fewer of them a step
CONTROLS = ("softmax + windows", "softmax + windows, gate, norm; q, k norm", "relu + windows")
# Variants whose figures are wanted first, after those that try learning rates.
FIRST = (
    "windows, all bounded",
    "growing",
    "growing + convolution, gate, norm",
    "windows, all bounded + rotary",
    "windows, all bounded + convolution",
    "windows, all bounded + gate and norm",
    "one softmax layer",
    "windows, all bounded + convolution, gate, norm",
    "one softmax layer + gate, norm",
    "windows, all bounded + gate, norm; q, k norm",
    "softmax + gate, norm",
    "one softmax layer + gate, norm, no positions",
    "windows, 4 heads + gate, norm",
    "one softmax layer of 256 + gate, norm, no positions",
    "windows, wider + gate, norm",
    "one softmax layer of 1,024 + gate, norm; q, k norm",
    *CONTROLS,
)
BASELINES = ("softmax, rotary", "linear, rotary", "relu, rotary", "cosformer, rotary", WINDOWS, OURS)


def _entry(name: str, column: str, steps: int, length: int = 1024, **more: Any) -> Entry:
    variant = VARIANTS[name]
    model = {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": 4 * WIDTH, "position": "none", "dropout": 0.0, **PAPER, **variant.model,
    }  # fmt: skip
    overrides = {
        "task_settings": {"length": length, "held_out": 1_000_000}, "model": model,
        "steps": steps, "batch": TOKENS // length, "warmup": steps // 12, "schedule": "cosine", "end": 0.1,
        "weight_decay": 0.1, "beta2": 0.98, "clip": 1.0, "eval_every": -(-steps // 4), "precision": "bf16",
        "save_every": -(-steps // 4), "eval_batch": TOKENS // length, **more.pop("overrides", {}),
    }  # fmt: skip
    dearer = variant.slower * (1.8 if length > 1024 and "softmax" in variant.attention else 1.0)
    seconds = 15 + steps * TOKENS / 1.6e6 * dearer
    load = 0.9 / variant.slower
    return Entry(
        PLAN, column, name, "enwik8", variant.attention, seconds, variant.memory, load, overrides=overrides,
        **more,
    )  # fmt: skip


def tries(family: str) -> list[Entry]:
    """The learning rates of a family, with the short budget."""
    return [
        _entry(TRIED[family], "short", SHORT, part=f"rate {rate:g}", overrides={"learning_rate": rate})
        for rate in RATES
    ]


def of(name: str, column: str, steps: int, **more: Any) -> Entry:
    """A run with the best learning rate of the variant's family."""
    names = tuple(e.name for e in tries(VARIANTS[name].family))
    return _entry(name, column, steps, tries=names, **more)


def short() -> list[Entry]:
    """Every variant with the short budget; those that try learning rates have their figure from there."""
    tried = [entry for family in ("softmax", "windows", "cosformer") for entry in tries(family)]
    others = [name for name in dict.fromkeys((*FIRST, *VARIANTS)) if name not in TRIED.values()]
    return [
        *tried,
        *(of(name, "short", SHORT) for name in others),
        *tries("relu"),
        *tries("linear"),
        *(entry for family in MORE for entry in tries(family)),
    ]


def long() -> list[Entry]:
    """Finalists, controls and baselines with 180 million tokens; the finalists with two seeds."""
    controls = CONTROLS[:2]
    others = (*controls, "cosformer, rotary", "one softmax layer + gate, norm", *BASELINES)
    first = {name: of(name, "long", LONG) for name in dict.fromkeys((*FINALISTS, *others))}
    finalists = [first.pop(name) for name in FINALISTS]
    softmax = [first.pop(name) for name in controls]
    return [*finalists, *softmax, *(with_seed(entry, 1) for entry in finalists), *first.values()]


def at_8192() -> list[Entry]:
    """Texts of 8,192, compiled: as many steps as each model makes in the same seconds when it is alone on the
    GPU, with the learning rate that is best at T = 1,024 and with lower ones; two seeds of the best."""
    tried, again = [], []
    for name, steps in STEPS_OF_8192.items():
        more: dict[str, Any] = {"column": "T = 8,192", "steps": steps, "length": 8192}
        own = [of(name, **more, overrides={"compile": True})]
        own += [
            _entry(name, **more, part=f"rate {rate:g}", overrides={"compile": True, "learning_rate": rate})
            for rate in LOWER_RATES
        ]
        best = _entry(name, **more, tries=tuple(e.name for e in own), overrides={"compile": True})
        tried += own
        again.append(with_seed(best, 1))
    return [*tried, *again]


def at_8192_equal_tokens() -> list[Entry]:
    """Texts of 8,192, 180 million tokens for each row of Table 2, with the learning rate that is best there
    for softmax, and level with the best for ours."""
    column = "long, T = 8,192"
    return [_entry(name, column, LONG, 8192, overrides={"learning_rate": 1e-3}) for name in BASELINES]


def baselines() -> list[Entry]:
    """The rows of the paper's Table 2, with their tries."""
    tried = [e for family in ("softmax", "cosformer", "linear", "relu", "windows") for e in tries(family)]
    more = [e for family in MORE for e in (*tries(family), of(TRIED[family], "long", LONG))]
    return [*tried, *(of(name, "long", LONG) for name in BASELINES), *more]
