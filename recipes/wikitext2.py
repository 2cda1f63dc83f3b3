"""WikiText-2, word by word: the settings of WikiText-103, shorter and with more dropout."""

from recipes.wikitext103 import TABLE as WIKITEXT103

TABLE = WIKITEXT103.variant(
    "wikitext2",
    small={
        "model": {"dropout": 0.3}, "steps": 4000, "warmup": 1000, "eval_every": 200, "save_every": 400,
        "accumulation": 2, "eval_batch_size": 32, "patience": 5,
    },
    paper={
        "model": {"dropout": 0.4}, "steps": 20_000, "warmup": 4000, "eval_every": 500, "accumulation": 4,
        "eval_batch_size": 32, "patience": 10,
    },
)  # fmt: skip
build = TABLE.build
