"""Copying a sequence: what a state of constant size can hold, in its plainest form.

There are no published settings; `paper` is a longer sequence. `python -m benchmarks.recall` sweeps the width.
"""

from recipes.mqar import TABLE as MQAR

TABLE = MQAR.variant(
    "copy",
    tiny={
        "task_settings": {
            "length": 16, "vocab_size": 10, "train_rows": 4000, "valid_rows": 200, "test_rows": 200,
        },
    },
    small={"task_settings": {"length": 128, "vocab_size": 66}},
    paper={"task_settings": {"length": 512, "vocab_size": 66}},
)  # fmt: skip
build = TABLE.build
