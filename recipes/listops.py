"""ListOps of the Long Range Arena.

`paper`: the arena's original settings (Tay et al., 2020: length 2,000, width 512, 8 heads, 4 layers, feed-
forward 1,024, batch 32, rate 0.05 with 1,000 steps of warm-up and rsqrt decay, 5,000 steps).
"""

from cosformer.training.recipes import Table

TABLE = Table(
    task="listops",
    shared={"model": {"position": "learned"}},
    tiny={
        "task_settings": {
            "min_length": 5, "max_length": 32, "max_depth": 4, "max_args": 4,
            "train_rows": 4000, "valid_rows": 200, "test_rows": 1000,
        },
        "model": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        "steps": 300, "batch_size": 64, "learning_rate": 2e-3, "warmup": 30, "eval_every": 100,
        "save_every": 100, "eval_batch_size": 200,
    },
    small={
        "model": {
            "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024,
            "dropout": 0.1,
        },
        "steps": 10_000, "batch_size": 64, "learning_rate": 5e-4, "warmup": 1000, "weight_decay": 0.05,
        "eval_every": 500, "eval_batch_size": 64, "precision": "bf16", "group_by_length": True,
    },
    paper={
        "model": {
            "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024,
            "dropout": 0.1,
        },
        "steps": 5000, "batch_size": 32, "learning_rate": 0.05, "schedule": "rsqrt", "warmup": 1000,
        "weight_decay": 0.1, "epsilon": 1e-9, "eval_every": 200, "save_every": 1000,
    },
)  # fmt: skip
build = TABLE.build
