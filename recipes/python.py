"""The source of Python's standard library, byte by byte: the text that is on every machine."""

from recipes.enwik8 import TABLE as ENWIK8

TABLE = ENWIK8.variant(
    "python",
    tiny={"task_settings": {"length": 256}},
    small={"steps": 5000, "eval_every": 500, "save_every": 500, "model": {"dropout": 0.2}},
)
build = TABLE.build
