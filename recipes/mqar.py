"""Multi-query associative recall: how much a state can hold, and find again.

`paper`: after Zoology (Arora et al., 2023): vocabulary 8,192, two layers of one head, 64 passes; the
cosFormer paper does not have it. `python -m benchmarks.recall` sweeps the width.
"""

from cosformer.training.recipes import Table

TABLE = Table(
    task="mqar",
    shared={"model": {"position": "learned", "num_attention_heads": 1}, "weight_decay": 0.1},
    tiny={
        "task_settings": {
            "length": 32, "pairs": 2, "vocab_size": 32,
            "train_rows": 4000, "valid_rows": 200, "test_rows": 200,
        },
        "model": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
        "steps": 400, "batch_size": 64, "learning_rate": 3e-3, "warmup": 40, "eval_every": 200,
        "save_every": 200, "eval_batch_size": 200,
    },
    small={
        "task_settings": {"length": 256, "pairs": 16, "train_rows": 100_000},
        "model": {"hidden_size": 128, "num_hidden_layers": 2},
        "steps": 8000, "batch_size": 256, "learning_rate": 1e-3, "warmup": 800, "eval_every": 500,
        "eval_batch_size": 250, "save_every": 1000,
    },
    paper={
        "task_settings": {"length": 512, "pairs": 64, "train_rows": 100_000},
        "model": {"hidden_size": 256, "num_hidden_layers": 2},
        "steps": 64 * 100_000 // 256, "batch_size": 256, "learning_rate": 1e-3, "warmup": 2500,
        "eval_every": 1000, "eval_batch_size": 125, "save_every": 1000,
    },
)  # fmt: skip
build = TABLE.build
