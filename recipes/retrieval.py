"""Retrieval of the Long Range Arena: does one paper cite the other?

`paper`: the arena's original settings (two documents of 4,000 bytes, width 128, 4 heads, 4 layers, feed-
forward 512, batch 32, rate 0.05 with 8,000 steps of warm-up and rsqrt decay, 5,000 steps).
"""

from cosformer.training.recipes import Table

TABLE = Table(
    task="retrieval",
    shared={"model": {"position": "learned"}},
    tiny={
        "task_settings": {"length": 256, "official": False},
        "model": {
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.15,
        },
        "steps": 240, "batch_size": 32, "learning_rate": 3e-3, "warmup": 20, "eval_every": 120,
        "save_every": 120, "eval_batch_size": 100,
    },
    small={
        "model": {
            "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512,
            "dropout": 0.1,
        },
        "steps": 5000, "batch_size": 32, "learning_rate": 5e-4, "warmup": 500, "weight_decay": 0.05,
        "eval_every": 500, "precision": "bf16", "group_by_length": True,
    },
    paper={
        "model": {
            "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512,
            "dropout": 0.1,
        },
        "steps": 5000, "batch_size": 32, "learning_rate": 0.05, "schedule": "rsqrt", "warmup": 8000,
        "weight_decay": 0.1, "epsilon": 1e-9, "eval_every": 300, "save_every": 1000,
    },
)  # fmt: skip
build = TABLE.build
