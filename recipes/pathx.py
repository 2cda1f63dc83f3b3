"""Path-X: Pathfinder on 128 x 128 pixels, sequences of 16,384.

`tiny` has pictures of 8 x 8 pixels, as Pathfinder's has: a CPU learns nothing from the long ones in a minute.
"""

from recipes.pathfinder import TABLE as PATHFINDER

TABLE = PATHFINDER.variant(
    "pathx",
    small={
        "steps": 10_000, "batch_size": 16, "learning_rate": 5e-4, "eval_every": 2000, "save_every": 500,
        "eval_batch_size": 32,
    },
    paper={"batch_size": 128, "accumulation": 4, "steps": 200 * 160_000 // 128, "eval_batch_size": 32},
)  # fmt: skip
build = TABLE.build
