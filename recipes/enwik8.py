"""enwik8: the first 10^8 bytes of Wikipedia, in bits per character.

The cosFormer paper has no figure for it; `paper` is the usual size of the field, 12 layers of width 512.
At the scale `small` a cosFormer is the one that the study found (docs/results.md): windows, gate and norms.
Other attentions have rotary positions there, with which softmax, and cosFormer without windows, learn better
than with learned ones.
"""

from cosformer.training.recipes import Table

TABLE = Table(
    task="enwik8",
    shared={"model": {"position": "learned"}, "beta2": 0.98},
    tiny={
        "task_settings": {"length": 256, "official": False},
        "model": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
        "steps": 100, "batch_size": 8, "learning_rate": 5e-3, "warmup": 10, "eval_every": 100,
        "save_every": 50, "eval_batch_size": 64, "data": "loader",
    },
    small={
        "task_settings": {"length": 1024},
        "model": {
            "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "dropout": 0.1,
            "position": "rotary",
        },
        "steps": 10_000, "batch_size": 64, "learning_rate": 5e-4, "warmup": 1000, "weight_decay": 0.01,
        "eval_every": 1000, "save_every": 1000, "eval_batch_size": 64, "precision": "bf16",
    },
    paper={
        "task_settings": {"length": 2048},
        "model": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "dropout": 0.1},
        "steps": 100_000, "batch_size": 64, "learning_rate": 5e-4, "warmup": 4000, "weight_decay": 0.01,
        "eval_every": 5000, "save_every": 2000, "eval_batch_size": 64, "precision": "bf16",
    },
    recommended_at=("small",),
)  # fmt: skip
build = TABLE.build
