"""The paper's tables as plans: for each table the runs that its rows and columns need.

Rows are softmax, linear (elu + 1), relu (cosFormer without the cosine), cosformer as published, windows (with
a window for every head, gate and norms), and ours: the model that this library recommends, the same with one
layer of softmax that sees 1,024 tokens. All have the same recipe and budget, and the same number of settings
is planned for each; three places of the Long Range Arena have one more (`BEFORE`).
"""

import dataclasses
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

from benchmarks import cosine_plan, enwik8_plan, small_arena_plan
from benchmarks.plan import Entry, repeats
from cosformer.models import defaults
from cosformer.report.sections.evidence import MORE
from cosformer.report.sections.planned import OURS, WINDOWS
from cosformer.training import recipes

ROWS = ("softmax", "cosformer", OURS, WINDOWS, "relu", "linear")


class Try(NamedTuple):
    """Settings that a place of the Long Range Arena is tried with. `relative`: positions by distance alone,
    rotary ones, or none where windows tell what is near (which cannot tell a text from its mirror image, and
    so is tried with `rotary` ones as well); with larger first embeddings, and texts of similar length
    together. Else they are learned, as in the paper. `narrow`: two layers of width 64 and a rate that
    falls in a line, for many steps, as Skyformer's authors trained (Chen et al., 2021, arXiv:2111.00035);
    they had 2 heads. `convolution`: the width over which queries, keys and values are convolved, so that a
    layer sees letters together, or with a row of pixels before and one behind what is above and below.
    `dropout`, where it is not the recipe's."""

    rate: float
    steps: int
    relative: bool = False
    narrow: bool = False
    convolution: int = 0
    dropout: float | None = None
    rotary: bool = False

    @property
    def part(self) -> str:
        kinds = [name for name in ("relative", "rotary", "narrow") if getattr(self, name)]
        kinds += [f"convolution of {self.convolution}"] if self.convolution else []
        dropout = [] if self.dropout is None else [f"dropout {self.dropout:g}"]
        return ", ".join((f"rate {self.rate:g}", *kinds, *dropout))


A_ROW = 67  # pixels: 33 before each and 33 behind
# Long Range Arena: recipe: heads, what is tried in this order, seconds of cosFormer's first alone, GiB.
ARENA: dict[str, tuple[int, tuple[Try, Try], float, float]] = {
    "text": (4, (Try(1e-3, 6000, True), Try(1e-3, 6000, True, convolution=5)), 75, 16),
    "citations": (4, (Try(1e-3, 4000, True), Try(5e-4, 4000)), 85, 16),
    "listops": (8, (Try(5e-4, 3000), Try(1e-3, 3000, True)), 50, 16),
    "image": (8, (Try(1e-3, 4000), Try(1e-3, 4000, convolution=A_ROW)), 65, 6),
    "pathfinder": (
        8,
        (
            Try(1e-3, 20_000, narrow=True, dropout=0.0),
            Try(1e-3, 20_000, narrow=True, convolution=A_ROW, dropout=0.0),
        ),
        70,
        4,
    ),
}
# What the data are called in the names of runs. Runs on earlier data are in results/earlier.
DATA = {"pathfinder": "published rules", "citations": "four regions"}
NARROW: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
# How long the others take beside cosFormer, for planning.
_SLOWER = {
    "softmax": 1.5, OURS: 1.4, WINDOWS: 1.2, "linear": 1.2, "leaky_relu": 1.6, "identity": 1.6,
    "performer": 2.0, "rfa": 3.0, "longformer": 3.0,
}  # fmt: skip
# On pairs of 4,000 bytes; those of softmax and ours from the time of their attention alone.
_SLOWER_ON = {("citations", "softmax"): 2.6, ("citations", OURS): 2.0, ("citations", WINDOWS): 1.75}
# How much longer a run takes with a convolution; a step alone with a row of pixels, three times.
_CONVOLUTION = {0: 1.0, 5: 1.3, A_ROW: 2.5}
WAIT = ("longformer",)  # attentions that look at what is on the GPU


