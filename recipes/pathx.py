"""Path-X: Pathfinder on 128 x 128 pixels, sequences of 16,384.

`tiny` shows that it runs, and no more: a CPU does not learn from such sequences in a minute.
"""

from recipes.pathfinder import TABLE as PATHFINDER

TABLE = PATHFINDER.variant(
    "pathx",
    tiny={
        "task_settings": {"train_rows": 8, "valid_rows": 4, "test_rows": 4},
        "model": {"num_hidden_layers": 1},
        "steps": 2, "warmup": 0, "batch": 2, "eval_batch": 2,
    },
    small={
        "steps": 10_000, "batch": 16, "learning_rate": 5e-4, "eval_every": 2000, "save_every": 500,
        "eval_batch": 32,
    },
    paper={"batch": 128, "accumulation": 4, "steps": 200 * 160_000 // 128, "eval_batch": 32},
)  # fmt: skip
build = TABLE.build