def parts(recipe: str, row: str, heads: int) -> tuple[str, dict[str, Any]]:
    """The attention of a row, and what of the model is its own: nothing as published; with windows and for
    ours what the library recommends, with the positions of the others."""
    sizes = recipes.build(recipe, scale="small", attention="softmax").model
    inner = sizes.get("intermediate_size", 4 * sizes["hidden_size"])
    if row == WINDOWS:
        return "cosformer", {
            **defaults.recommended(sizes["hidden_size"], heads, inner),
            "position": sizes["position"],
        }
    if row == OURS:
        return recipes.RECOMMENDED, {"position": sizes["position"]}
    if row != "cosformer":
        return row, {}
    # A recipe of a language model has for cosformer what is recommended.
    return row, {**defaults.PAPER, "position": sizes["position"], "intermediate_size": inner}


def _arena(recipe: str, row: str, tried: Try) -> Entry:
    heads, tries, seconds, memory = ARENA[recipe]
    attention, model = parts(recipe, row, heads)
    rate, steps, relative, narrow, convolution, dropout, rotary = tried
    part = ", ".join(filter(None, (tried.part, DATA.get(recipe))))
    every = -(-steps // 12)
    overrides: dict[str, Any] = {
        "learning_rate": rate, "steps": steps, "warmup": steps // 20, "eval_every": every,
        "save_every": every, "model": model, "group_by_length": False,
    }  # fmt: skip
    if narrow:
        model = {**model, **NARROW}
        if row == WINDOWS:
            model |= defaults.recommended(64, 4, 128) | {"position": model["position"]}
        overrides |= {"model": model, "schedule": "polynomial", "warmup": 312, "weight_decay": 0.0}
    if dropout is not None:
        overrides["model"] = model = {**model, "dropout": dropout}
    if relative:
        position = "none" if row in (WINDOWS, OURS) and not rotary else "rotary"
        model = {**model, "position": position, "embedding_range": 0.3}
        overrides |= {"model": model, "group_by_length": True, "eval_batch_size": 128}
    if convolution:
        overrides["model"] = {**overrides["model"], "conv_size": convolution}
    slower = _SLOWER_ON.get((recipe, row), _SLOWER.get(row, 1.0)) * _CONVOLUTION[convolution]
    slower *= steps / tries[0].steps
    return Entry(
        "lra", recipe, row, recipe, attention, 10 + seconds * slower, memory, 1.0,
        overrides=overrides, part=part,
    )  # fmt: skip


# Tried before the second tries were those of today: settings that these places have beside theirs.
BEFORE = {
    ("text", OURS): Try(5e-4, 3000), ("text", "cosformer"): Try(5e-4, 3000),
    ("listops", OURS): Try(1e-3, 3000, True),
}  # fmt: skip


def arena() -> list[Entry]:
    """Table 4, row by row. Where the second try is no other model, windows without positions are tried with
    rotary ones in its place, and before all others. Then every place is filled once before anything else is
    tried anywhere: then task by task, those of pictures first. The best of a place has three seeds."""
    told = [
        (row, recipe, tried._replace(rotary=True))
        for recipe, row in product(ARENA, (WINDOWS, OURS))
        for tried in ARENA[recipe][1]
        if tried.relative and not ARENA[recipe][1][1].convolution
    ]
    first = [(row, recipe, ARENA[recipe][1][0]) for row, recipe in product(ROWS, ARENA)]
    second = [(row, recipe, ARENA[recipe][1][1]) for recipe, row in product(reversed(ARENA), ROWS)]
    replaced = {(recipe, row) for row, recipe, _ in told}
    second = [(row, recipe, tried) for row, recipe, tried in second if (recipe, row) not in replaced]
    second += [(row, recipe, tried) for (recipe, row), tried in BEFORE.items()]
    # Of two layers, ours has none of softmax: it is windows.
    own = [place for place in (*told, *first, *second) if place[0] != OURS or not place[2].narrow]
    made = [_arena(recipe, row, tried) for row, recipe, tried in own]
    return [*made, *repeats(made, (1, 2))]


class Holes(NamedTuple):
    """Pretraining on the inputs of a task: steps, which of the tries comes after it, seconds of cosFormer
    alone, GiB, and what is its own in settings of the task and of the model."""

    steps: int
    number: int
    seconds: float
    memory: float
    settings: dict[str, Any]
    model: dict[str, Any]


# Of texts 1,024 tokens are read: batches have one shape then, for graphs; the horizon is that of whole texts.
_BYTES: dict[str, Any] = {"probability": 0.15, "settings": {"length": 1024}}
HOLES = {
    "pathfinder": Holes(8000, 0, 60, 6, {}, {}),
    "image": Holes(8000, 1, 130, 8, {}, {}),
    "listops": Holes(3000, 0, 60, 25, {"probability": 0.15}, {}),
    "text": Holes(3000, 0, 50, 16, _BYTES, {"horizon": 4000}),
    "citations": Holes(3000, 0, 50, 16, _BYTES, {"horizon": 4000}),
}


def pretrained_arena() -> list[Entry]:
    """Table 4 once more, each model pretrained on the inputs of its task (Amos et al., 2023), column by
    column."""
    places = [(recipe, row) for recipe in HOLES for row in ROWS]
    own = [p for p in places if p != ("pathfinder", OURS)]  # of two layers it is windows
    return [entry for recipe, row in own for entry in _after_holes(recipe, row, HOLES[recipe])]


def _after_holes(recipe: str, row: str, holes: Holes) -> tuple[Entry, Entry]:
    """Pretraining, and one of what is tried without it."""
    steps, tried = holes.steps, ARENA[recipe][1][holes.number]
    after = _arena(recipe, row, tried)
    slower = _SLOWER.get(row, 1.0) * _CONVOLUTION[tried.convolution]
    overrides = {
        "task_settings": {"of": recipe, **holes.settings},
        "model": {**after.overrides["model"], **holes.model},
        "learning_rate": after.overrides["learning_rate"], "steps": steps, "warmup": steps // 20,
        "eval_every": steps, "save_every": steps, "eval_batch_size": 128, "workers": 4,
    }  # fmt: skip
    plan = "lra-pretrained"
    first = Entry(
        plan, f"{recipe}-inputs", row, "masked", after.attention, 10 + holes.seconds * slower,
        holes.memory, 0.9, overrides=overrides, part=after.part, keep=True,
    )  # fmt: skip
    return first, dataclasses.replace(after, plan=plan, initial=first)


def wikitext() -> list[Entry]:
    """Table 2, word by word, on WikiText-2 (WikiText-103 is not at hand)."""
    made = []
    for rate in (5e-4, 1e-3, 2.5e-4):
        for row in (*ROWS, *MORE):
            attention, model = parts("wikitext2", row, 8)
            position = "none" if row in (WINDOWS, OURS) else "rotary"
            overrides = {
                "learning_rate": rate, "steps": 1500, "warmup": 150, "eval_every": 250, "save_every": 250,
                "model": {**model, "position": position},
            }  # fmt: skip
            made.append(
                Entry(
                    *("wikitext2", "wikitext2", row, "wikitext2", attention),
                    seconds=60 + 30 * _SLOWER.get(row, 1.0),
                    memory=16.0,
                    load=0.9,
                    overrides=overrides,
                    part=f"rate {rate:g}",
                )
            )
    return made


def masked() -> list[Entry]:
    """Masked language modelling over the bytes of WikiText-2: is what windows gain in one direction gained in
    both? With the positions of the recipe, which are learned, and with rotary ones, for each: of what stands
    where, softmax knows nothing else."""
    made = []
    for rate, rotary in product((5e-4, 1e-3), (False, True)):
        for row in ("softmax", "cosformer", OURS, WINDOWS):
            attention, model = parts("mlm", row, 8)
            model = {**model, "position": "rotary"} if rotary else model
            overrides = {
                "learning_rate": rate, "steps": 1000, "warmup": 100, "batch": 64, "eval_every": 500,
                "save_every": 500, "eval_batch": 128, "model": model, "workers": 2,
                "task_settings": {"tokens": "bytes", "documents": "joined"},  # one shape, for graphs
            }  # fmt: skip
            made.append(
                Entry(
                    *("mlm", "mlm", row, "mlm", attention, 60, 12.0),
                    overrides=overrides,
                    part=f"rate {rate:g}{', rotary' if rotary else ''}",
                )
            )
    return made


# Pretraining: seconds of a row alone, GiB, and the share of the GPU. Rows without a kernel of their own gain
# most by compiling, which takes longest for them: meanwhile the GPU is for the others.
PRETRAINED: dict[str, tuple[float, float, float]] = {
    "softmax": (60, 16, 0.8), "cosformer": (50, 16, 0.7), OURS: (55, 16, 0.7), WINDOWS: (55, 16, 0.7),
    **dict.fromkeys(("relu", "linear"), (55, 16, 0.7)),
    **dict.fromkeys(("leaky_relu", "identity"), (100, 16, 0.3)),
    "performer": (110, 20, 0.3), "longformer": (140, 24, 0.9),
}  # fmt: skip
# Fine-tuning: recipe, most steps, and a guess of the seconds that cosFormer takes alone.
FINE_TUNED: dict[str, tuple[int, float]] = {
    "sst2": (800, 15), "imdb": (600, 25), "mrpc": (300, 10), "cola": (500, 12), "rte": (200, 10),
    "stsb": (400, 10),
}  # fmt: skip
FINE_RATES = (3e-4, 1e-4)


def pretrained() -> list[Entry]:
    """Tables 1 and 3: masked language models of IMDB's unlabelled reviews, with rotary positions and with
    those of the recipe, which are learned; then fine-tuning of each, with two learning rates."""
    made = []
    quick = [row for row in PRETRAINED if row not in WAIT]
    for rotary, rows in product((True, False), (quick, WAIT)):  # a row of the second as long as three others
        first = [_pretrained(row, rotary) for row in rows]
        made += first
        for rate in FINE_RATES:
            made += [_fine_tuned(entry, recipe, rate) for entry in first for recipe in FINE_TUNED]
    return made


def _pretrained(row: str, rotary: bool) -> Entry:
    attention, model = parts("mlm", row, 8)
    overrides = {
        "steps": 1000, "warmup": 100, "batch": 64, "eval_every": 500, "save_every": 500, "eval_batch": 64,
        "model": {**model, "position": "rotary"} if rotary else model, "workers": 2,
        "task_settings": {"corpus": "imdb", "documents": "joined"},
    }  # fmt: skip
    return Entry(
        "pretrain", "mlm", row, "mlm", attention, *PRETRAINED[row], overrides=overrides,
        part="rotary" if rotary else "", keep=True, captured=row not in WAIT,
    )  # fmt: skip


def _fine_tuned(first: Entry, recipe: str, rate: float) -> Entry:
    most, seconds = FINE_TUNED[recipe]
    usual = recipes.build(recipe, scale="small", attention="softmax")
    attention, model = parts(recipe, first.row, 8)
    if first.part:
        model = {**model, "position": first.part}
    steps = min(most, usual.steps)
    overrides = {
        "steps": steps, "warmup": steps // 16, "eval_every": -(-steps // 6), "save_every": steps,
        "learning_rate": rate, "model": model, "task_settings": {"bpe_corpus": "imdb"},
    }  # fmt: skip
    return Entry(
        "pretrain", recipe, first.row, recipe, attention, seconds * _SLOWER.get(first.row, 1.0), 8.0, 0.3,
        overrides=overrides, part=", ".join(filter(None, (f"rate {rate:g}", first.part))), initial=first,
        captured=first.captured,
    )  # fmt: skip


PLANS: dict[str, Callable[[], list[Entry]]] = {
    "lm": enwik8_plan.baselines,
    "lra": arena,
    "lra-pretrained": pretrained_arena,
    "wikitext2": wikitext,
    "mlm": masked,
    "pretrain": pretrained,
    "lm-8192": lambda: [*enwik8_plan.at_8192(), *enwik8_plan.at_8192_equal_tokens()],
    "cosine": cosine_plan.entries,
    small_arena_plan.PLAN: small_arena_plan.entries,
}
